// Watches a block of memory that another library owns and may move: a tensor's storage.
#pragma once

#include <cstdint>

namespace zerohop {

// The library keeps the block's address in one of its objects, and its length in another word of it; the caller keeps
// that object alive.
class BlockWatch {
public:
    BlockWatch() = default;
    BlockWatch(uint64_t start_word, uint64_t start, uint64_t length_word = 0, uint64_t length = 0)
        : start_word_(reinterpret_cast<const uint64_t*>(start_word)), start_(start),
          length_word_(length_word != 0 ? reinterpret_cast<const uint64_t*>(length_word) : &kUnknown), length_(length) {
    }
    // Returns true once the block is elsewhere, or a shorter one has taken its place.
    [[nodiscard]] bool moved() const {
        return start_word_ != nullptr && (read(start_word_) != start_ || read(length_word_) < length_);
    }
    // Returns true if a range lies in the block, and the block is where it was when this object was made. The caller
    // asks for the range's address after that: an earlier answer may be an address in an earlier block.
    [[nodiscard]] bool holds(uint64_t address, uint64_t nbytes) const {
        const bool behind = address >= start_ && (length_ == 0 || address - start_ <= length_);
        return behind && (length_ == 0 || nbytes <= length_ - (address - start_)) && !moved();
    }

private:
    static constexpr uint64_t kUnknown = UINT64_MAX;
    // The library knows no std::atomic.
    static uint64_t read(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

    const uint64_t* start_word_ = nullptr; // null: the block cannot move
    uint64_t start_ = 0;
    const uint64_t* length_word_ = &kUnknown;
    uint64_t length_ = 0;
};

} // namespace zerohop
