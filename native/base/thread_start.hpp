// Prepares a thread of ours for what it may meet later.
#pragma once

#include <exception>

namespace zerohop {

// Has the C++ library make the thread's state for exceptions. It would do so at the first throw, and end the process if
// there is no memory left then; the exception may be of just that.
inline void prepare_for_exceptions() {
    [[maybe_unused]] const volatile int none = std::uncaught_exceptions(); // pure, so that its value must be wanted
}

} // namespace zerohop
