#include "storage/fixed_buffers.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::storage {

bool FixedBuffers::add(const std::shared_ptr<Region>& region, std::string& why) {
    if (of(region.get()) != nullptr) {
        ++fixed_.at(region.get()).users;
        return true;
    }
    std::vector<int> buffers;
    for (uint64_t at = 0; at < region->nbytes(); at += kBytes) {
        const int buffer = io_.fix(region->host() + at, std::min(kBytes, region->nbytes() - at), why);
        if (buffer < 0) {
            std::for_each(buffers.begin(), buffers.end(), [&](int each) { io_.unfix(each); });
            return false;
        }
        buffers.push_back(buffer);
    }
    fixed_.emplace(region.get(), Fixed{region, std::move(buffers)});
    return true;
}

void FixedBuffers::remove(const Region* region) {
    if (const auto found = fixed_.find(region); found != fixed_.end() && --found->second.users == 0) {
        forget(region);
    }
}

void FixedBuffers::forget(const Region* region) {
    if (const auto found = fixed_.find(region); found != fixed_.end()) {
        for (const int buffer : found->second.buffers) {
            io_.unfix(buffer);
        }
        fixed_.erase(found);
    }
}

const std::vector<int>* FixedBuffers::of(const Region* region) {
    const auto found = fixed_.find(region);
    if (found == fixed_.end()) {
        return nullptr;
    }
    if (found->second.region.expired()) {
        forget(region);
        return nullptr;
    }
    return &found->second.buffers;
}

int FixedBuffers::find(const std::vector<int>& buffers, uint64_t offset, uint64_t nbytes) {
    if (buffers.empty() || offset % kBytes + nbytes > kBytes) {
        return -1;
    }
    return buffers[offset / kBytes];
}

} // namespace zerohop::storage
