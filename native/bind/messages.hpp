// Declares the parts that the native methods of tagged messages share: the state to post with, and readers of Python's
// arguments.
//
// Where a function says that something is not plain, nothing was done: Python then posts, or says what is wrong.
#pragma once

#include "bind/in_flight.hpp"
#include "bind/poster.hpp"
#include "bind/slots.hpp"
#include "provider/framed/tuning.hpp"

#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace zerohop::bind {

// Above this size a copy takes longer than handing the interpreter to another thread.
inline constexpr uint64_t kHoldGilBytes = 4096;
inline constexpr uint64_t kMostRanks = uint64_t{1} << 20;
// Longest message that goes in a frame with others.
inline constexpr uint64_t kMostInPack = framed::kEagerBytes - sizeof(uint16_t);

// A rank that messages reach without more ado.
struct Receiver {
    std::weak_ptr<Endpoint> endpoint; // gone: not known; weak, because a lane that is down, and its ring, are to go
    bool in_memory = false;           // a send makes no system call, so that it need not give up Python's GIL
    uint64_t mailbox = 0;
    nb::object path;
    // Dictionaries with a key each, whose value is false or missing unless earlier messages wait: for their turn, and
    // for room.
    std::pair<nb::object, nb::object> turn;
    std::pair<nb::object, nb::object> room;

    // `in_turn`: the message waits for its turn itself, which has come.
    [[nodiscard]] bool is_free(bool in_turn) const { return (in_turn || is_open(turn)) && is_open(room); }

private:
    static bool is_open(const std::pair<nb::object, nb::object>& gate) {
        PyObject* const value = PyDict_GetItemWithError(gate.first.ptr(), gate.second.ptr());
        return value == nullptr ? PyErr_Occurred() == nullptr : PyObject_IsTrue(value) == 0;
    }
};

// Holds the state with which the messages of one mailbox are posted.
struct Messages : Posts {
    void stop() override {
        receivers.clear();
        engine.reset();
    }
    int traverse(visitproc visit, void* arg) const override {
        int answer =
            visit_all({&core, &in_flight, &finished, &receive, &message, &losses, &greeted, &known}, visit, arg);
        for (const Receiver& each : receivers) {
            answer =
                answer != 0
                    ? answer
                    : visit_all({&each.path, &each.turn.first, &each.turn.second, &each.room.first, &each.room.second},
                                visit, arg);
        }
        return answer;
    }
    std::shared_ptr<Engine> engine;
    nb::object core;
    nb::object in_flight; // the class of sends that end later
    nb::object finished;  // the class of sends that end within the call
    nb::object receive;   // the class of receives
    Slot source_of;       // its attributes: the rank, and why each lost rank is gone
    Slot losses_of;
    nb::object message; // the class of their values
    nb::object losses;
    nb::object greeted; // the set of ranks that were told that this one waits for them
    nb::object known;   // takes the core and an object; returns a Memory of it if it is registered already, else None
    uint64_t mailbox = 0;
    uint32_t rank = 0;
    uint64_t timeout_ns = 0;
    std::vector<Receiver> receivers; // by rank
};

// Names what a message is sent from: memory, or a bytes object that is copied at once.
struct Source {
    nb::object memory; // keeps it
    LocalRange local;
    const void* bytes = nullptr;
};

// Names where messages go to: what is needed of a receiver while the GIL is given up, and others forget it.
struct Address {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Endpoint> endpoint;
    nb::object path;
    bool in_memory = false;
    Envelope envelope;
};

// Reads the memory of a message; `memory` keeps it if the object is an array. Returns false, perhaps with Python's
// error set, if the memory is not plain.
[[nodiscard]] bool read_memory(const Messages& messages, PyObject* object, nb::object& memory, LocalRange& local);
// Reads the memory that a message is received into, as read_memory() does.
[[nodiscard]] bool read_target(const Messages& messages, PyObject* object, nb::object& memory, LocalRange& local);
// Reads what a message is sent from, as read_memory() does. Only memory of the host is plain.
[[nodiscard]] bool read_source(const Messages& messages, PyObject* object, Source& source);
// Reads a rank and a tag. Returns nothing, perhaps with Python's error set, unless messages may go there at once.
[[nodiscard]] std::optional<Address> read_address(const Messages& messages, PyObject* to, PyObject* tag,
                                                  bool in_turn = false);
// Reads which messages a receive takes: by a rank or None, and a tag or None. Returns nothing, perhaps with Python's
// error set, if a number is wrong, or more has to be done for that rank than to post.
[[nodiscard]] std::optional<Wanted> read_wanted(const Messages& messages, PyObject* source, PyObject* tag);
// Clears Python's error, because Python finds it again, and returns true; false if it is one of a signal's handler.
[[nodiscard]] bool leave_to_python();

// Calls something that posts, without the GIL where that takes long; nothing if it throws: Python's way raises the
// same, with all its details.
template <class Post> auto posted_by(bool hold, const Post& post) -> std::optional<decltype(post())> {
    try {
        if (hold) {
            return post();
        }
        const Released release;
        return post();
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

// Tells whether a message is posted without giving up the GIL: it is short, and no system call is made.
inline bool holds_gil(const Address& to, uint64_t nbytes) {
    return to.in_memory && nbytes <= kHoldGilBytes;
}

// Posts a message. With the GIL it does not look for room: a look polls all lanes, and may wait for Python.
inline Posted posted_to(const Address& to, const Request& request) {
    return holds_gil(to, request.nbytes) ? to.engine->try_post(*to.endpoint, request)
                                         : to.engine->post(*to.endpoint, request, true);
}

// Makes the request of a message. The envelope lives as long as the request.
[[nodiscard]] Request request_of(Source& source, const Envelope& envelope, uint64_t timeout_ns);
// The method that sends many messages (message_packs.cpp).
[[nodiscard]] PyObject* send_many(PyObject* object, PyObject* const* args, Py_ssize_t count);

// Returns what the methods of an object post with; null once they do not.
[[nodiscard]] inline Messages* messages_of(PyObject* object) {
    auto* const messages = static_cast<Messages*>(reinterpret_cast<Poster*>(object)->posts);
    return messages != nullptr && messages->engine ? messages : nullptr;
}

} // namespace zerohop::bind
