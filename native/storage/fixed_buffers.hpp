// Remembers which host memory the system keeps at hand for transfers.
#pragma once

#include "memory/region.hpp"
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

    // Fixes a region, which is pinned meanwhile; false, and `why`, if that cannot be. It stays fixed until remove() has
    // been called as often as this.
    [[nodiscard]] bool add(const std::shared_ptr<Region>& region, std::string& why);
    void remove(const Region* region);
    // Returns the buffers of a region that is pinned, each of kBytes but the last; null if it was not fixed.
    [[nodiscard]] const std::vector<int>* of(const Region* region);
    // Returns the one that has all of a range; -1 if none has.
    [[nodiscard]] static int find(const std::vector<int>& buffers, uint64_t offset, uint64_t nbytes);

private:
    void forget(const Region* region);

    static constexpr uint64_t kBytes = 1ULL << 30; // the most that the system takes as one

    struct Fixed {
        std::weak_ptr<Region> region; // another one may lie where a region was that has gone
        std::vector<int> buffers;
        int users = 1;
    };
    FileIo& io_;
    std::unordered_map<const Region*, Fixed> fixed_;
};

} // namespace zerohop::storage
