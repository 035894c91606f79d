// The verbs lane: reliable connected queue pairs over one or more NICs. Memory that the NICs at both ends can reach
// they move by themselves (initiator.cpp); all other memory, and messages, go as the framed protocol through a stream
// of segments into shared receive queues (stream.hpp, target.cpp).
//
// An error kills a queue pair, and with it the lane: the operation that caused it gets its own error, the others end
// as PeerLost(lane reset). The control plane then replaces the lane.
#pragma once

#include "base/guarded.hpp"
#include "provider/framed/endpoint.hpp"
#include "provider/verbs/completion.hpp"
#include "provider/verbs/domain.hpp"
#include "provider/verbs/remote_keys.hpp"
#include "provider/verbs/stream.hpp"
#include "provider/verbs/transfer.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace zerohop::verbs {

class VerbsEndpoint final : public framed::FramedEndpoint {
public:
    // Throws NativeError.
    VerbsEndpoint(Host& host, std::shared_ptr<Peer> peer, std::vector<std::shared_ptr<VerbsDomain>> rails);
    ~VerbsEndpoint() override;

    Address address() override;
    void connect(const Address& remote) override;
    void prepare(const Route& route) override;
    Posted post(const Request& request) override;
    Backlog backlog(uint64_t now, bool attended) const override;
    void add_statistics(Statistics& sums) const override;
    Progress poll() override;
    void close(Outcome outcome) override;
    bool idle() const override;

    // Poller, for the lane's domains. Returns false if the lane is being posted to: call again.
    [[nodiscard]] bool on_sent(const ibv_wc& completion) {
        return (completion.wr_id & kOne) != 0 ? on_one_sent(completion) : on_chain_sent(completion);
    }
    // Takes the lane's lock for a completion; false if the lane is being posted to: call again. A failure waits for the
    // lock.
    [[nodiscard]] bool lock_for(const ibv_wc& completion) const {
        if (lane().try_lock()) {
            return true;
        }
        if (completion.status != IBV_WC_SUCCESS) {
            lane().lock();
        }
        return completion.status != IBV_WC_SUCCESS;
    }
    // Waits until nobody posts.
    void wait_for_turn() const { const std::lock_guard turn(lane()); }
    // Returns whether the lane keeps the buffer.
    [[nodiscard]] bool on_received(const ibv_wc& completion, const Segment& segment);
    void on_broken(Outcome outcome) { fail(outcome); }
    // Notes that a queue pair in the error state takes no further receive of the shared queue.
    void on_last_receive(uint32_t queue_pair);

    // For the lane's stream; the caller holds the lane's lock. `fill` writes the body, and returns how much
    // of it there is; false: there is no room now, or no body.
    struct Outgoing {
        SegmentKind kind = SegmentKind::stream;
        Chain::What what = Chain::What::segment;
        uint32_t owner = 0; // a transfer's index
    };
    template <class F> [[nodiscard]] bool post_segment(const Outgoing& outgoing, size_t queue, size_t nbytes,
                                                       F&& fill) {
        Prepared prepared = prepare_segment(outgoing.kind, queue, nbytes);
        if (prepared.bytes == nullptr) {
            return false;
        }
        const size_t filled = fill(prepared.bytes + sizeof(SegmentHeader));
        if (filled == 0 && nbytes != 0) {
            drop_segment(queue, prepared);
            return false;
        }
        prepared.nbytes -= nbytes - filled;
        send_segment(outgoing, queue, prepared);
        return true;
    }
    void repost(const Segment& segment) { rails_.front()->repost(segment); }

protected:
    void on_failure(Outcome outcome) override;

private:
    struct Queue {
        std::unique_ptr<QueuePair> pair;
        VerbsDomain* domain = nullptr;
        size_t rail = 0;
        uint8_t index = 0;
        uint16_t lane = 0; // this lane's number with the domain
        uint32_t depth = 0;
        uint32_t free = 0;     // work requests, under the lane's lock
        bool receives = false; // may still take a receive of the shared queue; under the lane's lock
    };
    struct Flush {
        OpRef op;
        OpRef before; // ends after all that was posted earlier
        uint32_t ticket = 0;
        uint32_t queues_left = 0; // as bits: where the mark is still to be posted
        bool begun = false;
    };

    // initiator.cpp: post_*() take the lane's lock; the caller of the others holds it
    Posted post_transfer(const Request& request);
    Posted post_flush(const Request& request);
    void begin_walk(Transfer& transfer, const Request& request);
    [[nodiscard]] bool has_word();
    [[nodiscard]] Queue* queue_for(uint64_t nbytes);
    [[nodiscard]] Queue* pick_queue(uint64_t nbytes, uint32_t chains);
    void pump_transfers();
    // chains.cpp: the caller holds the lane's lock
    void post_some(uint32_t index);
    [[nodiscard]] bool post_chain(uint32_t index, Queue& queue);
    bool post_marks(uint32_t index);
    [[nodiscard]] bool post_mark(const Outgoing& outgoing, size_t queue, const Mark& mark, const Message& message = {});
    struct Prepared {
        std::byte* bytes = nullptr;
        size_t nbytes = 0;
        Buffer buffer; // none: inline
    };
    [[nodiscard]] Prepared prepare_segment(SegmentKind kind, size_t queue, size_t nbytes);
    void send_segment(const Outgoing& outgoing, size_t queue, const Prepared& prepared);
    // Copies the pieces of a small request, and has the first one name the copy; false if the device is to fetch them
    // itself. The vendor's library would copy them in our thread, and could not be left in the middle if they are gone.
    // Where their owner has moved the bytes meanwhile, the copy may be of other memory; the device has the pages of
    // before.
    [[nodiscard, gnu::always_inline]] bool copy_inline(std::span<ibv_sge> pieces, const Region& local) {
        std::byte* to = small_.data();
        for (const ibv_sge& piece : pieces) {
            if (copy_guarded(to, reinterpret_cast<const void*>(piece.addr), piece.length) != Gone::nothing) {
                return false;
            }
            to += piece.length;
        }
        if (local.moved()) {
            return false;
        }
        pieces.front().addr = reinterpret_cast<uint64_t>(small_.data());
        pieces.front().length = static_cast<uint32_t>(to - small_.data());
        return true;
    }
    void drop_segment(size_t queue, const Prepared& prepared);
    [[nodiscard]] uint32_t add_chain(Chain::What what, const Queue& queue, uint32_t requests, uint32_t owner);
    [[gnu::always_inline]] bool send(Queue& queue, ibv_send_wr* first, uint32_t count) {
        queue.free -= count;
        work_requests_.fetch_add(count, std::memory_order_relaxed);
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(queue.pair->handle(), first, &bad) == 0 || on_refused();
    }
    bool on_refused();
    // one_request.cpp: on_*() takes the lane's lock; the caller of the others holds it
    bool on_one_sent(const ibv_wc& completion);
    [[nodiscard]] static bool fits_one_request(const Request& request, const Queue& queue);
    void post_one(Transfer& transfer, uint32_t index, const Request& operation, Queue& queue);
    void end_one(Transfer& transfer, uint32_t index);
    void end_ones();
    // completion.cpp: the caller of end_*(), give_up_rest() and drop_transfer() holds the lane's lock
    bool on_chain_sent(const ibv_wc& completion);
    [[nodiscard]] Outcome failure_of(const ibv_wc& completion) const;
    [[nodiscard]] Outcome as_the_peer_lives(Outcome outcome) const;
    void end_chain(Chain& chain, uint32_t index);
    bool end_transfer_if_over(uint32_t index, OpRef& op, Outcome& outcome, uint64_t& nbytes, int64_t& read,
                              Message& message);
    void give_up_rest(Transfer& transfer);
    void drop_transfer(Transfer& transfer, uint32_t index);
    // endpoint.cpp
    [[gnu::noinline]] bool poll_all();
    bool poll_lane();
    bool pump_flushes();
    void note_work();
    // teardown.cpp
    void fail_queues();
    bool tear_down();
    void destroy_queues();
    void break_off(Outcome cause);
    // target.cpp
    [[nodiscard]] bool on_mark(SegmentKind kind, const std::byte* body, uint32_t nbytes);

    std::vector<std::shared_ptr<VerbsDomain>> rails_;
    std::vector<uint16_t> numbers_; // of this lane with each of them
    std::vector<Queue> queues_;
    SegmentStream* segments_ = nullptr; // FramedEndpoint owns it
    std::unique_ptr<SegmentStream> unstarted_;
    std::atomic<bool> connected_{false};

    // Under the lane's lock.
    Slots<Transfer> transfers_;
    Slots<Chain> chains_;
    size_t recent_ = 0;            // the queue that took the last small operation
    uint64_t stays_bytes_ = 0;     // up to this size an operation is small
    uint32_t ones_ = 0;            // transfers of one request, posted
    std::deque<uint32_t> posting_; // transfers that are not wholly posted
    std::deque<Flush> flushes_;
    std::deque<Mark> owed_; // answers to flushes
    Buffer words_;          // results of atomics
    std::vector<uint32_t> free_words_;
    std::array<std::byte, kMostInline> small_; // where inline data is built
    uint32_t next_ticket_ = 0;
    bool wrote_since_flush_ = false;
    bool proved_ = false; // a flush has been posted

    std::unordered_map<uint64_t, uint32_t> parts_; // poller: marks that have come so far, of each incomplete set
    std::atomic<bool> work_due_{false};            // something above waits for room, or a post has failed
    std::atomic<bool> post_failed_{false};
    bool closing_ = false;
    std::mutex connecting_; // held by connect()
    bool failed_ = false;
    uint64_t closed_at_ns_ = 0;
    uint64_t failed_at_ns_ = 0;
    std::atomic<bool> torn_down_{false};
    std::atomic<uint64_t> bytes_direct_{0};
    std::atomic<uint64_t> work_requests_{0};
};

[[nodiscard]] Provider::Probe probe();
[[nodiscard]] std::shared_ptr<Domain> open(Host& host, const std::string& device, int port, int number,
                                           const DomainOptions& options);
[[nodiscard]] std::shared_ptr<Endpoint> endpoint(Host& host, std::shared_ptr<Peer> peer, Provider::Rails rails);

} // namespace zerohop::verbs
