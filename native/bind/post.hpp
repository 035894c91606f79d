// Posting from Python: the calls that are made once for each operation.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

// Writes or reads one range; `request` has its deadline. Throws NativeError, or ValueError for a range that is not
// there. With the interpreter held, which is given up where that is worth it.
[[nodiscard]] Posted post_range(Engine& engine, uint64_t route, Kind kind, uint64_t local_offset,
                                uint64_t remote_offset, uint64_t nbytes, int64_t notify, Request& request, bool nowait);

// Writes ranges of the local memory to ranges of the remote one, `nbytes` in all; null: of no bytes. As post_range().
[[nodiscard]] Posted post_ranges(Engine& engine, uint64_t route, std::shared_ptr<const PageList> ranges,
                                 uint64_t nbytes, int64_t notify, Request& request, bool nowait);

void def_posts(nb::class_<Engine>& engine);

} // namespace zerohop::bind
