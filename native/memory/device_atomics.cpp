#include "memory/device_atomics.hpp"

#include <cstring>
#include <new>

namespace zerohop {

bool DeviceAtomics::poll() {
    if (queue_.empty()) {
        return false;
    }
    if (!event_) {
        return begin_copy(false);
    }
    switch (event_->query()) {
    case accel::EventState::pending:
        return false;
    case accel::EventState::failed:
        finish(event_->outcome());
        return true;
    case accel::EventState::done:
        break;
    }
    DeviceAtomic& front = queue_.front();
    if (writing_) {
        finish({});
        return true;
    }
    std::memcpy(&old_, buffer_.data(), sizeof old_);
    if (front.swap && old_ != front.compare) {
        finish({});
        return true;
    }
    const uint64_t changed = front.swap ? front.operand : old_ + front.operand;
    std::memcpy(buffer_.data(), &changed, sizeof changed);
    return begin_copy(true);
}

// Fetches the word, or writes it back. The stream is that of inbound writes, so that an atomic comes after the writes
// that were done before it.
bool DeviceAtomics::begin_copy(bool back) {
    const DeviceAtomic& front = queue_.front();
    if (!back && front.share->revoked.load(std::memory_order_acquire)) {
        finish({Status::access_denied, Reason::revoked});
        return true;
    }
    Outcome why;
    accel::Stream* stream = staging_.stream(front.region->device(), Staging::Direction::inbound, why);
    if (stream == nullptr) {
        finish(why);
        return true;
    }
    if (!back) {
        buffer_ = staging_.try_acquire(Staging::Direction::inbound, why);
        if (!buffer_ && !why.ok()) {
            finish(why);
            return true;
        }
        if (!buffer_) {
            return false;
        }
    }
    const auto here = reinterpret_cast<uint64_t>(buffer_.data());
    const accel::CopySegment word{back ? front.address : here, back ? here : front.address, sizeof(uint64_t)};
    try {
        event_ = stream->copy({&word, 1});
    } catch (const std::bad_alloc&) { // the buffer may hold the new word already: another try would change it twice
        finish({Status::device_error, Reason::out_of_memory});
        return true;
    }
    writing_ = back;
    return true;
}

void DeviceAtomics::finish(Outcome outcome) {
    DeviceAtomic front = std::move(queue_.front());
    queue_.pop_front();
    event_.reset();
    buffer_ = {};
    front.region.reset();
    front.share->device_copies.fetch_sub(1, std::memory_order_acq_rel);
    front.done(outcome, outcome.ok() ? old_ : 0); // on failure `old_` may be that of an earlier atomic
}

} // namespace zerohop
