// Declares the parts that the bindings of files and those of their rings share.
#pragma once

#include "bind/common.hpp"
#include "bind/indices.hpp"
#include "storage/file_queue.hpp"
#include "storage/sinks.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zerohop::bind {

struct PyOpenFile {
    std::shared_ptr<storage::OpenFile> file;
};

struct PyMoved {
    std::shared_ptr<const storage::Moved> moved;
};

// The engine and its queue, for the length of a call.
struct Held {
    std::shared_ptr<Engine> engine; // destroyed after the queue
    std::shared_ptr<storage::FileQueue> queue;
};

// Keeps neither alive: the engine has the queue until that is closed, and a Store that is closed but kept has nothing.
struct PyFileQueue {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<storage::FileQueue> queue;
    std::string backend;
    uint64_t staging_bytes = 0;
    std::string why_no_uring;

    // Throws NativeError if it is closed.
    [[nodiscard]] std::shared_ptr<Engine> hold_engine() const {
        std::shared_ptr<Engine> held = engine.lock();
        if (!held || held->closed()) {
            throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
        }
        return held;
    }
    // Throws NativeError if either is closed.
    [[nodiscard]] Held hold() const {
        Held held{hold_engine(), queue.lock()};
        if (!held.queue) {
            throw NativeError(Status::closed, Reason::owner_closed, "the Store is closed");
        }
        return held;
    }
};

// A peer's memory that files are read into and written from without a lane.
struct PyReached {
    std::shared_ptr<const RemoteAccess> access;
    uint64_t nbytes = 0;
    uint8_t rights = 0;
};

// Memory of this side, or a peer's: what transfers are prepared with.
struct Target {
    std::shared_ptr<Region> region; // null: a peer's
    PyReached reached;

    // Takes a PyRegion or a PyReached. Throws ValueError if it is closed; TypeError if it is neither.
    static Target of(nb::handle memory);
    // Pins it; if the outcome is not ok, nothing may touch it.
    [[nodiscard]] Outcome pin(Place& place) const;
    // Pins it for a transfer that the rights to it allow.
    [[nodiscard]] Outcome pin_for(bool write, Place& place) const;
    [[nodiscard]] std::shared_ptr<const void> pinned() const { return region ? region : reached.access->pinned(); }
    void drop() { reset_without_gil(region); }
};

// A part of such memory, and the transfers' offsets count from its start.
struct Part {
    Target target;
    uint64_t offset = 0;
    uint64_t nbytes = 0;

    // Takes a PyRegion or a PyReached. Throws ValueError if it is closed, or does not have the part; TypeError if it is
    // neither.
    static Part of(nb::handle memory, uint64_t offset, uint64_t nbytes);
};

// Takes arrays of numbers. Where userdata is None each range has its own position. Throws ValueError unless each range
// lies within the part, and its bytes of the file can have numbers.
std::vector<storage::Range> ranges_of(const Part& part, nb::handle file_offsets, nb::handle memory_offsets,
                                      nb::handle lengths, nb::handle userdata);

void register_file_rings(nb::class_<PyFileQueue>& queue, nb::module_& m);

} // namespace zerohop::bind
