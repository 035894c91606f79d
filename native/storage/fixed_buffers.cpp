#include "storage/fixed_buffers.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::storage {

bool FixedBuffers::add(const Place& memory, std::weak_ptr<const void> object, std::string& why) {
    if (of(memory.identity) != nullptr) {
        ++fixed_.at(memory.identity).users;
        return true;
    }
    std::vector<int> buffers;
    for (uint64_t at = 0; at < memory.nbytes; at += kBytes) {
        const int buffer = io_.fix(memory.host + at, std::min(kBytes, memory.nbytes - at), why);
        if (buffer < 0) {
            std::for_each(buffers.begin(), buffers.end(), [&](int each) { io_.unfix(each); });
            return false;
        }
        buffers.push_back(buffer);
    }
    fixed_.emplace(memory.identity, Fixed{std::move(object), std::move(buffers)});
    return true;
}

void FixedBuffers::remove(const void* object) {
    if (const auto found = fixed_.find(object); found != fixed_.end() && --found->second.users == 0) {
        forget(object);
    }
}

void FixedBuffers::forget(const void* object) {
    if (const auto found = fixed_.find(object); found != fixed_.end()) {
        for (const int buffer : found->second.buffers) {
            io_.unfix(buffer);
        }
        fixed_.erase(found);
    }
}

const std::vector<int>* FixedBuffers::of(const void* object) {
    const auto found = fixed_.find(object);
    if (found == fixed_.end()) {
        return nullptr;
    }
    if (found->second.object.expired()) {
        forget(object);
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
