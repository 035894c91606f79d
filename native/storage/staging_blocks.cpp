#include "storage/staging_blocks.hpp"

#include "base/pages.hpp"

#include <algorithm>
#include <new>

namespace zerohop::storage {

StagingBlocks::StagingBlocks(Accelerators& accelerators, uint64_t nbytes, uint64_t block_bytes)
    : accelerators_(accelerators), block_bytes_(block_bytes), count_(std::max<uint64_t>(1, nbytes / block_bytes)) {}

StagingBlocks::Block StagingBlocks::try_acquire(Outcome& why) {
    if (!region_) {
        try {
            free_.reserve(count_);
            const std::shared_ptr<Region> region = Region::allocate_host(count_ * block_bytes_);
            gather_pages(region->host(), std::min(region->nbytes(), kGatheredBytes));
            region->register_with_devices(accelerators_);
            for (size_t i = count_; i-- > 0;) {
                free_.push_back(region->host() + i * block_bytes_);
            }
            region_ = region;
        } catch (const NativeError&) {
            why = kLocalNoStaging;
            return {};
        } catch (const std::bad_alloc&) {
            why = kLocalNoStaging;
            return {};
        }
    }
    if (free_.empty()) {
        return {};
    }
    std::byte* const data = free_.back();
    free_.pop_back();
    return {this, data};
}

} // namespace zerohop::storage
