// Controls the software cuFile that tests run on, beyond what cuFile's own functions offer. Its functions are plain C,
// so that Python's tests call them, too.
//
// The library has the name of libcufile and takes its place over GPUs in software (fake_cuda). It reads and writes by
// the descriptor that was registered, which must have O_DIRECT, and refuses ranges that are not aligned: those must not
// come.
#pragma once

#include <cstddef>

#define FAKE_CUFILE extern "C" [[gnu::visibility("default")]]

// Forgets what the other functions have set, and closes the driver. Files stay registered.
FAKE_CUFILE void fake_cufile_reset();
// Has opening the driver fail with this code; the variable FAKE_CUFILE_REFUSES sets it when the library is loaded.
FAKE_CUFILE void fake_cufile_refuse_driver(int code);
// Opens the driver as another library would, with its compatibility mode.
FAKE_CUFILE void fake_cufile_open_by_other();
// Has registering files fail with this code.
FAKE_CUFILE void fake_cufile_refuse_files(int code);
// Has so many of the next reads and writes move nothing, and return this, with this errno.
FAKE_CUFILE void fake_cufile_fail(int count, long result, int error);
// Has reads and writes move at most so many bytes; 0: all.
FAKE_CUFILE void fake_cufile_stop_short(size_t nbytes);
// Has reads and writes wait, until it is told to let them go on.
FAKE_CUFILE void fake_cufile_hold(bool hold);
// Return the reads and writes that wait, the calls of both so far, and the files that are registered.
FAKE_CUFILE int fake_cufile_held();
FAKE_CUFILE int fake_cufile_calls();
FAKE_CUFILE int fake_cufile_files();
