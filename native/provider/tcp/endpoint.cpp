#include "provider/tcp/endpoint.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>

namespace zerohop::tcp {

namespace {

// A part is worth waking a thread at either end.
constexpr uint64_t kPartBytes = 512 * 1024;
// Parts begin at multiples of this, as pages do.
constexpr uint64_t kPartAlignment = 4096;

} // namespace

// An operation that this lane's flows carry.
class TcpEndpoint::Split final : public framed::Whole {
public:
    Split(std::shared_ptr<TcpEndpoint> of, OpRef op, const Request& request, size_t parts)
        : Whole(std::move(op)), lane(std::move(of)), reads(request.kind == Kind::read), nbytes(request.nbytes),
          notify(request.notify), message(message_of(request)), left_(parts) {}

    void part_ended(Outcome ended) override {
        Outcome none;
        if (!ended.ok()) {
            outcome_.compare_exchange_strong(none, ended, std::memory_order_acq_rel); // the first one counts
        }
        if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            lane->end_split(*this);
        }
    }
    [[nodiscard]] Outcome outcome() const { return outcome_.load(std::memory_order_acquire); }

    const std::shared_ptr<TcpEndpoint> lane;
    const bool reads;
    const uint64_t nbytes;
    const int64_t notify;
    const Message message;
    uint64_t epoch = 0;

private:
    std::atomic<size_t> left_;
    std::atomic<Outcome> outcome_{};
};

TcpEndpoint::~TcpEndpoint() {
    for (const auto& flow : flows_) {
        flow->leave();
    }
}

// Returns the settings for TLS on one of the sockets; nothing without it.
std::string_view TcpEndpoint::settings_of(const Address& remote, size_t socket) {
    const size_t nbytes = remote.bytes.size() / remote.fds.size();
    return std::string_view(remote.bytes).substr(socket * nbytes, nbytes);
}

// All are held before one ends. The peer ends the whole lane once it sees one of its sockets close, and a flow that its
// thread still looked at would take that for the loss of the peer.
void TcpEndpoint::end(std::span<const std::shared_ptr<Flow>> flows, Outcome outcome) {
    std::vector<std::unique_lock<std::mutex>> held;
    held.reserve(flows.size()); // without memory nothing has changed
    for (const auto& flow : flows) {
        held.push_back(flow->hold());
    }
    for (const auto& flow : flows) {
        flow->end(outcome);
    }
}

void TcpEndpoint::connect(const Address& remote) {
    if (remote.fds.empty()) {
        throw NativeError(Status::unsupported, Reason::malformed, "a tcp lane needs a connected socket");
    }
    check_unconnected();
    if (!flows_.empty()) {
        throw NativeError(Status::closed, Reason::lane_closed, "this lane was to be connected before, and failed");
    }
    try {
        // All threads first: where one is lacking, the peer sees no socket close before it is told why.
        for (size_t i = 1; i < remote.fds.size(); ++i) {
            flows_.push_back(std::make_shared<Flow>(host(), shared_peer(), host().bulk_thread()));
        }
        for (size_t i = 0; i < flows_.size(); ++i) {
            flows_[i]->connect({std::string(settings_of(remote, i + 1)), {remote.fds[i + 1]}});
        }
        start(make_stream(remote.fds[0], host(), settings_of(remote, 0)));
    } catch (...) { // the lane was closed meanwhile, or is to be given up
        end(flows_, {Status::closed, Reason::lane_closed});
        throw;
    }
}

void TcpEndpoint::prepare(const Route& route) {
    FramedEndpoint::prepare(route);
    for (const auto& flow : flows()) {
        flow->prepare(route);
    }
}

// Returns the number of parts in which the flows carry a request; 0 if they do not.
size_t TcpEndpoint::parts_of(const Request& request) const {
    const bool splits = (request.kind == Kind::write || request.kind == Kind::read) && !request.pages;
    if (!splits || request.nbytes < 2 * kPartBytes) {
        return 0;
    }
    return std::min<size_t>(flows().size(), request.nbytes / kPartBytes);
}

Posted TcpEndpoint::post(const Request& request) {
    const size_t parts = parts_of(request);
    return parts == 0 ? FramedEndpoint::post(request) : post_split(request, parts);
}

Posted TcpEndpoint::post_split(const Request& request, size_t parts) {
    const Outcome allowed = check_range(request, request.kind == Kind::read ? kRightRead : kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    const std::lock_guard only(splitting_); // nobody else takes the room that is seen here
    if (!std::ranges::all_of(flows_, [](const auto& flow) { return flow->has_room(); })) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request.notify)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    std::shared_ptr<Split> split;
    try {
        split = std::make_shared<Split>(std::static_pointer_cast<TcpEndpoint>(shared_from_this()),
                                        host().operations().create(request.deadline_ns, request.started_ns), request,
                                        parts);
    } catch (...) { // no memory: nothing is under way
        give_credit_back(request.notify);
        throw;
    }
    split->epoch = begin_epoch();
    Request part = request;
    part.notify = -1; // the whole is announced
    part.message = nullptr;
    const uint64_t most = (request.nbytes / parts + kPartAlignment) / kPartAlignment * kPartAlignment;
    uint64_t at = 0;
    for (size_t i = 0; i < parts; ++i, at += part.nbytes) {
        part.local_offset = request.local_offset + at;
        part.remote_offset = request.remote_offset + at;
        part.nbytes = std::min(most, request.nbytes - at);
        flows_[i]->post_part(part, split);
    }
    return {Posted::What::posted, {}, split->op()};
}

// Ends an operation whose parts have all ended: announces it first, on the lane's own socket, because the bytes are in
// place.
void TcpEndpoint::end_split(const Split& split) {
    Outcome outcome = split.outcome();
    // The owner is told of no read that ends otherwise, by a deadline or cancel().
    const bool claimed = split.reads && split.notify >= 0 && outcome.ok() && split.op()->claim();
    if (split.notify >= 0 && outcome.ok() && (claimed || !split.reads)) {
        if (const Outcome told = push_notify(split.notify, split.nbytes, split.message); !told.ok()) {
            outcome = told;
        }
    } else {
        give_credit_back(split.notify);
    }
    const uint64_t nbytes = outcome.ok() ? split.nbytes : 0;
    if (claimed) {
        split.op()->finish_claimed(outcome, nbytes);
    } else {
        host().finish(split.op(), outcome, nbytes);
    }
    end_epoch(split.epoch); // now a flush may end
}

void TcpEndpoint::quiesce() {
    FramedEndpoint::quiesce();
    for (const auto& flow : flows()) {
        flow->settle_down();
    }
}

bool TcpEndpoint::telling() const {
    return FramedEndpoint::telling() || std::ranges::any_of(flows(), [](const auto& flow) { return flow->telling(); });
}

void TcpEndpoint::add_statistics(Statistics& sums) const {
    FramedEndpoint::add_statistics(sums);
    for (const auto& flow : flows()) {
        flow->add_statistics(sums);
    }
}

void TcpEndpoint::tick(uint64_t now) {
    FramedEndpoint::tick(now);
    for (const auto& flow : flows()) {
        flow->look(now);
    }
}

void TcpEndpoint::close(Outcome outcome) {
    end(flows(), outcome);
    FramedEndpoint::close(outcome);
}

bool TcpEndpoint::idle() const {
    return FramedEndpoint::idle() && std::ranges::all_of(flows(), [](const auto& flow) { return flow->has_nothing(); });
}

Provider::Probe probe() {
    if (Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
        return {true, "", ""};
    }
    return {false, std::string("the kernel gives no TCP socket: ") + std::strerror(errno),
            "raise the limit of open files (ulimit -n), or allow sockets in this sandbox"};
}

} // namespace zerohop::tcp
