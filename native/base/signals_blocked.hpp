// Threads of our own take none of the process's signals.
#pragma once

#include <csignal>

namespace zerohop {

// While one lives, the threads that are started inherit the mask. Signals of the process are for the threads of the
// program: a SIGINT that lands in one of ours would interrupt nobody. Faults stay open, so that a crash handler still
// reports them.
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
