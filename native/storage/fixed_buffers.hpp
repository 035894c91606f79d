// Remembers which host memory the system keeps at hand for transfers.
#pragma once

#include "memory/place.hpp"
#include "storage/file_io.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace zerohop::storage {

// Not thread-safe: the queue's lock covers it.
class FixedBuffers {
public:
    explicit FixedBuffers(FileIo& io) : io_(io) {}

    // Fixes host memory, by the object that it pins; false, and `why`, if that cannot be. It stays fixed until remove()
    // has been called as often as this.
    [[nodiscard]] bool add(const Place& memory, std::weak_ptr<const void> object, std::string& why);
    void remove(const void* object);
    // Returns the buffers of memory that is pinned, each of kBytes but the last; null if it was not fixed.
    [[nodiscard]] const std::vector<int>* of(const void* object);
    // Returns the one that has all of a range; -1 if none has.
    [[nodiscard]] static int find(const std::vector<int>& buffers, uint64_t offset, uint64_t nbytes);

private:
    void forget(const void* object);

    static constexpr uint64_t kBytes = 1ULL << 30; // the most that the system takes as one

    struct Fixed {
        std::weak_ptr<const void> object; // another one may lie where one was that has gone
        std::vector<int> buffers;
        int users = 1;
    };
    FileIo& io_;
    std::unordered_map<const void*, Fixed> fixed_;
};

} // namespace zerohop::storage
