// One end of a lane that runs the framed protocol over a byte stream. It is an initiator of its own operations
// (initiator.cpp, messages.cpp) and the target of its peer's (target.cpp): the same frames go both ways.
//
// The lane's lock guards what posting threads and the poller share: the outbound half and the table of outstanding
// requests. The inbound half belongs to the poller alone.
#pragma once

#include "engine/engine.hpp"
#include "memory/staging.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/inbound.hpp"
#include "provider/framed/outbound.hpp"
#include "provider/framed/requests.hpp"
#include "provider/provider.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace zerohop::framed {

class FramedEndpoint : public Endpoint {
public:
    FramedEndpoint(Engine& engine, std::shared_ptr<Peer> peer);

    Posted post(const Request& request) override;
    void close(Outcome outcome) override;
    Outcome state() const override {
        return {status_.load(std::memory_order_acquire), reason_.load(std::memory_order_relaxed)};
    }
    Peer& peer() const override { return *peer_; }
    bool poll() override;
    bool ready() const override;
    bool has_local_work() const override { return match_wanted_.load(std::memory_order_acquire) || can_send(); }
    bool needs_polling() const override {
        return device_work_.load(std::memory_order_relaxed) ||
               (look_again_.load(std::memory_order_relaxed) && anything_to_send());
    }
    bool idle() const override;
    bool quiet() const override;
    void tick(uint64_t now) override;
    void return_credits(uint32_t count) override;
    void quiesce() override;
    void prepare(const Route& route) override;
    void each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const override;

protected:
    // With the lane's lock held.
    [[nodiscard]] bool nothing_under_way() const {
        return requests_.size() == 0 && !outbound_.busy() && recvs_.empty() && arrivals_.empty() && ending_.empty();
    }
    [[nodiscard]] bool is_open() const { return status_.load(std::memory_order_acquire) == Status::ok; }
    // Once, by connect().
    void start(std::unique_ptr<ByteStream> stream);
    // What connect() has made is there. The poller comes earlier.
    [[nodiscard]] bool started() const { return started_.load(std::memory_order_acquire); }
    ByteStream* stream() const { return stream_.get(); }
    Engine& engine() const { return engine_; }
    LaneLock& lane() const { return lane_; }
    Requests& requests() { return requests_; }
    bool streaming_hint = false;
    const std::shared_ptr<Peer>& shared_peer() const { return peer_; }
    [[nodiscard]] bool take_credit(const Request& request) {
        if (request.notify < 0 || credits_.fetch_sub(1, std::memory_order_acq_rel) > 0) {
            return true;
        }
        credits_.fetch_add(1, std::memory_order_acq_rel);
        return false;
    }
    // With the lane's lock held until it is taken.
    [[nodiscard]] bool has_credit(const Request& request) const {
        return request.notify < 0 || credits_.load(std::memory_order_acquire) > 0;
    }
    void give_credit_back() { credits_.fetch_add(1, std::memory_order_acq_rel); }
    // Announces a write whose bytes went by another way; the credit has been taken.
    [[nodiscard]] Outcome push_notify(int64_t notify, uint64_t nbytes);
    [[nodiscard]] static Outcome check_range(const Request& request, uint8_t right) {
        const Route& route = *request.route;
        if ((route.rights & right) != right) {
            return {Status::access_denied, Reason::rights};
        }
        const uint64_t end = request.pages ? end_of(*request.pages) : request.nbytes;
        if (request.remote_offset > route.remote_nbytes || end > route.remote_nbytes - request.remote_offset) {
            return {Status::access_denied, Reason::bounds};
        }
        return {};
    }
    [[nodiscard]] static uint64_t end_of(const PageList& pages);
    // Of what goes by no frame, as a copy of this process or of a device: whether it may begin; both memories are
    // pinned.
    template <class Theirs>
    [[nodiscard]] Outcome begin_copy(const Request& request, const std::shared_ptr<Theirs>& theirs, Pin<Region>& local,
                                     Pin<Theirs>& remote) const {
        const Outcome allowed = check_range(request, request.kind == Kind::read ? kRightRead : kRightWrite);
        if (!allowed.ok()) {
            return allowed;
        }
        if (!is_open()) {
            return state();
        }
        local = Pin<Region>::of(request.route->local);
        remote = Pin<Theirs>::of(theirs);
        if (!remote) {
            return {Status::access_denied, Reason::revoked};
        }
        return local ? Outcome{} : Outcome{Status::closed, Reason::revoked};
    }
    // The poller's, with the data in place. More notifications than were granted end the lane.
    void deliver(int64_t notify, uint64_t nbytes);
    // Noted by the poller, and acted upon by the end of poll().
    void fail(Outcome outcome);
    // What the lane's failure comes to: a stream that ends takes the peer with it.
    virtual void on_failure(Outcome outcome);
    [[nodiscard]] bool anything_to_send() const { return outbound_pending_.load(std::memory_order_acquire); }
    // The poller's: it would find nothing to do, unless the stream has something. Cheaper than a look at everything.
    [[nodiscard]] bool at_rest() const {
        return status_.load(std::memory_order_relaxed) == Status::ok && !in_.head_complete && failure_.ok() &&
               !match_wanted_.load(std::memory_order_relaxed) && !outbound_pending_.load(std::memory_order_acquire) &&
               !device_work_.load(std::memory_order_relaxed);
    }

private:
    // initiator.cpp
    Posted post_one_sided(const Request& request);
    Posted post_atomic(const Request& request);
    Posted post_notify(const Request& request);
    Posted post_flush(const Request& request);
    void push_read(const Request& request, Outstanding& outstanding, uint32_t ticket);
    void push_write(const Request& request, Outstanding& outstanding, uint32_t ticket);
    void on_ack(const FrameHeader& header);
    bool begin_read_data(const FrameHeader& header);
    void end_read_data(const FrameHeader& header);
    void complete(uint32_t ticket);
    bool poll_reads();
    // messages.cpp
    Posted post_send(const Request& request);
    Posted post_recv(const Request& request);
    void on_send(const FrameHeader& header);
    void on_clear_to_send(const FrameHeader& header);
    bool begin_send_data(const FrameHeader& header);
    void end_send_data(const FrameHeader& header);
    void match();
    [[nodiscard]] bool grant(PostedRecv& recv, ArrivedSend& send);
    void on_withdraw(const FrameHeader& header);
    void drop_ended_messages();
    // target.cpp
    bool begin_write(const FrameHeader& header);
    void end_write(const FrameHeader& header);
    void on_read(const FrameHeader& header);
    void on_atomic(const FrameHeader& header);
    void on_notify(const FrameHeader& header);
    void answer(uint32_t ticket, Outcome outcome, uint64_t value = 0, bool last = true);
    [[nodiscard]] Outcome check_pages(const FrameHeader& header, uint8_t right, std::shared_ptr<Share>& share);
    [[nodiscard]] Outcome check_ranges(const FrameHeader& header, std::shared_ptr<Share>& share);
    void announce(const FrameHeader& header);
    [[nodiscard]] Sink* arrival_sink(const FrameHeader& header, Pin<Region> region,
                                     const std::shared_ptr<Share>& share);
    void uncount(Arrival& arrival);
    bool poll_arrivals();
    void finish_arrival(Arrival& arrival);
    // receive.cpp
    bool receive(uint64_t budget);
    bool receive_head(bool& did);
    bool receive_payload(uint64_t& budget, bool& did);
    void drop_payload();
    bool begin_payload();
    void end_frame();
    [[nodiscard]] bool well_formed(const FrameHeader& header) const;
    void push_small(const FrameHeader& header, const void* body = nullptr, size_t nbytes = 0);
    bool pump(uint64_t budget);
    bool can_send() const {
        return outbound_pending_.load(std::memory_order_acquire) && !wants_room_.load(std::memory_order_acquire) &&
               !device_work_.load(std::memory_order_relaxed);
    }
    void note_device_work();
    void note_blocked();
    bool settle();

    Engine& engine_;
    const std::shared_ptr<Peer> peer_;
    std::unique_ptr<ByteStream> stream_;
    std::atomic<bool> started_{false};
    std::atomic<Status> status_{Status::ok};
    std::atomic<Reason> reason_{Reason::none};

    Staging staging_; // outlives the sources and sinks below
    mutable LaneLock lane_;
    std::atomic<bool> outbound_pending_{false};
    std::atomic<bool> look_again_{false}; // the poller's: it could not see to what is pending
    std::atomic<bool> wants_room_{false};
    Outbound outbound_{outbound_pending_};
    Requests requests_;
    std::deque<PostedRecv> recvs_;
    std::deque<ArrivedSend> sends_;
    uint32_t unmatched_sends_ = 0;       // of ours, at the peer
    std::atomic<bool> unmatched_{false}; // there may be receives, or such sends; written under the lane's lock

    std::atomic<int> credits_{static_cast<int>(kCredits)};
    std::atomic<int> undelivered_credits_{static_cast<int>(kCredits)}; // what the peer may still announce
    std::atomic<uint32_t> credits_to_return_{0};
    std::atomic<bool> device_work_{false};

    Inbound in_;
    std::unordered_map<uint32_t, std::shared_ptr<Arrival>> arrivals_; // device writes and granted messages, by ticket
    std::vector<std::shared_ptr<Arrival>> ending_;                    // their last frame has come
    std::unordered_map<uint32_t, Outcome> refused_;                   // a piece was refused; the last one must be too
    std::vector<std::unique_ptr<Sink>> unsettled_;
    uint32_t atomics_pending_ = 0; // on devices of ours

    Outcome failure_; // found by the poller, acted upon at the end of poll()
    std::atomic<bool> settled_{false};
    std::atomic<bool> match_wanted_{false};
    std::atomic<bool> heard_{false};
    uint64_t last_heard_ns_ = 0;
    uint64_t last_ping_ns_ = 0;
    std::atomic<uint64_t> bytes_received_{0};
    std::atomic<uint64_t> refusals_{0};
};

} // namespace zerohop::framed
