// Lets calls of sockets wait no longer than they may, and hear signals meanwhile, for the floors over sockets.
#pragma once

#include "common.hpp"

namespace floors {

// Lets send() and recv() wait a short time at most, after which this side looks for signals.
void limit_calls(int fd);

// Call it when send() or recv() has failed: returns if the call is to be made again. The first failure of a message
// sets the deadline, so that a message that comes at once reads no clock.
void go_on_waiting(int64_t& deadline_ns, double timeout, const char* call);

} // namespace floors
