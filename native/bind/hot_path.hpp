// Posts transfers whose path is known: from Python objects to a native request, and from there to the Operation.
#pragma once

#include "bind/poster.hpp"

namespace zerohop::bind {

// Everything that a Context or a face posts with.
struct Posting : Posts {
    void stop() override {
        engine.reset();
        link.reset(); // the link may keep the object itself alive
    }
    int traverse(visitproc visit, void* arg) const override {
        return visit_all({&core, &in_flight, &finished, &prepare, &write, &write_many, &read, &link}, visit, arg);
    }
    std::shared_ptr<Engine> engine;
    nb::object core;      // the core of the Context
    nb::object in_flight; // the class of operations that end later
    nb::object finished;  // the class of operations that end within the call
    // Takes the core, an object that is no Memory, and the handle of the other side. Returns a Memory of the object,
    // with its route, if both are known; else None.
    nb::object prepare;
    // Functions that do the rest; they take the object itself and the same arguments.
    nb::object write;
    nb::object write_many;
    nb::object read;
    uint64_t timeout_ns = 0;
    // A face that has one peer gives the link to it, the queue of the peer that is notified, and the group of its
    // operations. Its transfers may be shorter than the remote range.
    nb::object link;
    uint16_t queue = 0;
    std::shared_ptr<OperationGroup> group;
};

// Arguments of a call, by their Python objects; null if the caller gave none.
struct Arguments {
    PyObject* notify = nullptr;
    PyObject* timeout = nullptr;
};

// Both post and set `operation`, to null with an error of Python's set where one was raised. They return false, without
// such an error, if they posted nothing: because an argument is not plain, the path is not known, or the lane is full.
// The long way through Python then posts or raises.
[[nodiscard]] bool post_one(const Posting& posting, Kind kind, PyObject* local, PyObject* remote,
                            const Arguments& arguments, PyObject*& operation);
[[nodiscard]] bool post_many(const Posting& posting, PyObject* pairs, const Arguments& arguments, PyObject*& operation);

} // namespace zerohop::bind
