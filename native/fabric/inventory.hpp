// The RDMA devices of this machine, as the verbs library tells them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace zerohop::fabric {

// By the names that Python gives them.
using Facts = std::map<std::string, std::variant<int64_t, uint64_t, std::string>>;

struct DeviceFacts {
    Facts device; // a "why_not" that is not empty: it could not be opened, and nothing but its name is known
    std::vector<Facts> ports;
};

// Opens each device, asks it, and closes it again. Throws NativeError if libibverbs is missing.
[[nodiscard]] std::vector<DeviceFacts> devices();

// Why queues of this machine's devices cannot be written directly; never empty in this version.
[[nodiscard]] std::string why_not_direct();

} // namespace zerohop::fabric
