// Keeps the process's signals away from the library's own threads.
#pragma once

#include <csignal>

namespace zerohop {

// Blocks signals in this thread while the object lives; threads that are started meanwhile inherit the mask. Signals of
// the process are for the program's threads: a SIGINT taken by one of ours would interrupt nobody. Faults stay
// unblocked, so that a crash handler still reports them.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
            sigdelset(&all, fault);
        }
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_{};
};

} // namespace zerohop
