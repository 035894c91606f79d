// A reliable connected queue pair: its states, and what two of them must tell each other.
#pragma once

#include "provider/verbs/device.hpp"
#include "provider/verbs/options.hpp"

#include <array>
#include <cstdint>
#include <memory>

namespace zerohop::verbs {

// On the wire as it stands here.
struct QueuePairAddress {
    uint32_t number = 0;
    uint32_t psn = 0; // first packet sequence number that it will send
    uint16_t lid = 0;
    uint8_t link_layer = 0;
    uint8_t mtu = 0;         // ibv_mtu of its port
    uint8_t read_credit = 0; // reads and atomics that it takes at once
    uint8_t global = 0;      // has a GID
    std::array<uint8_t, 2> reserved{};
    Gid gid{};
};
static_assert(sizeof(QueuePairAddress) == 32);

class QueuePair {
public:
    struct Queues {
        ibv_cq* send = nullptr;
        ibv_cq* receive = nullptr;
        ibv_srq* shared_receive = nullptr; // null: its own, of `receive_depth`
        uint32_t receive_depth = 0;
        uint32_t max_sge = 0; // of a request of either queue; 0: what lanes need
    };
    // Makes one in state INIT, ready for receives. Throws NativeError.
    QueuePair(std::shared_ptr<Device> device, const Queues& queues, const Options& options);
    ~QueuePair() { destroy(); }
    QueuePair(const QueuePair&) = delete;
    QueuePair& operator=(const QueuePair&) = delete;

    [[nodiscard]] QueuePairAddress address() const;
    // Takes it through RTR to RTS. Throws NativeError.
    void connect(const QueuePairAddress& remote);
    // Takes it to state ERR: nothing of it reaches the wire or our memory any more, and all that is posted is flushed.
    void fail();
    // Returns once the device has let go of it.
    void destroy();

    ibv_qp* handle() const { return qp_; }
    uint32_t number() const { return number_; }
    uint32_t max_inline() const { return max_inline_; }
    uint32_t send_depth() const { return send_depth_; }
    uint32_t max_sge() const { return max_sge_; }

private:
    void to_ready_to_receive(const QueuePairAddress& remote);
    void to_ready_to_send(const QueuePairAddress& remote);
    void modify(ibv_qp_attr& attributes, int mask, const char* what);

    std::shared_ptr<Device> device_;
    const Options options_;
    const ibv_port_attr port_; // as it was when this was made
    ibv_qp* qp_ = nullptr;
    uint32_t number_ = 0;
    uint32_t psn_ = 0;
    uint32_t max_inline_ = 0;
    uint32_t send_depth_ = 0;
    uint32_t max_sge_ = 1;
};

// Returns IBV_MTU_4096 for 4096, and so on; 0 for what is no MTU of InfiniBand.
[[nodiscard]] uint8_t mtu_code(int bytes);

} // namespace zerohop::verbs
