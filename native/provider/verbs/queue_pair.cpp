#include "provider/verbs/queue_pair.hpp"

#include "base/status.hpp"
#include "provider/verbs/tuning.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace zerohop::verbs {

namespace {

constexpr uint32_t kPsnMask = 0xff'ffff;

uint32_t fresh_psn() {
    std::random_device random;
    return random() & kPsnMask;
}

} // namespace

uint8_t mtu_code(int bytes) {
    for (int code = IBV_MTU_256; code <= IBV_MTU_4096; ++code) {
        if (bytes == 128 << code) {
            return static_cast<uint8_t>(code);
        }
    }
    return 0;
}

QueuePair::QueuePair(std::shared_ptr<Device> device, const Queues& queues, const Options& options)
    : device_(std::move(device)), options_(options), port_(device_->ask_port()), psn_(fresh_psn()) {
    const ibv_device_attr& limits = device_->attributes();
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = queues.send;
    wanted.recv_cq = queues.receive;
    wanted.srq = queues.shared_receive;
    wanted.cap.max_send_wr = static_cast<uint32_t>(std::min(options.send_depth, limits.max_qp_wr));
    wanted.cap.max_recv_wr = queues.shared_receive == nullptr ? queues.receive_depth : 0;
    const uint32_t most_sge = static_cast<uint32_t>(std::max(1, limits.max_sge));
    wanted.cap.max_send_sge = std::min(queues.max_sge == 0 ? kMaxSge : queues.max_sge, most_sge);
    wanted.cap.max_recv_sge = queues.max_sge == 0 ? 1 : wanted.cap.max_send_sge;
    wanted.cap.max_inline_data = static_cast<uint32_t>(options.max_inline);
    // No device says how much it takes inline; each refuses what is too much.
    for (;;) {
        ibv_qp_init_attr attempt = wanted;
        qp_ = device_->api().create_qp(device_->pd(), &attempt);
        if (qp_ != nullptr) {
            max_inline_ = std::min(attempt.cap.max_inline_data, kMostInline); // it may grant more than was asked for
            break;
        }
        if (wanted.cap.max_inline_data == 0 || (errno != EINVAL && errno != ENOMEM)) {
            raise("cannot make a queue pair on " + device_->name(), errno);
        }
        wanted.cap.max_inline_data /= 2;
    }
    number_ = qp_->qp_num;
    send_depth_ = wanted.cap.max_send_wr;
    max_sge_ = wanted.cap.max_send_sge;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.pkey_index = static_cast<uint16_t>(options.pkey_index);
    attributes.port_num = device_->port();
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    if (limits.atomic_cap != IBV_ATOMIC_NONE) { // a NIC without atomics refuses to be asked for them
        access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    attributes.qp_access_flags = access;
    try {
        modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "initialised");
    } catch (...) {
        destroy();
        throw;
    }
}

QueuePairAddress QueuePair::address() const {
    QueuePairAddress address;
    address.number = number_;
    address.psn = psn_;
    address.lid = port_.lid;
    address.link_layer = port_.link_layer;
    const uint8_t wanted = mtu_code(options_.mtu);
    address.mtu = static_cast<uint8_t>(wanted == 0 ? port_.active_mtu : std::min<int>(wanted, port_.active_mtu));
    address.read_credit = static_cast<uint8_t>(std::min(options_.read_credit, device_->attributes().max_qp_rd_atom));
    if (options_.gid_index >= 0) {
        address.global = 1;
        address.gid = device_->gid(options_.gid_index);
    }
    return address;
}

void QueuePair::connect(const QueuePairAddress& remote) {
    const QueuePairAddress own = address();
    if (remote.link_layer != own.link_layer) {
        throw NativeError(Status::unsupported, Reason::none,
                          "one port is Ethernet and the other InfiniBand: these cannot be connected");
    }
    if (device_->is_ethernet() && (own.global == 0 || remote.global == 0)) {
        throw NativeError(Status::unsupported, Reason::none, "a RoCE port needs a GID at both ends (gid_index)");
    }
    if (remote.mtu < IBV_MTU_256 || remote.mtu > IBV_MTU_4096 || remote.number > kPsnMask || remote.psn > kPsnMask) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's queue pair has an impossible address");
    }
    to_ready_to_receive(remote);
    to_ready_to_send(remote);
}

void QueuePair::to_ready_to_receive(const QueuePairAddress& remote) {
    const QueuePairAddress own = address();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, remote.mtu));
    attributes.dest_qp_num = remote.number;
    attributes.rq_psn = remote.psn;
    attributes.max_dest_rd_atomic = std::max<uint8_t>(1, own.read_credit);
    attributes.min_rnr_timer = static_cast<uint8_t>(options_.min_rnr_timer);
    attributes.ah_attr.dlid = remote.lid;
    attributes.ah_attr.sl = static_cast<uint8_t>(options_.service_level);
    attributes.ah_attr.port_num = device_->port();
    // Within an InfiniBand subnet the LID is enough; another subnet, or Ethernet, needs the global header.
    const bool other_subnet = !std::equal(own.gid.begin(), own.gid.begin() + 8, remote.gid.begin());
    if (own.global != 0 && remote.global != 0 && (device_->is_ethernet() || other_subnet || remote.lid == 0)) {
        attributes.ah_attr.is_global = 1;
        std::memcpy(attributes.ah_attr.grh.dgid.raw, remote.gid.data(), remote.gid.size());
        attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(options_.gid_index);
        attributes.ah_attr.grh.hop_limit = static_cast<uint8_t>(options_.hop_limit);
        attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(options_.traffic_class);
    }
    modify(attributes,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER,
           "made ready to receive");
}

void QueuePair::to_ready_to_send(const QueuePairAddress& remote) {
    const QueuePairAddress own = address();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = psn_;
    attributes.timeout = static_cast<uint8_t>(options_.timeout);
    attributes.retry_cnt = static_cast<uint8_t>(options_.retry_count);
    attributes.rnr_retry = static_cast<uint8_t>(options_.rnr_retry);
    const int device_limit = device_->attributes().max_qp_init_rd_atom;
    attributes.max_rd_atomic =
        static_cast<uint8_t>(std::clamp<int>(remote.read_credit, 1, std::min(255, std::max(1, device_limit))));
    attributes.max_rd_atomic = std::min(attributes.max_rd_atomic, std::max<uint8_t>(1, own.read_credit));
    modify(attributes,
           IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "made ready to send");
}

void QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* what) {
    const int error = device_->api().modify_qp(qp_, &attributes, mask);
    if (error != 0) {
        raise("a queue pair on " + device_->name() + " could not be " + what, error);
    }
}

void QueuePair::fail() {
    if (qp_ != nullptr && device_->is_ours()) {
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_ERR;
        device_->api().modify_qp(qp_, &attributes, IBV_QP_STATE); // a device that is gone has stopped it already
    }
}

void QueuePair::destroy() {
    if (qp_ != nullptr && device_->is_ours()) {
        device_->api().destroy_qp(qp_);
    }
    qp_ = nullptr;
}

} // namespace zerohop::verbs
