// One end of a lane that runs the framed protocol over a byte stream. It begins operations of its own (initiator.cpp,
// messages.cpp; answers.cpp ends them), and carries out those of its peer (target.cpp, arrivals.cpp). The same frames
// go both ways (receive.cpp takes them apart).
//
// Lanes that move some bytes by themselves derive from it: everything else goes by frames.
//
// The lane's lock guards what posting threads and the poller share: the outbound half and the table of outstanding
// requests. The inbound half belongs to the poller alone.
#pragma once

#include "memory/staging.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/credits.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/inbound.hpp"
#include "provider/framed/outbound.hpp"
#include "provider/framed/requests.hpp"
#include "provider/provider.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace zerohop::framed {

class FramedEndpoint : public Endpoint {
public:
    // `watcher`: the thread that polls this end, if that is not the engine's poller.
    FramedEndpoint(const char* provider, const Limits& limits, Host& host, std::shared_ptr<Peer> peer,
                   Watcher* watcher = nullptr);

    void prepare(const Route& route) override;
    Posted post(const Request& request) override;
    bool match_soon() override;
    void match_with(const std::shared_ptr<Mailbox>& mailbox, bool soon) override;
    void quiesce() override;
    void return_credit(uint16_t queue) override;
    Backlog backlog(uint64_t now, bool attended) const override;
    void add_statistics(Statistics& sums) const override;
    bool telling() const override;
    Progress poll() override { return poll_frames() ? Progress::made : Progress::none; }
    void tick(uint64_t now) override;
    // Remembers the first failure, which poll_frames() acts upon: its finder may hold the lane's lock.
    void fail(Outcome outcome) override;
    void close(Outcome outcome) override;
    bool idle() const override;

protected:
    [[nodiscard]] Host& host() const { return host_; }
    // For connect(). Throws if it has succeeded before.
    void check_unconnected() const {
        if (stream_ != nullptr) {
            throw NativeError(Status::closed, Reason::lane_closed, "this lane is connected already");
        }
    }
    void start(std::unique_ptr<ByteStream> stream);
    // True once start() has the stream in place; poll() may come first.
    [[nodiscard]] bool started() const { return started_.load(std::memory_order_acquire); }
    [[nodiscard]] bool is_open() const { return state().ok(); }
    [[nodiscard]] LaneLock& lane() const { return lane_; }
    bool streaming_hint = false;         // the stream is a ring in memory: large writes are to spare the cache
    uint64_t sent_by_post = kSliceBytes; // at most, of a transfer, by the thread that posts it
    // Returns false for a frame that this end of a lane never takes.
    [[nodiscard]] virtual bool takes(const FrameHeader& /*header*/) const { return true; }
    [[nodiscard]] Posted post_one_sided(const Request& request, const std::shared_ptr<Whole>& whole = nullptr);

    // Returns true if it did something.
    bool poll_frames();
    // Poller. True if poll_frames() would find nothing to do, unless the stream has something. Cheaper.
    [[nodiscard]] bool at_rest() const {
        return is_open() && !in_.head_complete && failure_.ok() && !match_wanted_.load(std::memory_order_relaxed) &&
               !anything_to_send() && !device_work_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool anything_to_send() const { return outbound_pending_.load(std::memory_order_acquire); }
    // Acts upon a failure. A stream that ends takes the peer with it.
    virtual void on_failure(Outcome outcome);

    // The caller holds the lane's lock.
    [[nodiscard]] Requests& requests() { return requests_; }
    // Take the lane's lock. Operations without a frame count in an epoch, for flushes to wait for.
    [[nodiscard]] uint64_t begin_epoch();
    void end_epoch(uint64_t epoch);

    // Takes a credit of the queue that is told, if one is; false if none is left.
    [[nodiscard]] bool take_credit(int64_t notify) {
        if (notify < 0 || announced_.add(queue_of(notify), 1) <= static_cast<int>(kCredits)) {
            return true;
        }
        give_credit_back(notify);
        return false;
    }
    // The caller holds the lane's lock until it takes the credit.
    [[nodiscard]] bool has_credit(int64_t notify) {
        return notify < 0 || announced_.add(queue_of(notify), 0) < static_cast<int>(kCredits);
    }
    void give_credit_back(int64_t notify) {
        if (notify >= 0) {
            announced_.add(queue_of(notify), -1);
        }
    }
    // Announces bytes that went another way; its credit has been taken.
    [[nodiscard]] Outcome push_notify(int64_t notify, uint64_t nbytes, const Message& message);
    // Poller. Call it with the data in place. More notifications than were granted end the lane.
    void deliver(int64_t notify, uint64_t nbytes, Message message = {});

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
    [[nodiscard]] static size_t most_of(const PageList& pages);
    [[nodiscard]] static uint32_t requests_for(const PageList& pages);
    // Checks a copy that this process or a device makes by itself, and pins both memories.
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
        remote = Pin<Theirs>::of(theirs);
        if (!remote) {
            return {Status::access_denied, Reason::revoked};
        }
        return pin_local(request.route->local, local);
    }
    // Carries out an atomic on host memory of the target, and stores the old value.
    [[nodiscard]] static Outcome swap_or_add(bool swap, uint64_t address, uint64_t operand, uint64_t compare,
                                             uint64_t& old);
    // For prepare() of lanes that know this kind of access; the default knows none. Throws NativeError for another.
    template <class Access> static void require_access(const Route& route) {
        if (route.access && dynamic_cast<const Access*>(route.access.get()) == nullptr) {
            refuse_access();
        }
    }
    [[noreturn]] static void refuse_access();
    // Makes the buffers and streams through which frames move a device's memory.
    void prepare_staging(const Route& route);

private:
    // initiator.cpp
    [[nodiscard]] Outstanding* begin(const Request& request, uint32_t parts, Posted& posted,
                                     const std::shared_ptr<Whole>& whole = nullptr);
    Posted post_atomic(const Request& request);
    Posted post_notify(const Request& request);
    Posted post_flush(const Request& request);
    [[nodiscard]] static Outcome copy_out(const Region& local, const Request& request, void* to);
    void push_read(const Request& request, Outstanding& outstanding);
    [[nodiscard]] Outcome push_write(const Request& request, Outstanding& outstanding);
    void withdraw(const Outstanding& outstanding, Posted& posted, Outcome why);
    // Calls f, which queues a request's only frame, or nothing if it throws; then the request is withdrawn.
    template <class F> void queue(const Outstanding& outstanding, Posted& posted, F&& f) {
        try {
            f();
        } catch (...) { // no memory: nobody would ever answer it
            withdraw(outstanding, posted, kLaneOutOfMemory);
            throw;
        }
    }
    // answers.cpp
    void on_ack(const FrameHeader& header);
    void note_answer(Outstanding& outstanding, const FrameHeader& header);
    bool begin_read_data(const FrameHeader& header);
    bool begin_piece(const FrameHeader& header, const OpRef& op, const Extents& rest, Sink& sink);
    [[nodiscard]] bool within(const FrameHeader& header, uint64_t nbytes);
    void end_read_data(const FrameHeader& header);
    void complete(uint32_t ticket);
    bool poll_reads();
    // messages.cpp
    Posted post_send(const Request& request);
    Posted post_recv(const Request& request);
    void on_send(const FrameHeader& header);
    void on_clear_to_send(const FrameHeader& header);
    bool begin_send_data(const FrameHeader& header);
    void match();
    void match_mailboxes();
    void pair_up(const std::shared_ptr<Mailbox>& mailbox);
    void mail(const FrameHeader& header, ArrivedSend& send);
    void mail_pack(const Envelope& envelope, uint64_t count, const std::shared_ptr<Mailbox>& mailbox,
                   const ArrivedSend& pack);
    void not_mailed(uint32_t ticket);
    // `value`: of the receive.
    [[nodiscard]] bool grant_or_end(PostedRecv& recv, ArrivedSend& send, uint64_t value);
    [[nodiscard]] bool grant(PostedRecv& recv, ArrivedSend& send, uint64_t value);
    void on_withdraw(const FrameHeader& header);
    void drop_ended_messages();
    // target.cpp
    bool begin_write(const FrameHeader& header);
    void end_write(const FrameHeader& header);
    void on_read(const FrameHeader& header);
    void on_atomic(const FrameHeader& header);
    void on_notify(const FrameHeader& header);
    void answer(uint32_t ticket, Outcome outcome, uint64_t value = 0, bool last = true);
    [[nodiscard]] Outcome admit(const FrameHeader& header, uint8_t right, uint64_t nbytes,
                                std::shared_ptr<Share>& share, Pin<Region>& region);
    [[nodiscard]] Outcome check_pages(const FrameHeader& header, uint64_t room) const;
    [[nodiscard]] Outcome check_ranges(uint64_t left, uint64_t room) const;
    void announce(const FrameHeader& header);
    // arrivals.cpp
    [[nodiscard]] Sink* arrival_sink(const FrameHeader& header, Pin<Region> region,
                                     const std::shared_ptr<Share>& share);
    void end_send_data(const FrameHeader& header);
    void uncount(Arrival& arrival);
    bool poll_arrivals();
    bool end_recv(Arrival& arrival, Outcome outcome);
    void finish_arrival(Arrival& arrival);
    // receive.cpp
    bool receive(uint64_t budget);
    bool receive_head(bool& did);
    bool receive_payload(uint64_t& budget, bool& did);
    void drop_payload(Outcome why);
    bool begin_payload();
    void end_frame();
    [[nodiscard]] bool well_formed(const FrameHeader& header) const;
    void push_small(const FrameHeader& header, const void* body = nullptr, size_t nbytes = 0);
    void push_notice(FrameHeader header, int64_t notify, const Message& message);
    bool pump(uint64_t budget);
    bool send_frames(uint64_t budget);
    void run_out_of_memory();
    void say_goodbye(Reason why);
    bool can_send() const {
        return anything_to_send() && !wants_room_.load(std::memory_order_acquire) &&
               !device_work_.load(std::memory_order_relaxed);
    }
    void note_device_work();
    void note_blocked();
    bool settle();

    Host& host_;
    Watcher& watcher_;
    std::unique_ptr<ByteStream> stream_;
    std::atomic<bool> started_{false};

    Staging staging_; // outlives the sources and sinks below
    mutable LaneLock lane_;
    std::atomic<bool> outbound_pending_{false};
    std::atomic<bool> look_again_{false}; // the poller could not see to the outbound half, whose lock was held
    std::atomic<bool> wants_room_{false};
    std::atomic<uint64_t> kept_bytes_{0}; // what the transfers in `outbound_` count
    Outbound outbound_{outbound_pending_};
    Requests requests_;
    std::deque<PostedRecv> recvs_;
    std::deque<ArrivedSend> sends_;
    std::vector<std::shared_ptr<Mailbox>> matched_; // some of this lane's messages there have found a receive
    // The poller alone uses these two. They hold the messages that wait in a mailbox, by ticket, and those that came
    // several in a frame.
    std::unordered_map<uint32_t, std::shared_ptr<Mailbox>> mailed_;
    struct Pack {
        uint32_t unanswered = 0;
        uint32_t mailed = 0;
    };
    std::unordered_map<uint32_t, Pack> packs_;
    uint32_t unmatched_sends_ = 0;       // our sends that have no recv yet
    std::atomic<bool> unmatched_{false}; // there may be receives, or such sends; written under the lane's lock

    // Notifications of ours that the peer has not said to be taken; those of the peer's that wait here; and those that
    // were taken here, of which the peer is still to be told.
    QueueCounts announced_;
    QueueCounts waiting_here_;
    QueueCounts taken_here_;
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
