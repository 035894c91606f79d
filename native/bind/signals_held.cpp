#include "bind/signals_held.hpp"

#include "bind/common.hpp"

namespace zerohop::bind {

namespace {

std::array<volatile std::sig_atomic_t, 65> came;

void note(int number) {
    came[static_cast<size_t>(number)] = 1;
}

// Returns true for what comes of the thread's own mistakes: to come back from its handler would not help.
bool is_fault(int number) {
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGABRT ||
           number == SIGTRAP || number == SIGSYS;
}

} // namespace

SignalsHeld::SignalsHeld() {
    for (int number = 1; number < kSignals; ++number) {
        const auto index = static_cast<size_t>(number);
        struct sigaction& before = before_[index];
        if (is_fault(number) || sigaction(number, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
            before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
            continue; // it is nobody's, or cannot be Python's
        }
        struct sigaction held = before;
        held.sa_handler = &note;
        came[index] = 0;
        held_[index] = sigaction(number, &held, nullptr) == 0;
    }
    if (PyErr_CheckSignals() != 0) { // of signals that came before; only now, because more may have come up to here
        release();
        throw nb::python_error();
    }
}

SignalsHeld::~SignalsHeld() {
    release();
}

void SignalsHeld::release() {
    for (int number = 1; number < kSignals; ++number) {
        const auto index = static_cast<size_t>(number);
        if (held_[index]) {
            sigaction(number, &before_[index], nullptr);
            if (came[index] != 0) {
                static_cast<void>(raise(number));
            }
        }
    }
}

} // namespace zerohop::bind
