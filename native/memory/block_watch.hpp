// Watches a block of memory that another library owns and may move: a tensor's storage.
#pragma once

#include <cstdint>

namespace zerohop {

// The library keeps the block's address in one of its objects, which the caller keeps alive.
class BlockWatch {
public:
    BlockWatch() = default;
    BlockWatch(uint64_t word, uint64_t start) : word_(reinterpret_cast<const uint64_t*>(word)), start_(start) {}
    // Returns true if the block may move at all.
    [[nodiscard]] bool watches() const { return word_ != nullptr; }
    // Returns true once the block is elsewhere.
    [[nodiscard]] bool moved() const {
        return word_ != nullptr && __atomic_load_n(word_, __ATOMIC_RELAXED) != start_; // its owner knows no std::atomic
    }

private:
    const uint64_t* word_ = nullptr; // where the address is; null: the block cannot move
    uint64_t start_ = 0;
};

} // namespace zerohop
