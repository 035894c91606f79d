// Memory registered with a device of a provider: what its keys are.
#pragma once

#include <cstdint>
#include <string>

namespace zerohop {

// Ends with its destruction, which returns when the device cannot touch the memory any more.
class Registration {
public:
    virtual ~Registration() = default;
    [[nodiscard]] virtual uint32_t local_key() const = 0;
    [[nodiscard]] virtual uint32_t remote_key() const = 0;
    // The way that was taken, and those that had failed before it, in words.
    [[nodiscard]] virtual const std::string& how() const = 0;
};

} // namespace zerohop
