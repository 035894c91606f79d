#include "storage/fixed_buffers.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::storage {

FixedBuffers::Buffers::~Buffers() {
    for (const int buffer : numbers_) {
        io_.unfix(buffer);
    }
}

int FixedBuffers::Buffers::find(uint64_t offset, uint64_t nbytes) const {
    return offset % kBytes + nbytes > kBytes ? -1 : numbers_[offset / kBytes];
}

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
    auto made = std::make_shared<const Buffers>(io_, std::move(buffers));
    fixed_.emplace(memory.identity, Fixed{std::move(object), std::move(made)});
    return true;
}

void FixedBuffers::remove(const void* object) {
    if (const auto found = fixed_.find(object); found != fixed_.end() && --found->second.users == 0) {
        fixed_.erase(found);
    }
}

std::shared_ptr<const FixedBuffers::Buffers> FixedBuffers::of(const void* object) {
    const auto found = fixed_.find(object);
    if (found == fixed_.end()) {
        return nullptr;
    }
    if (found->second.object.expired()) {
        fixed_.erase(found);
        return nullptr;
    }
    return found->second.buffers;
}

} // namespace zerohop::storage
