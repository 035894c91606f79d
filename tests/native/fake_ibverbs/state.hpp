// Defines the state of the software devices. One lock guards all of it: they need not be fast.
#pragma once

#include "control.hpp"

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace zerohop::fake {

inline constexpr uint64_t kMaxMessage = 1ULL << 30;
inline constexpr int kMaxSge = 16;

struct Context;

// A descriptor that is readable while something waits.
class Bell {
public:
    Bell();
    ~Bell();
    Bell(const Bell&) = delete;
    Bell& operator=(const Bell&) = delete;
    [[nodiscard]] int fd() const { return fd_; }
    void ring() const;
    void silence() const;

private:
    int fd_;
};

struct Device : ibv_device {
    ibv_port_attr port{};
    ibv_device_attr limits{};
    std::vector<ibv_gid> gids;
};

struct Event {
    ibv_async_event event{};
    unsigned* acknowledged = nullptr; // of the object that the event is about; null for ports and devices
};

struct Context : ibv_context {
    Device* of = nullptr;
    bool dead = false;
    Bell bell;
    std::deque<Event> events;
    size_t users = 0; // protection domains, channels and queues
};

struct Domain : ibv_pd {
    size_t users = 0;
};

struct Memory : ibv_mr {
    Domain* of = nullptr;
    uint64_t iova = 0;
    int access = 0;
    void* mapped = nullptr; // for a dma-buf
    size_t mapped_bytes = 0;

    [[nodiscard]] std::byte* at(uint64_t address) const { return static_cast<std::byte*>(addr) + (address - iova); }
    [[nodiscard]] bool has(uint64_t address, uint64_t nbytes) const {
        return address >= iova && address - iova <= length && nbytes <= length - (address - iova);
    }
};

struct CompletionQueue;

struct Channel : ibv_comp_channel {
    Bell bell;
    std::deque<CompletionQueue*> events;
    size_t users = 0;
};

struct QueuePair;

// An entry, and the place in the send queue that is free again once the entry was polled.
struct Completion {
    ibv_wc entry{};
    QueuePair* sender = nullptr;
    uint64_t place = 0;
};

struct CompletionQueue : ibv_cq {
    std::deque<Completion> entries;
    bool armed = false;
    bool overrun = false;
    size_t users = 0;
    unsigned told = 0; // completion events that were taken; below, those acknowledged
    unsigned acknowledged = 0;
    unsigned async_told = 0;
    unsigned async_acknowledged = 0;
};

struct Receive {
    uint64_t id = 0;
    std::vector<ibv_sge> pieces;
};

struct ReceiveQueue {
    std::deque<Receive> posted;
    size_t capacity = 0;
    int max_sge = 0;
};

struct SharedReceiveQueue : ibv_srq {
    ReceiveQueue queue;
    size_t users = 0;
};

struct Send {
    ibv_send_wr request{};
    std::vector<ibv_sge> pieces;
    std::vector<std::byte> inlined;
    uint64_t place = 0;
};

struct QueuePair : ibv_qp {
    ibv_qp_cap limits{};
    ibv_qp_init_attr made_with{};
    bool all_signalled = false;
    ibv_qp_attr now{}; // what modify_qp has set so far
    std::map<ibv_qp_state, Modified> history;
    std::deque<Send> sends;
    ReceiveQueue receives; // its own queue, used if it has no shared one
    uint64_t posted = 0;   // places of the send queue ever used
    uint64_t freed = 0;
    std::optional<ibv_wc_status> fails_with;
    Carried carried;
    unsigned async_told = 0;
    unsigned async_acknowledged = 0;

    [[nodiscard]] CompletionQueue& sent() const { return *static_cast<CompletionQueue*>(send_cq); }
    [[nodiscard]] CompletionQueue& received() const { return *static_cast<CompletionQueue*>(recv_cq); }
    [[nodiscard]] Context& of() const { return *static_cast<Context*>(context); }
    [[nodiscard]] ReceiveQueue& inbound() {
        return srq == nullptr ? receives : static_cast<SharedReceiveQueue*>(srq)->queue;
    }
    [[nodiscard]] const Domain* domain() const { return static_cast<Domain*>(pd); }
};

struct World {
    World();

    std::mutex mutex;
    std::condition_variable acknowledged;
    std::vector<std::unique_ptr<Device>> devices;
    std::set<Context*> contexts;
    std::map<uint32_t, Memory*> memory; // by key, which is lkey and rkey
    std::map<uint32_t, QueuePair*> queue_pairs;
    std::set<CompletionQueue*> completion_queues;
    std::set<SharedReceiveQueue*> shared_receive_queues;
    std::array<std::pair<int, int>, static_cast<size_t>(Call::count)> failures{}; // calls until then, and errno
    Census open;
    uint32_t next_key = 0x1000;
    uint32_t next_number = 0x11;
    bool requests_held = false;
    bool completions_held = false;
    std::set<uint32_t> posts_held; // by queue pair
    size_t posts_waiting = 0;
    std::set<uint32_t> posts_slow; // by queue pair
    std::chrono::nanoseconds slow_post{};
    bool connects_held = false;
    size_t connects_waiting = 0;
};

[[nodiscard]] World& world();

// The lock must be held for all of the following.

// True if this call is to fail, by a knob or because the device is dead; sets errno then.
[[nodiscard]] bool fails(Call call, const ibv_context* context);
void raise(Context& context, const Event& event);
// Removes the events that nobody has seen yet.
void forget_events(Context& context, const unsigned* acknowledged);
void raise_for(QueuePair& pair, ibv_event_type type);
void complete(CompletionQueue& queue, const Completion& completion);
void show_completions(CompletionQueue& queue);
// Carries out one request, or finds that it must wait: for a receive, or until the far end is ready.
enum class Turn : uint8_t { done, wait };
[[nodiscard]] Turn carry_out(QueuePair& pair, const Send& send, ibv_wc_status& status);
// Carry out the requests that can be, of one queue pair or of all.
void progress(QueuePair& pair);
void progress_all();
// Moves the queue pair to state ERR: requests that are posted and not carried out are flushed.
void stop(QueuePair& pair);

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int count, ibv_wc* into);
int req_notify_cq(ibv_cq* cq, int solicited_only);

} // namespace zerohop::fake
