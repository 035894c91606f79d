// Releases the GIL while native code waits or copies.
//
// When the interpreter ends, it kills the threads that ask for the GIL again, by unwinding their stacks. C++
// destructors do not let that pass, and the process would abort. So threads in native code get the time to come out
// before the interpreter ends, and a thread that comes out later waits in the destructor for the end of the process.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace zerohop::bind {

class Released {
public:
    Released();
    ~Released();
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

    // Runs on the thread that ends the interpreter, which goes on as before: waits, at most `limit_ns`, for all other
    // threads to come out, and lets none in again.
    static void interpreter_exits(uint64_t limit_ns);
    // Runs in a forked child: the threads that were in native code do not exist there, and nobody may wait for them.
    static void interpreter_forked();

private:
    PyThreadState* state_;
};

} // namespace zerohop::bind
