// Notifications: the number by which a request names one, the message that may go with it, and the notification as it
// arrives.
//
// The number holds 32 bits of the user's. The bits above them name the peer's queue that the notification goes to;
// queue 0 belongs to the peer's Context. A negative number means that nothing is announced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace zerohop {

class Endpoint;

inline constexpr unsigned kQueueShift = 32;

inline constexpr uint32_t value_of(int64_t notify) {
    return static_cast<uint32_t>(notify);
}

inline constexpr uint16_t queue_of(int64_t notify) {
    return static_cast<uint16_t>(notify >> kQueueShift);
}

inline constexpr int64_t notify_of(uint16_t queue, uint32_t value) {
    return int64_t{queue} << kQueueShift | value;
}

// Up to kMaxMessage bytes of the user's; null: none.
using Message = std::shared_ptr<const std::string>;
inline constexpr size_t kMaxMessage = 256;

struct Notification {
    int peer = -1;
    uint32_t value = 0;
    uint64_t nbytes = 0;
    Message message;
    std::weak_ptr<Endpoint> endpoint; // The lane gets its credit back; a queued notification keeps no lane alive.
};

} // namespace zerohop
