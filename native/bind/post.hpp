// Posts operations from Python: the calls that are made once per operation.
#pragma once

#include "bind/common.hpp"

#include <functional>

namespace zerohop::bind {

// Writes or reads one range; `request` carries the deadline. Throws NativeError, or ValueError for a range outside the
// memory. The caller holds the GIL; it is released if that is worth it.
[[nodiscard]] Posted post_range(Engine& engine, uint64_t route, Kind kind, uint64_t local_offset,
                                uint64_t remote_offset, uint64_t nbytes, int64_t notify, Request& request, bool nowait);

// Writes or reads ranges of the local memory and of the remote memory, `nbytes` in all; null `ranges`: no bytes.
// Otherwise as post_range().
[[nodiscard]] Posted post_ranges(Engine& engine, uint64_t route, Kind kind, std::shared_ptr<const PageList> ranges,
                                 uint64_t nbytes, int64_t notify, Request& request, bool nowait);

void def_posts(nb::module_& m, nb::class_<Engine>& engine);
// Returns to Python the elapsed nanoseconds if the operation ended inline, else the operation. Throws NativeError if it
// was not posted.
[[nodiscard]] nb::object result(const std::shared_ptr<Engine>& engine, Posted& posted, const Request& request);
// Checks the memory of a message, and has a request name it. Throws ValueError.
void set_memory(Request& request, const PyRegion& region, uint64_t offset, uint64_t nbytes);
// Posts a receive by a call of the engine, without the GIL; null `region`: it has no memory.
[[nodiscard]] nb::object post_receive_by(const std::shared_ptr<Engine>& engine, const PyRegion* region, uint64_t offset,
                                         uint64_t nbytes, uint64_t deadline_ns,
                                         const std::function<Posted(const Request&)>& post);
void def_mailboxes(nb::module_& m, nb::class_<Engine>& engine);

} // namespace zerohop::bind
