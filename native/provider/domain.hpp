// The contract of a domain: an opened device of a provider whose fabric is made of devices. Its lanes share it.
#pragma once

#include "base/pollable.hpp"
#include "memory/region.hpp"
#include "memory/registration.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace zerohop {

using DomainOptions = std::map<std::string, int64_t>;

class Domain : public std::enable_shared_from_this<Domain> {
public:
    Domain(const char* provider, std::string device, int port, int number)
        : provider_(provider), device_name_(std::move(device)), port_(port), number_(number) {}
    virtual ~Domain() = default;
    [[nodiscard]] const char* provider() const { return provider_; }
    [[nodiscard]] const std::string& device() const { return device_name_; }
    [[nodiscard]] int port() const { return port_; }
    [[nodiscard]] int number() const { return number_; } // no other domain of the engine has it
    // Any thread. True if lanes can be made over it now.
    [[nodiscard]] virtual bool alive() const = 0;
    // Any thread. True if the device has failed for good, and its lanes know: only a new domain can use it again.
    [[nodiscard]] virtual bool lost() const = 0;
    [[nodiscard]] virtual std::map<std::string, std::variant<int64_t, double, std::string>> facts() const = 0;
    // Replaces the options of lanes that are made from now on. Throws NativeError.
    virtual void retune(const DomainOptions& options) = 0;
    // Any thread. Registers [address, address + nbytes) of the region for what `rights` let a peer do; without rights,
    // for this process alone. Throws NativeError whose text tells every way that was tried.
    [[nodiscard]] virtual std::shared_ptr<Registration> reg(Region& region, uint64_t address, uint64_t nbytes,
                                                            uint8_t rights) = 0;

    // Poller. Hands completions to all lanes of the device.
    virtual Found poll() = 0;
    // Messages that come in wake a sleeper; so do, if asked for, the ends of requests, which need nobody's help.
    enum class Happening : uint8_t { arrivals, arrivals_and_ends };
    // Any thread. Has such a happening make a watched descriptor readable; true if one may have come before.
    virtual bool arm(Happening what) = 0;
    // Any thread. Takes what a watched descriptor says, which disarms it.
    virtual void woken() = 0;
    // Any thread. True if such a happening would wake nobody.
    [[nodiscard]] virtual bool unarmed(Happening what) const = 0;
    // Poller. True if poll() has put completions aside, because their lane was being posted to: a device tells them
    // once.
    [[nodiscard]] virtual bool keeps_ends() const = 0;
    // Poller. Hands out the completions that were put aside, and waits for the lanes' locks to do so.
    virtual void settle() = 0;

private:
    const char* const provider_;
    const std::string device_name_;
    const int port_;
    const int number_;
};

} // namespace zerohop
