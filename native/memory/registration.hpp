// Defines the registration of memory with a provider's device, as its users see it: its keys.
#pragma once

#include <cstdint>
#include <string>

namespace zerohop {

// Its destructor ends the registration, and returns when the device cannot touch the memory any more.
class Registration {
public:
    virtual ~Registration() = default;
    [[nodiscard]] virtual uint32_t local_key() const = 0;
    [[nodiscard]] virtual uint32_t remote_key() const = 0;
    // Returns, in words, the way of registering that was taken, and those that failed before it.
    [[nodiscard]] virtual const std::string& how() const = 0;
};

} // namespace zerohop
