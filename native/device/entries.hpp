// Reads the entries that kernels have posted to a FIFO.
#pragma once

#include "zerohop/device/layout.hpp"

#include <cstdint>
#include <optional>

namespace zerohop::device {

// An entry, taken apart. Nothing of it was checked.
struct Decoded {
    Op op = Op::none;
    uint32_t peer = 0;
    uint64_t place = 0;  // in the peer's memory
    uint32_t local = 0;  // put, get
    uint64_t source = 0; // put, get: the place in the local
    uint64_t nbytes = 0; // put, get
    uint64_t value = 0;  // the other ones
};

[[nodiscard]] constexpr Decoded take_apart(const Entry& entry) {
    constexpr auto below = [](unsigned bits) { return (uint64_t{1} << bits) - 1; };
    Decoded found;
    found.op = static_cast<Op>(entry.first >> kOpAt & below(4));
    found.peer = static_cast<uint32_t>(entry.first >> kPeerAt & below(kPeerBits));
    found.place = entry.first >> kPlaceAt & below(kOffsetBits);
    if (found.op == Op::put || found.op == Op::get) {
        found.local = static_cast<uint32_t>(entry.first >> kLocalAt & below(kLocalBits));
        found.source = entry.second >> kSourceAt & below(kOffsetBits);
        found.nbytes = (entry.second & below(kSourceAt)) << 2 | (entry.first & 3);
    } else {
        found.value = (entry.second & ~kLap) | (entry.first & 1) << 63;
    }
    return found;
}

// The FIFO of a Queue, from the end of the host. Kernels write to its memory at any time.
class Fifo {
public:
    Fifo(Entry* entries, uint64_t slots) : entries_(entries), slots_(slots) {}

    // Returns the next entry and moves on; nothing if it was not written yet.
    [[nodiscard]] std::optional<Decoded> take() {
        const Entry* at = entries_ + (taken_ & (slots_ - 1));
        const Word lap = lap_of(taken_, slots_);
        // Both words have the bit, so they may be seen in any order; what was written before them is seen after them.
        const Entry entry{__atomic_load_n(&at->first, __ATOMIC_ACQUIRE),
                          __atomic_load_n(&at->second, __ATOMIC_ACQUIRE)};
        if ((entry.first & kLap) != lap || (entry.second & kLap) != lap) {
            return std::nullopt;
        }
        ++taken_;
        return take_apart(entry);
    }
    [[nodiscard]] uint64_t taken() const { return taken_; }

private:
    Entry* entries_;
    uint64_t slots_;
    uint64_t taken_ = 0;
};

} // namespace zerohop::device
