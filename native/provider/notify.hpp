// What a notified request tells the peer: 32 bits of the user's, and above them which of the peer's queues they go to,
// 0 being its Context's own. Negative: nothing.
#pragma once

#include <cstdint>

namespace zerohop {

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

} // namespace zerohop
