// Controls the software RDMA devices that the native tests run on, beyond what ibv_* functions offer.
//
// The library has the name of libibverbs and takes its place: the tested code cannot tell the difference. All its
// devices are in this process and on one fabric, except that Ethernet and InfiniBand do not meet.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <optional>
#include <string>
#include <vector>

namespace zerohop::fake {

// The devices, each with one port, number 1.
inline constexpr const char* kRoce0 = "fake_roce0"; // Ethernet, MTU 1024, takes 16 reads at once
inline constexpr const char* kRoce1 = "fake_roce1"; // Ethernet, MTU 4096, takes 8
inline constexpr const char* kIb0 = "fake_ib0";     // InfiniBand, in one subnet with kIb1
inline constexpr const char* kIb1 = "fake_ib1";
inline constexpr const char* kIb2 = "fake_ib2"; // in another subnet
// The index of the RoCE ports' GID that holds their IPv4 address.
inline constexpr int kRoceGid = 3;
inline constexpr uint32_t kMaxInline = 256;

enum class Call : uint8_t { alloc_pd, reg_mr, create_channel, create_cq, create_srq, create_qp, modify_qp, count };

// Makes the nth call from now on (1: the next one) fail with this errno, once.
void fail_call(Call call, int nth, int error);
// Makes the next request that this queue pair would carry out end with this status, and stops the queue pair.
void fail_request(uint32_t queue_pair, ibv_wc_status status);

// Raise an asynchronous event. Events of a queue pair or a queue leave its state alone, except that QP_FATAL stops a
// queue pair. After DEVICE_FATAL the open contexts do nothing any more, and only a new one can be used.
void raise_qp(uint32_t queue_pair, ibv_event_type type);
void raise_cq_of(uint32_t queue_pair, ibv_event_type type); // for the queue pair's send completion queue
void raise_device(const std::string& device, ibv_event_type type);
// Sets the LID, and raises the event of that.
void set_lid(const std::string& device, uint16_t lid);
// Sets the state of the port, and raises the event of that. Over a port that is down requests wait, as if they were
// retried for ever.
void set_port(const std::string& device, bool up);

// While held, requests are posted and not carried out.
void hold_requests(bool held);
// While held, completions are there and cannot be seen.
void hold_completions(bool held);

// Makes posts to these queue pairs block in the call.
void hold_posts(const std::vector<uint32_t>& queue_pairs);
[[nodiscard]] size_t posts_waiting();
// Makes each post to these queue pairs take so long.
void slow_posts(const std::vector<uint32_t>& queue_pairs, std::chrono::nanoseconds each);

// While held, the call that makes a queue pair ready to receive blocks.
void hold_connects(bool held);
[[nodiscard]] size_t connects_waiting();

// The arguments of the last ibv_modify_qp to this state.
struct Modified {
    ibv_qp_attr attributes{};
    int mask = 0;
};
[[nodiscard]] std::optional<Modified> modified(uint32_t queue_pair, ibv_qp_state state);
// Returns the attributes with which ibv_create_qp succeeded.
[[nodiscard]] std::optional<ibv_qp_init_attr> created(uint32_t queue_pair);
// Returns the number of receives that are posted to the shared queues of a device.
[[nodiscard]] size_t receives(const std::string& device);
[[nodiscard]] std::vector<uint32_t> queue_pairs(const std::string& device);
// Returns the number of requests of a queue pair that are posted and not carried out.
[[nodiscard]] size_t waiting(uint32_t queue_pair);
// The number of requests that were carried out, and of those whose data was inline.
struct Carried {
    size_t requests = 0;
    size_t inlined = 0;
};
[[nodiscard]] Carried carried(uint32_t queue_pair);

// Counts what is open; all counts are 0 once everything is closed.
struct Census {
    size_t contexts = 0;
    size_t protection_domains = 0;
    size_t memory_regions = 0;
    size_t channels = 0;
    size_t completion_queues = 0;
    size_t shared_receive_queues = 0;
    size_t queue_pairs = 0;
    // Calls that a real device refuses or must not be given: freeing what is in use, more requests than fit.
    size_t misuses = 0;
    friend bool operator==(const Census&, const Census&) = default;
};
[[nodiscard]] Census census();
// Resets everything to the state of a fresh process, except for what is open.
void reset();

} // namespace zerohop::fake
