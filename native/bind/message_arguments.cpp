// Reads the arguments of the methods of tagged messages.
#include "bind/messages.hpp"

namespace zerohop::bind {

namespace {

constexpr uint64_t kMostTag = UINT32_MAX;

// Reads a tag or a rank; nothing, perhaps with Python's error set, unless it is an int of Python's of at most this.
std::optional<uint64_t> read_number(PyObject* given, uint64_t most) {
    const uint64_t value = number(given);
    return value <= most ? std::optional(value) : std::nullopt;
}

} // namespace

bool read_memory(const Messages& messages, PyObject* object, nb::object& memory, LocalRange& local) {
    const Layout* const known = layout();
    if (known == nullptr) {
        return false;
    }
    memory = nb::borrow(object);
    if (!is(object, known->range)) {
        const nb::object find = messages.known; // kept: another thread may stop the posting while Python runs
        const nb::object core = messages.core;
        PyObject* const arguments[] = {core.ptr(), object};
        memory = nb::steal(PyObject_Vectorcall(find.ptr(), arguments, 2, nullptr));
        if (!memory.is_valid()) {
            return false;
        }
    }
    return read_local(*known, messages.core.ptr(), memory.ptr(), local);
}

bool read_target(const Messages& messages, PyObject* object, nb::object& memory, LocalRange& local) {
    return read_memory(messages, object, memory, local) && !local.readonly && !local.region->readonly();
}

bool read_source(const Messages& messages, PyObject* object, Source& source) {
    if (PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) <= Py_ssize_t{framed::kEagerBytes}) {
        source.memory = nb::borrow(object);
        source.bytes = PyBytes_AS_STRING(object);
        source.local.nbytes = static_cast<uint64_t>(PyBytes_GET_SIZE(object));
        return true;
    }
    return read_memory(messages, object, source.memory, source.local) && source.local.region->is_host();
}

std::optional<Address> read_address(const Messages& messages, PyObject* to, PyObject* tag_given, bool in_turn) {
    const std::optional<uint64_t> rank = read_number(to, kMostRanks);
    const std::optional<uint64_t> tag = read_number(tag_given, kMostTag);
    if (!rank || !tag || *rank >= messages.receivers.size()) {
        return std::nullopt;
    }
    const Receiver& receiver = messages.receivers[*rank];
    std::shared_ptr<Endpoint> endpoint = receiver.endpoint.lock();
    if (!messages.engine || !endpoint || !receiver.is_free(in_turn)) {
        return std::nullopt;
    }
    return Address{messages.engine, std::move(endpoint), receiver.path, receiver.in_memory,
                   Envelope{receiver.mailbox, messages.rank, static_cast<uint32_t>(*tag)}};
}

std::optional<Wanted> read_wanted(const Messages& messages, PyObject* source, PyObject* tag) {
    Wanted wanted;
    if (source != Py_None) {
        const std::optional<uint64_t> rank = read_number(source, kMostRanks);
        // A rank that is waited for has to be reached, so that its end is noticed, and told that this one waits.
        const std::shared_ptr<Endpoint> endpoint =
            rank && *rank < messages.receivers.size() ? messages.receivers[*rank].endpoint.lock() : nullptr;
        if (!endpoint || !endpoint->state().ok() || PySet_Contains(messages.greeted.ptr(), source) != 1) {
            return std::nullopt;
        }
        wanted.source = static_cast<int64_t>(*rank);
    }
    if (tag != Py_None) {
        const std::optional<uint64_t> number = read_number(tag, kMostTag);
        if (!number) {
            return std::nullopt;
        }
        wanted.tag = static_cast<int64_t>(*number);
    }
    return wanted;
}

Request request_of(Source& source, const Envelope& envelope, uint64_t timeout_ns) {
    Request request;
    request.kind = Kind::send;
    request.envelope = &envelope;
    request.local = std::move(source.local.region);
    request.bytes = source.bytes;
    request.local_offset = source.local.offset;
    request.nbytes = source.local.nbytes;
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    return request;
}

bool leave_to_python() {
    if (PyErr_Occurred() != nullptr &&
        (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(PyExc_MemoryError) != 0)) {
        return false;
    }
    PyErr_Clear();
    return true;
}

} // namespace zerohop::bind
