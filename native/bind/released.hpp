// Giving the interpreter up while native code waits or copies.
//
// When the interpreter ends it kills the threads that ask for it again, by unwinding their stacks, and C++ destructors
// do not let that pass: the process aborts. So threads that are inside are given the time to come out before the
// interpreter ends, and whoever comes out later than that waits for the end of the process here.
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

    // On the thread that ends the interpreter, which goes on as before: waits, at most so long, for all other threads
    // to come out, and lets none in again.
    static void interpreter_exits(uint64_t limit_ns);
    // In a forked child: the threads that were inside are not there, and nobody must wait for them.
    static void interpreter_forked();

private:
    PyThreadState* state_;
};

} // namespace zerohop::bind
