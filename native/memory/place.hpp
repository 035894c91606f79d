// Memory that this process reaches by itself, for the length of one transfer: its own, or a peer's that is mapped here
// or that a device of this process copies to and from.
#pragma once

#include "base/pinned.hpp"
#include "base/status.hpp"
#include "memory/region.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zerohop {

struct Place {
    Pin<Pinnable> pin;
    std::byte* host = nullptr; // null: a device's memory
    int device = kHostDevice;
    uint64_t address = 0; // for the device
    size_t nbytes = 0;
    const void* identity = nullptr; // of the object that is pinned
    bool foreign = false;           // a peer's
};

// Pins memory of this side. If the outcome is not ok, nothing may touch it.
[[nodiscard]] inline Outcome pin_place(const std::shared_ptr<Region>& region, Place& place) {
    Pin<Region> pin;
    if (const Outcome pinned = pin_local(region, pin); !pinned.ok()) {
        return pinned;
    }
    place = {.pin = std::move(pin),
             .host = region->is_host() ? region->host() : nullptr,
             .device = region->device(),
             .address = region->address(),
             .nbytes = region->nbytes(),
             .identity = region.get()};
    return {};
}

} // namespace zerohop
