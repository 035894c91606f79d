// A reliable connected queue pair with a completion queue, a completion channel and a receive queue of its own.
//
// Neither queue can be overrun: a request takes its place when it is posted and gives it back when its completion has
// been polled, and the completion queue has an entry for each place. An unsignalled request gives its place back with
// the next signalled one behind it; so that there is always one, every so many of them are signalled all the same, and
// their completions are kept from the user.
#pragma once

#include "base/descriptor.hpp"
#include "fabric/direct_queue.hpp"
#include "fabric/request.hpp"
#include "provider/verbs/device.hpp"
#include "provider/verbs/options.hpp"
#include "provider/verbs/queue_pair.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace zerohop::fabric {

// All methods may be called from any thread.
class Endpoint {
public:
    struct Size {
        uint32_t messages = 0; // of the send queue
        uint32_t receives = 0;
        uint32_t completions = 0; // at least the sum of the two
        uint32_t sge = 1;
        uint32_t inline_bytes = 0; // asked for; max_inline() is what the device gave
        bool sleeps = true;        // false: nobody calls arm() or sleep(), which take two descriptors
    };
    // Throws NativeError. The sizes are within the device's limits.
    Endpoint(std::shared_ptr<verbs::Device> device, const Size& size, const verbs::Options& options);
    ~Endpoint() { close(); }

    // All of these throw NativeError(closed) after close().
    [[nodiscard]] verbs::QueuePairAddress address() const;
    void connect(const verbs::QueuePairAddress& remote);
    // Has the device flush all requests, and refuse new ones.
    void fail();
    // Returns where the queues lie, for kernels that do without this object from now on. Throws NativeError also if the
    // device has no such queues.
    [[nodiscard]] DirectQueue direct_queue();
    // One doorbell for all. Throws NativeError(would_block) with nothing posted where not all find a place. Where the
    // device refuses one, those before it are posted.
    void post(std::span<const Request* const> chain);
    void post(std::span<const Receive* const> chain);
    [[nodiscard]] std::vector<Completion> poll(size_t most);
    // Completions from now on end sleep(); those before do not, so poll() between the two.
    void arm();
    // Returns at the deadline (now_ns; 0: none), after a signal, when there may be completions, and for no reason.
    void sleep(uint64_t deadline_ns);

    uint64_t sends() const;    // places that are taken
    uint64_t receives() const; // likewise
    uint32_t max_inline() const { return max_inline_; }
    // Ends waits in other threads with NativeError(closed). Returns when the device has let go of all memory.
    void close();

private:
    struct Place {
        uint64_t id = 0;
        ibv_wc_opcode opcode = IBV_WC_SEND;
        bool told = false; // its success too
        uint64_t nbytes = 0;
    };
    // Requests are numbered in the order in which they are posted; the place of number n is n modulo the length.
    struct Queue {
        const char* name;
        std::vector<Place> places;
        uint64_t posted = 0;
        uint64_t ended = 0;
        Place& place(uint64_t number) { return places[number % places.size()]; }
        [[nodiscard]] uint64_t taken() const { return posted - ended; }
        void check_room(size_t wanted) const; // throws NativeError(would_block)
    };
    void check_open() const;
    void take(const ibv_wc& entry, std::vector<Completion>& ended);
    void take_events();

    const std::shared_ptr<verbs::Device> device_;
    const Size size_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    verbs::Made<ibv_comp_channel> channel_;
    verbs::Made<ibv_cq> queue_;
    std::unique_ptr<verbs::QueuePair> pair_;
    bool direct_ = false; // GPUs may know the queues' memory, and their driver forgets it later
    uint32_t max_inline_ = 0;
    Descriptor bell_; // ends a sleep

    Queue sends_;
    Queue receives_;
    uint32_t unsignalled_ = 0; // since the last signalled one
    std::vector<ibv_send_wr> send_chain_;
    std::vector<ibv_recv_wr> receive_chain_;
    std::vector<ibv_sge> payload_pieces_;

    int inside_ = 0;      // threads in sleep()
    bool asleep_ = false; // one of them waits for the descriptors, for all
    uint64_t wakes_ = 0;
    bool closing_ = false;
    bool closed_ = false;
};

} // namespace zerohop::fabric
