// Declares the parts that the bindings of files and those of their rings share.
#pragma once

#include "bind/common.hpp"
#include "bind/indices.hpp"
#include "storage/file_asking.hpp"
#include "storage/file_queue.hpp"
#include "storage/sinks.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

// Keeps neither alive: the engine has the other until that is closed, or the server has ended.
struct PyFileAsking {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<storage::FileAsking> asking;

    // The second is null once it is closed.
    [[nodiscard]] std::pair<std::shared_ptr<Engine>, std::shared_ptr<storage::FileAsking>> hold() const {
        std::shared_ptr<Engine> held = engine.lock(); // destroyed after the other
        return {held, held && !held->closed() ? asking.lock() : nullptr};
    }
};

struct PyServedNumber {
    std::shared_ptr<const storage::ServedNumber> number;
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

// Transfers of one file and one memory that are to begin, from the first that has not on.
struct Prepared {
    std::shared_ptr<storage::OpenFile> file; // null: a server's
    Target memory;
    std::vector<storage::Range> ranges;
    size_t begun = 0;
    // These are set for a server's file. Both numbers are null where only Python can ask for the transfers.
    std::shared_ptr<const storage::ServedNumber> file_number{};
    std::shared_ptr<const storage::ServedNumber> memory_number{};
    nb::object keep{}; // what Python asks by

    [[nodiscard]] std::span<const storage::Range> first(size_t count) const {
        return std::span<const storage::Range>(ranges).subspan(begun).first(std::min(count, ranges.size() - begun));
    }
};

// Transfers that have begun, and that Python has to ask for by messages.
struct Left {
    nb::object keep; // what Python asks by
    std::vector<storage::Range> ranges;
};

struct PyRing {
    PyFileQueue home; // without a queue if a server carries out the transfers
    std::weak_ptr<storage::FileAsking> asking;
    std::shared_ptr<storage::Ring> ring;
    // One thread at a time uses these: the caller has a lock.
    std::deque<Prepared> prepared;
    size_t prepared_count = 0;
    uint32_t next_index = 0;
    std::vector<Left> left;
    std::vector<nb::object> dropped; // what Python kept for transfers that will not begin
    bool write;
    storage::Priority priority;
    bool is_served;

    PyRing(PyFileQueue queue, std::shared_ptr<storage::Ring> results, bool writes, storage::Priority place,
           bool by_server)
        : home(std::move(queue)), ring(std::move(results)), write(writes), priority(place), is_served(by_server) {}
    PyRing(PyRing&&) noexcept = default;
    PyRing& operator=(PyRing&&) = delete;
    ~PyRing() { drop_prepared(); }

    // Adds transfers, and returns the index of the first; none, and nothing is done, if there is no room.
    [[nodiscard]] std::optional<uint32_t> add(Prepared added);
    // Goes on behind transfers of the first entry that have begun.
    void begun(size_t count);
    void drop_prepared();
};

void register_file_rings(nb::class_<PyFileQueue>& queue, nb::module_& m);
void def_served_rings(nb::class_<PyRing>& ring);
void register_served_files(nb::module_& m);

} // namespace zerohop::bind
