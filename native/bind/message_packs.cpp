// Many short messages in one call: they travel several in a frame.
#include "base/guarded.hpp"
#include "bind/messages.hpp"

#include <cstring>

namespace zerohop::bind {

namespace {

constexpr Py_ssize_t kSendManyArguments = 6;

// Holds short messages that go in one frame (framed/frame.hpp).
class Pack {
public:
    [[nodiscard]] bool has_room(uint64_t nbytes) const {
        return count() < framed::kMostPacked &&
               sizeof(uint16_t) * (count() + 1) + bytes_.size() + nbytes <= framed::kEagerBytes;
    }
    // Copies a message; false if its memory is gone, or has moved.
    [[nodiscard]] bool add(const Source& source) {
        const size_t before = bytes_.size();
        bytes_.resize(before + source.local.nbytes);
        std::byte* const to = bytes_.data() + before;
        bool copied = true;
        if (source.bytes != nullptr) {
            std::memcpy(to, source.bytes, source.local.nbytes);
        } else {
            Pin<Region> pin;
            copied = pin_local(source.local.region, pin).ok() &&
                     copy_guarded(to, pin->host() + source.local.offset, source.local.nbytes) == Gone::nothing &&
                     !pin->moved();
        }
        if (copied) {
            lengths_.push_back(static_cast<uint16_t>(source.local.nbytes));
        } else {
            bytes_.resize(before);
        }
        return copied;
    }
    [[nodiscard]] size_t count() const { return lengths_.size(); }
    // Posts the messages; false if there was no room, or they were refused.
    [[nodiscard]] bool post(const Address& to, uint64_t timeout_ns, bool nowait) {
        const auto* const lengths = reinterpret_cast<const std::byte*>(lengths_.data());
        std::vector<std::byte> frame(lengths, lengths + sizeof(uint16_t) * count());
        frame.insert(frame.end(), bytes_.begin(), bytes_.end());
        Request request;
        request.kind = Kind::send;
        request.envelope = &to.envelope;
        request.bytes = frame.data();
        request.nbytes = frame.size();
        request.packed = static_cast<uint32_t>(count());
        request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
        lengths_.clear();
        bytes_.clear();
        return to.engine->post(*to.endpoint, request, nowait).what == Posted::What::done;
    }

private:
    std::vector<uint16_t> lengths_;
    std::vector<std::byte> bytes_;
};

// Sends messages of at most kMostInPack bytes. Counts those that were sent, from the first on; returns false if there
// was no room for the next one, or it was refused.
bool send_packs(const Address& to, const std::vector<Source>& sources, uint64_t timeout_ns, bool nowait, size_t& sent) {
    Pack pack;
    const auto post = [&] {
        const size_t count = pack.count();
        const bool done = count == 0 || pack.post(to, timeout_ns, nowait);
        sent += done ? count : 0;
        return done;
    };
    for (const Source& source : sources) {
        if (!pack.has_room(source.local.nbytes) && !post()) {
            return false;
        }
        if (!pack.add(source)) {
            (void)post();
            return false;
        }
    }
    return post();
}

} // namespace

// Takes a tuple of memories, the rank, the tag, the seconds or None, whether to wait for room, and whether the turn of
// these messages has come. Returns how many were sent, from the first on: none unless all are plain and short.
PyObject* send_many(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    Messages* const messages = messages_of(object);
    if (count != kSendManyArguments || messages == nullptr || !PyTuple_CheckExact(args[0])) {
        return PyLong_FromLong(0);
    }
    std::vector<Source> sources;
    uint64_t timeout_ns = messages->timeout_ns;
    bool plain = read_timeout(args[3], timeout_ns);
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(args[0]); ++i) {
        Source source;
        plain = read_source(*messages, PyTuple_GET_ITEM(args[0], i), source) && source.local.nbytes <= kMostInPack;
        if (plain) {
            sources.push_back(std::move(source));
        }
    }
    const std::optional<Address> to =
        !plain ? std::nullopt : read_address(*messages, args[1], args[2], args[5] == Py_True);
    if (PyErr_Occurred() != nullptr) { // Python finds the same; but a signal's handler is to be heard
        if (!leave_to_python()) {
            return nullptr;
        }
    }
    size_t sent = 0;
    if (to) {
        (void)posted_by(false, [&] { return send_packs(*to, sources, timeout_ns, args[4] != Py_True, sent); });
    }
    return PyLong_FromSize_t(sent);
}

} // namespace zerohop::bind
