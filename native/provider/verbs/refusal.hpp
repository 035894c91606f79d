// What the library or a device means by an errno.
#pragma once

#include "base/status.hpp"

#include <string>

namespace zerohop::verbs {

// Whether the kernel counts what this process locks against a limit.
[[nodiscard]] bool locking_is_limited();
// unsupported without a reason is for good; every other refusal may pass.
[[nodiscard]] Outcome refusal_of(int error, bool limited = locking_is_limited());
// Throws NativeError: what could not be done, and errno in words.
[[noreturn]] void raise(const std::string& what, int error);

} // namespace zerohop::verbs
