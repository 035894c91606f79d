#include "provider/tcp/flow.hpp"

#include "provider/tcp/socket_stream.hpp"
#include "provider/tcp/tls_stream.hpp"

#include <new>
#include <utility>

namespace zerohop::tcp {

using framed::FrameHeader;
using framed::FrameKind;

namespace {

// Slices that take everything that the kernel may have for a flow when its peer goes.
constexpr int kLastSlices = 64;

} // namespace

std::unique_ptr<framed::ByteStream> make_stream(int fd, Watcher& watcher, std::string_view tls) {
    Descriptor socket = Descriptor::duplicate(fd);
    if (tls.empty()) {
        return std::make_unique<SocketStream>(std::move(socket), watcher);
    }
    return std::make_unique<TlsStream>(std::move(socket), watcher, tls);
}

Flow::Flow(Host& host, std::shared_ptr<Peer> peer, BulkThread& thread)
    : FramedEndpoint("tcp", {}, host, std::move(peer), &thread), thread_(thread) {
    sent_by_post = 0; // parts are large, and posted for all flows at once
}

void Flow::connect(const Address& remote) {
    check_unconnected();
    start(make_stream(remote.fds.at(0), thread_, remote.bytes));
    thread_.add(std::static_pointer_cast<Flow>(shared_from_this()));
}

void Flow::post_part(const Request& request, const std::shared_ptr<framed::Whole>& whole) {
    Posted posted;
    try {
        posted = post_one_sided(request, whole);
    } catch (const std::bad_alloc&) {
        posted.outcome = kLaneOutOfMemory; // the other parts go on
    }
    if (posted.what == Posted::What::posted) {
        thread_.kick();
    } else {
        whole->part_ended(posted.outcome);
    }
}

bool Flow::has_room() {
    const std::lock_guard lock(lane());
    return !requests().full();
}

void Flow::fail(Outcome outcome) {
    FramedEndpoint::fail(outcome);
    thread_.kick(); // whoever found it need not be the thread that acts upon it
}

bool Flow::takes(const FrameHeader& header) const {
    switch (header.kind) {
    case FrameKind::write:
    case FrameKind::read_data:
    case FrameKind::read:
    case FrameKind::ack:
    case FrameKind::ping:
    case FrameKind::leave:
        return !header.has(framed::kNotify);
    default:
        return false;
    }
}

bool Flow::move() {
    const std::lock_guard lock(polling_);
    try {
        return poll_frames();
    } catch (const std::bad_alloc&) {
        fail(kLaneOutOfMemory);
        return true;
    }
}

bool Flow::waits_for_device() const {
    return backlog(0, false).look_in_ns != UINT64_MAX;
}

void Flow::settle_down() {
    {
        const std::lock_guard lock(polling_);
    }
    quiesce();
}

void Flow::end(Outcome outcome) {
    // Bytes that the peer sent before it went still count.
    for (int slice = 0; slice < kLastSlices && outcome.status != Status::closed && poll_frames(); ++slice) {
    }
    close(outcome);
}

bool Flow::has_nothing() const {
    const std::lock_guard lock(polling_);
    return idle();
}

void Flow::look(uint64_t now) {
    const std::unique_lock lock(polling_, std::try_to_lock);
    if (lock.owns_lock()) {
        tick(now);
    }
}

} // namespace zerohop::tcp
