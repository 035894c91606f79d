// The engine of one Context: its operations, lanes, shares and notifications, and the poller that drives them.
#pragma once

#include "engine/bulk_threads.hpp"
#include "engine/mailboxes.hpp"
#include "engine/notifications.hpp"
#include "engine/poller.hpp"
#include "engine/receives.hpp"
#include "engine/work.hpp"
#include "provider/host.hpp"
#include "provider/provider.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace zerohop {

struct EngineOptions {
    uint64_t spin_ns = 50 * kMicrosecond;
    uint64_t heartbeat_ns = 10 * kSecond; // silence after which a peer on another host is lost; 0: never
};

// Tokens of Engine::events(), beside the bare id of a peer that was found dead.
inline constexpr uint64_t kLaneDown = 1ULL << 62;      // with a peer's id: a lane to it has failed, while it may live
inline constexpr uint64_t kDomainChanged = 1ULL << 61; // with a domain's number: its port or device came or went

// Shared from this: calls of Python then need no memory for a reference of their own, and cannot fail for lack of it.
class Engine final : public Host, public std::enable_shared_from_this<Engine>, private Pollable {
public:
    Engine(const EngineOptions& options, std::vector<std::shared_ptr<accel::Driver>> drivers);
    ~Engine() override;

    // Peers and lanes.
    std::shared_ptr<Peer> add_peer(int presence_fd, int doorbell_fd); // -1, -1: on another host
    void drop_peer(int id, Outcome outcome);
    [[nodiscard]] std::shared_ptr<Peer> peer(int id) const;
    std::shared_ptr<Endpoint> add_endpoint(const std::string& name, int id,
                                           std::span<const std::shared_ptr<Domain>> rails = {});
    // Throws NativeError. A domain that is closed goes when its lanes have.
    std::shared_ptr<Domain> open_domain(const std::string& name, const std::string& device, int port,
                                        const DomainOptions& options);
    void close_domain(const std::shared_ptr<Domain>& domain);
    void close_endpoint(const std::shared_ptr<Endpoint>& endpoint, Outcome outcome);
    // Returns true if nothing is under way at this end, not even a receive. What the peer has under way does not count.
    [[nodiscard]] bool quiet(const std::shared_ptr<Endpoint>& endpoint);

    // Work beside the lanes. It goes once it is closed and idle. Throws NativeError.
    void add_work(const std::shared_ptr<Work>& work);
    void close_work(const std::shared_ptr<Work>& work, Outcome outcome);
    // Returns operations that end with all that works have under way now at a peer (-1: at any).
    [[nodiscard]] std::vector<OpRef> works_under_way_at(int peer) const;

    // Memory.
    uint64_t add_route(Route route);
    void drop_route(uint64_t id);
    [[nodiscard]] std::shared_ptr<const Route> route(uint64_t id); // null: dropped
    bool revoke(ShareId id, uint64_t deadline_ns);
    // Returns the region's registration with the domain for this process's own use. Throws NativeError, with every way
    // that was tried.
    std::shared_ptr<Registration> register_local(Domain& domain, const std::shared_ptr<Region>& region);
    // Returns a registration of the share for peers; null if the share is revoked. `own`: the share's own registration,
    // not the allocation's, so that it can end alone.
    std::shared_ptr<Registration> reach(Domain& domain, ShareId id, bool own, uint64_t& address);

    // Operations. `request.route` is filled in from the id.
    [[nodiscard]] Posted post(uint64_t id, Request& request, bool nowait);
    [[nodiscard]] Posted post(Endpoint& endpoint, const Request& request, bool nowait);
    // Like post(), but neither waits nor polls if the lane is full.
    [[nodiscard]] Posted try_post(Endpoint& endpoint, const Request& request);
    // Posts a receive that the next message of any peer ends, unless a receive of its lane waits for that.
    [[nodiscard]] Posted post_receive(const Request& request);
    // Posts a receive of a group's tagged messages. The value of one that ends well: value_of() the message's envelope.
    // `finder` and `finds_described`: see PostedRecv; the bytes done are then the message's length.
    [[nodiscard]] Posted post_tagged_receive(uint64_t scope, const Wanted& wanted, const Request& request,
                                             uint64_t finder = 0, bool finds_described = false);
    // Takes one look at the lanes in this thread, or wakes the thread that polls, because a receive was posted whose
    // message is here. Not with Python's GIL.
    void look_or_kick();
    // Receives the message that a tagged receive has found; without memory: its bytes have come otherwise.
    [[nodiscard]] Posted post_claim(uint64_t scope, uint64_t finder, const Request& request);
    // Lets other receives take it.
    void release_found(uint64_t scope, uint64_t finder);
    // Forgets a member's peer that is lost; see Mailbox::forget_peer().
    [[nodiscard]] std::vector<uint32_t> forget_member(uint64_t scope, int peer, const std::vector<uint32_t>& more) {
        return mailboxes_.at(scope)->forget_peer(peer, more);
    }
    void open_mailbox(uint64_t scope) { mailboxes_.at(scope)->open(); }
    [[nodiscard]] Message take_header(uint64_t scope, uint64_t finder) {
        return mailboxes_.at(scope)->take_header(finder);
    }
    void count_messages(uint64_t scope, std::shared_ptr<Tally> tally) {
        mailboxes_.at(scope)->count_into(std::move(tally));
    }
    // Ends the receives of the group. Its senders are told that nobody will receive their messages.
    void close_mailbox(uint64_t scope, Outcome outcome);
    // Ends the receives that need a member of the group, who is lost; see Mailbox::lose().
    void lose_member(uint64_t scope, uint32_t source, Outcome outcome);
    void restore_member(uint64_t scope, uint32_t source) { mailboxes_.at(scope)->restore(source); }
    // Has sleepers mind the deadline of an operation that pends.
    void note_pending(uint64_t deadline_ns, uint64_t now);
    // Returns an operation that ends when a stream of the user's has done everything that is queued on it by now.
    // Throws NativeError.
    [[nodiscard]] OpRef stream_reached(int device, uint64_t native_stream, uint64_t deadline_ns);
    // Makes a stream of the user's wait for the end of an operation, good or bad, while no thread waits. `lane`: where
    // the operation may be in flight, or null. Throws NativeError.
    void hold_stream(const OpRef& op, Endpoint* lane, int device, uint64_t native_stream);
    // Makes the stream wait until a notification can be taken, or `op` ends, which stands for the wait.
    void hold_stream_for_notification(const OpRef& op, uint16_t queue, int device, uint64_t native_stream);
    // Has peers looked at more often: somebody waits for the end of an operation, but not in a call.
    void note_awaited();
    bool wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep = true) {
        return poller_.wait(done, deadline_ns, spin_ns, may_sleep);
    }
    // `outcome`, if given: that of the wait that it is for, which takes nothing once it has been cancelled.
    [[nodiscard]] std::optional<Notification> pop_notification(uint16_t queue, uint64_t deadline_ns, uint64_t spin_ns,
                                                               bool may_wait, WaitOutcome* outcome = nullptr);
    // Puts a notification back that was popped last; it is the next one again, unless the queue is closed.
    void put_back(uint16_t queue, Notification note);
    // Opens a queue. Once closed, it drops its notifications, and those that come for it later.
    [[nodiscard]] uint16_t open_queue() { return notifications_.open(); }
    // Lets the queue take that peer's notifications, and no other's, from now on. A new queue takes none.
    void take_from(uint16_t number, int peer);
    void close_queue(uint16_t number);
    // Tells those who wait that there may be no more. Notifications that are there, or still come, can be taken.
    void end_queue(uint16_t number);
    // Puts a peer that has connected into a queue that no peer may notify, and takes one out that is lost.
    void add_arrival(uint16_t queue, int peer);
    void forget_arrival(uint16_t queue, int peer);
    // Takes everything that a peer has sent by now, as far as its lanes have it.
    void catch_up(int peer);
    // Ends the operations of a group, and all that join it later.
    void end_group(OperationGroup& group, Outcome outcome) {
        operations().finish_group(group, outcome);
        wake_waiters(); // for room
    }

    // Host.
    void wake_waiters() override {
        finished_.notify_all();
        poller_.wake_sleeping_caller();
    }
    [[nodiscard]] bool anybody_waits() override { return operations().awaited() != 0 || poller_.anybody_waits(); }
    void notify(uint16_t queue, Notification note) override;
    [[nodiscard]] std::optional<PostedRecv> take_receive() override { return receives_.take(); }
    [[nodiscard]] std::shared_ptr<Mailbox> mailbox(uint64_t scope) override { return mailboxes_.at(scope); }
    void lose_peer(Peer& peer, Outcome outcome) override;
    void lane_failed(const Peer& peer) override;
    void domain_changed(int number) override { events_->push(kDomainChanged | static_cast<uint64_t>(number)); }
    void exclusive(const std::function<void()>& f) override { poller_.exclusive(f); }
    void kick() override { poller_.kick(); }
    void watch(int fd) override { poller_.watch(fd); }
    void watch_writable(int fd, bool writable) override { poller_.watch_writable(fd, writable); }
    void unwatch(int fd) override { poller_.unwatch(fd); }
    [[nodiscard]] BulkThread& bulk_thread() override { return bulk_threads_.next(); }
    void watch_device(int fd) override { poller_.watch_device(fd); }
    void unwatch_device(int fd) override { poller_.unwatch_device(fd); }

    // Returns by the deadline; false if device copies still run then, whose memory stays.
    bool close(uint64_t deadline_ns);
    // Gives the engine up in a forked child, where its threads do not exist: nothing of it runs or is waited for.
    void abandon();
    bool closed() const { return closed_.load(std::memory_order_acquire); }

    NotificationQueues& notifications() { return notifications_; }
    Presence& presence() { return presence_; }
    Poller& poller() { return poller_; }
    const EngineOptions& options() const { return options_; }
    const std::shared_ptr<CompletionQueue>& events() const { return events_; }
    [[nodiscard]] Statistics statistics();

private:
    template <typename Post>
    [[nodiscard]] Posted post_to_mailbox(uint64_t scope, const Request& request, uint64_t finder, const Post& post);
    static void match(const std::shared_ptr<Mailbox>& mailbox, const Mailbox::Posting& posting);
    Found poll() override;
    void tick(uint64_t now) override;
    Left left(uint64_t now) override;
    bool unarmed() override;
    uint64_t may_wait_ns() override { return may_wait_ns_.load(std::memory_order_relaxed); }
    bool arm(bool for_caller) override;
    [[nodiscard]] Domain::Happening happening();
    void woken() override;
    bool poll_marks();
    void look_at_peer(Endpoint& endpoint);
    template <class F> void contained(Endpoint* endpoint, F&& f);
    [[nodiscard]] Found poll_domain(Domain& domain);
    Outcome lose_dead_peer(Peer& peer) override;
    void take_arrived(Endpoint& endpoint);
    void reap_endpoints();
    void reap_works();
    static void give_back_credit(const std::weak_ptr<Endpoint>& lane, uint16_t queue);
    [[nodiscard]] std::vector<std::shared_ptr<Endpoint>> lanes_to(int peer) const;
    template <class T> void keep(const std::shared_ptr<T>& made, std::vector<std::shared_ptr<T>>& all);
    void after_post(Endpoint& endpoint, const Request& request, const Posted& posted, uint64_t now);

    const EngineOptions options_;
    EventCount finished_;
    Presence presence_;
    std::atomic<bool> device_atomics_pending_{false};
    NotificationQueues notifications_;
    Receives receives_;
    Mailboxes mailboxes_;
    std::shared_ptr<CompletionQueue> events_;
    BulkThreads bulk_threads_;

    // Written under the poller's exclusive right and the lock; the poller reads them without the lock. Domains outlive
    // the lanes over them.
    mutable SpinLock endpoints_lock_;
    std::vector<std::shared_ptr<Domain>> domains_;
    int next_domain_ = 0;
    std::vector<std::shared_ptr<Endpoint>> endpoints_;
    std::vector<std::shared_ptr<Work>> works_;
    mutable std::mutex peers_mutex_;
    std::vector<std::shared_ptr<Peer>> peers_; // index = id
    std::atomic<int> remote_peers_{0};
    std::atomic<uint64_t> may_wait_ns_{0}; // as of the last poll()
    std::atomic<bool> keeps_ends_{false};  // a domain keeps some

    struct RouteEntry {
        uint32_t generation = 1;
        std::shared_ptr<const Route> route;
    };
    SpinLock routes_lock_;
    std::vector<RouteEntry> routes_;
    std::vector<uint32_t> free_routes_;

    struct StreamMark {
        std::shared_ptr<accel::Event> event;
        OpRef op;
    };
    SpinLock marks_lock_;
    std::vector<StreamMark> marks_;
    std::atomic<size_t> marks_pending_{0};

    std::mutex revoking_mutex_;
    // Revoked shares that a device still copies for. Only those copies keep them alive.
    std::map<uint64_t, std::weak_ptr<Share>> revoking_;

    std::atomic<bool> closed_{false};
    bool abandoned_ = false; // this is a forked child, which has one thread
    std::atomic<uint64_t> posted_{0};
    std::atomic<uint64_t> inline_{0};
    std::atomic<uint64_t> full_{0};
    Statistics gone_statistics_; // of endpoints that are gone
    Poller poller_;
};

} // namespace zerohop
