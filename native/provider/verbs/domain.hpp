// One RDMA port of a Context: protection domain, completion queues, shared receive queue, and the lanes over it.
//
// The completion queues cannot overrun. A post first takes room for every work request, also for unsignalled ones,
// which complete when a queue pair is flushed; and the other queue has an entry for each receive of the shared queue.
#pragma once

#include "provider/provider.hpp"
#include "provider/verbs/buffers.hpp"
#include "provider/verbs/device.hpp"
#include "provider/verbs/options.hpp"
#include "provider/verbs/queue_pair.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace zerohop::verbs {

class VerbsEndpoint;

// A receive that has come in; VerbsDomain::repost() gives its buffer back.
struct Segment {
    uint32_t index = 0;
    std::byte* data = nullptr;
    uint32_t nbytes = 0;
};

class VerbsDomain final : public Domain {
public:
    // Throws NativeError.
    VerbsDomain(Host& host, std::shared_ptr<Device> opened, int number, const Options& options);
    ~VerbsDomain() override;

    // Asks the device, whose event may not have come yet.
    bool port_active() const { return device_->port_active(); }
    bool alive() const override { return device_alive() && port_up_.load(std::memory_order_acquire); }
    bool lost() const override { return lost_.load(std::memory_order_acquire); }
    std::map<std::string, std::variant<int64_t, double, std::string>> facts() const override;
    void retune(const DomainOptions& options) override;
    std::shared_ptr<Registration> reg(Region& region, uint64_t address, uint64_t nbytes, uint8_t rights) override;
    Found poll() override;
    bool arm(Happening what) override;
    void woken() override;
    bool unarmed(Happening what) const override;
    bool keeps_ends() const override { return kept_.load(std::memory_order_relaxed); }
    void settle() override;

    // For lanes. Poller, unless a comment says "any thread".
    const std::shared_ptr<Device>& opened() const { return device_; }
    const Options& options() const { return options_; }
    [[nodiscard]] double gbps() const { return gbps_; } // gigabytes a second
    [[nodiscard]] bool atomics() const { return device_->attributes().atomic_cap != IBV_ATOMIC_NONE; }
    // Most bytes of one work request: the device's limit, or less, so that several share a transfer.
    [[nodiscard]] uint64_t max_piece() const { return max_piece_; }
    bool device_alive() const { return !fatal_.load(std::memory_order_acquire); }
    // Returns a number for the lane's request ids, and makes room for its receives.
    [[nodiscard]] uint16_t join(VerbsEndpoint& lane);
    void leave(uint16_t number);
    // Any thread. The queue pair's receives come to the lane after know().
    [[nodiscard]] std::unique_ptr<QueuePair> queue_pair();
    void know(uint32_t queue_pair, VerbsEndpoint& lane) { by_queue_pair_[queue_pair] = &lane; }
    // Call it before a queue pair is destroyed, while its completions still name the buffers that it took, and again
    // after that: then no completion of it is left, and no event.
    void forget(uint32_t queue_pair);
    // Any thread. Takes entries of the completion queue; false if too few are free.
    [[nodiscard]] bool take_room(uint32_t count);
    void give_room(uint32_t count) { room_.fetch_add(static_cast<int>(count), std::memory_order_release); }
    BufferPool& send_buffers() { return send_buffers_; }
    void repost(const Segment& segment);

private:
    Found reap();
    [[gnu::cold]] void keep(const ibv_wc* first, const ibv_wc* last, bool again);
    [[nodiscard, gnu::cold]] int take_kept(ibv_wc* ended);
    void take_receives(std::span<const ibv_wc> ended);
    void fill_receives();
    bool post_receive(uint32_t index);
    void take_completion_events();
    [[gnu::cold]] void take_async_events();
    void on_async_event(const ibv_async_event& event);
    void tell_state() { host_.domain_changed(number()); }
    [[gnu::cold]] void act_on_failures();
    void unwatch();

    Host& host_;
    std::shared_ptr<Device> device_;
    const Options options_;
    std::mutex lane_options_mutex_;
    Options lane_options_;
    const uint64_t max_piece_;
    double gbps_ = 0;
    BufferPool send_buffers_;
    BufferPool receive_buffers_;
    // Destroyed from the last to the first, and all of them before the buffers.
    Made<ibv_comp_channel> channel_;
    Made<ibv_cq> send_queue_;
    Made<ibv_cq> receive_queue_;
    Made<ibv_srq> shared_receive_;
    std::atomic<int> room_{0};

    // Poller.
    std::vector<Buffer> receives_; // by index; posted or in a lane's hands
    std::vector<uint32_t> idle_receives_;
    uint32_t most_receives_ = 0;

    std::vector<VerbsEndpoint*> lanes_; // by number; null: free
    std::atomic<size_t> lane_count_{0};
    std::unordered_map<uint32_t, VerbsEndpoint*> by_queue_pair_;
    uint32_t polls_ = 0;
    bool skipped_ = false; // the last look at what arrives was left out; poller
    // Poller; others may ask whether there are any.
    std::vector<ibv_wc> kept_ends_;
    std::atomic<bool> kept_{false};
    uint64_t kept_since_ns_ = 0;
    bool settling_ = false;

    std::mutex arm_mutex_;
    std::atomic<bool> send_armed_{false};
    std::atomic<bool> receive_armed_{false};
    std::atomic<bool> unseen_{false}; // a queue was armed, and nobody has looked since at what had come before
    std::atomic<bool> port_up_{false};
    std::atomic<bool> fatal_{false};
    std::atomic<bool> lost_{false}; // and its lanes know
    bool watched_ = false;          // poller
    std::atomic<bool> failures_{false};
    std::vector<uint32_t> failed_queue_pairs_;  // under arm_mutex_
    std::vector<uint32_t> drained_queue_pairs_; // those that receive nothing more; under arm_mutex_
};

} // namespace zerohop::verbs
