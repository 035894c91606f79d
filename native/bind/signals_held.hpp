// Holds signals back from Python's handlers while native code runs that may not be interrupted.
//
// nanobind makes enumerations by running code of Python's, where handlers run, too; and it ends the process where that
// code raises, as the handler of Ctrl-C does.
#pragma once

#include <array>
#include <csignal>

namespace zerohop::bind {

class SignalsHeld {
public:
    // Throws what a handler raises whose signal has come before.
    SignalsHeld();
    // Raises the signals that have come meanwhile, for the handlers to run soon.
    ~SignalsHeld();
    SignalsHeld(const SignalsHeld&) = delete;
    SignalsHeld& operator=(const SignalsHeld&) = delete;

private:
    void release();

    static constexpr int kSignals = 65;
    std::array<struct sigaction, kSignals> before_{}; // of those that `held_` says
    std::array<bool, kSignals> held_{};
};

} // namespace zerohop::bind
