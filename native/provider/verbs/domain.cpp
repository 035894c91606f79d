#include "provider/verbs/domain.hpp"

#include "provider/verbs/completion.hpp"
#include "provider/verbs/endpoint.hpp"
#include "provider/verbs/memory_region.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>

namespace zerohop::verbs {

namespace {

constexpr int kSendEntries = 4096;
constexpr int kMaxReceives = 4096; // 32 MiB of buffers, for 128 lanes and more
constexpr uint32_t kMinReceives = 128;
constexpr uint32_t kReceivesPerLane = 32;
constexpr size_t kSendBuffers = 1024;
constexpr int kBatch = 32;
constexpr uint32_t kLookForEvents = 1 << 14; // polls; only for a process that never sleeps

// Gigabytes a second of a port: lanes times what one of them carries.
double rate_of(const ibv_port_attr& port) {
    static const std::map<int, double> lane_gigabits{{1, 2.5},   {2, 5.0},   {4, 10.0},  {8, 10.0},
                                                     {16, 14.0}, {32, 25.0}, {64, 50.0}, {128, 100.0}};
    static const std::map<int, int> widths{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    const auto speed = lane_gigabits.find(port.active_speed);
    const auto width = widths.find(port.active_width);
    return (speed == lane_gigabits.end() ? 10.0 : speed->second) * (width == widths.end() ? 1 : width->second) / 8;
}

} // namespace

VerbsDomain::VerbsDomain(Engine& engine, std::shared_ptr<Device> device, int number, const Options& options)
    : engine_(engine), device_(std::move(device)), number_(number), options_(options),
      max_piece_(std::min(device_->max_message(), static_cast<uint64_t>(options.stripe_bytes))),
      gbps_(rate_of(device_->port_attributes())), send_buffers_(device_, kSendBuffers),
      receive_buffers_(device_, kMaxReceives) {
    const ibv_device_attr& limits = device_->attributes();
    const shim::IbVerbs& api = device_->api();
    port_up_.store(device_->port_attributes().state == IBV_PORT_ACTIVE);
    most_receives_ = static_cast<uint32_t>(std::min({kMaxReceives, limits.max_srq_wr, limits.max_cqe}));
    const int send_entries = std::min(kSendEntries, limits.max_cqe);
    room_.store(send_entries);
    try {
        channel_ = api.create_comp_channel(device_->context());
        if (channel_ == nullptr) {
            raise("cannot make a completion channel on " + device_->name(), errno);
        }
        fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
        send_queue_ = api.create_cq(device_->context(), send_entries, nullptr, channel_, 0);
        receive_queue_ = api.create_cq(device_->context(), static_cast<int>(most_receives_), nullptr, channel_, 0);
        if (send_queue_ == nullptr || receive_queue_ == nullptr) {
            raise("cannot make a completion queue on " + device_->name(), errno);
        }
        ibv_srq_init_attr wanted{};
        wanted.attr.max_wr = most_receives_;
        wanted.attr.max_sge = 1;
        shared_receive_ = api.create_srq(device_->pd(), &wanted);
        if (shared_receive_ == nullptr) {
            raise("cannot make a shared receive queue on " + device_->name(), errno);
        }
        send_buffers_.prepare();
        receive_buffers_.prepare();
    } catch (...) {
        release();
        throw;
    }
    engine_.poller().watch_device(channel_->fd);
    engine_.poller().watch_device(device_->context()->async_fd);
    watched_ = true;
}

VerbsDomain::~VerbsDomain() {
    close();
}

void VerbsDomain::close() {
    if (channel_ != nullptr && device_->is_ours()) {
        const std::lock_guard lock(arm_mutex_);
        unwatch();
        take_completion_events(); // destroying a queue waits until all of its events are acknowledged
        release();
    }
}

void VerbsDomain::unwatch() {
    if (watched_) {
        engine_.poller().unwatch_device(channel_->fd);
        engine_.poller().unwatch_device(device_->context()->async_fd);
        watched_ = false;
    }
}

void VerbsDomain::release() {
    const shim::IbVerbs& api = device_->api();
    if (shared_receive_ != nullptr) {
        api.destroy_srq(shared_receive_);
        shared_receive_ = nullptr;
    }
    for (ibv_cq** queue : {&send_queue_, &receive_queue_}) {
        if (*queue != nullptr) {
            api.destroy_cq(*queue);
            *queue = nullptr;
        }
    }
    if (channel_ != nullptr) {
        api.destroy_comp_channel(channel_);
        channel_ = nullptr;
    }
}

std::map<std::string, std::variant<int64_t, double, std::string>> VerbsDomain::facts() const {
    const ibv_device_attr& limits = device_->attributes();
    return {
        {"gbps", gbps_},
        {"max_message", static_cast<int64_t>(device_->max_message())},
        {"max_inline", static_cast<int64_t>(options_.max_inline)},
        {"atomics", static_cast<int64_t>(atomics())},
        {"link_layer", std::string(device_->is_ethernet() ? "Ethernet" : "InfiniBand")},
        {"mtu", static_cast<int64_t>(128 << device_->port_attributes().active_mtu)},
        {"firmware", std::string(limits.fw_ver)},
    };
}

std::shared_ptr<Registration> VerbsDomain::reg(Region& region, uint64_t address, uint64_t nbytes, uint8_t rights) {
    if (nbytes == 0) {
        throw NativeError(Status::unsupported, Reason::none, "there are no bytes to register");
    }
    int access = region.readonly() ? 0 : IBV_ACCESS_LOCAL_WRITE;
    if ((rights & kRightRead) != 0) {
        access |= IBV_ACCESS_REMOTE_READ;
    }
    if ((rights & kRightWrite) != 0) {
        access |= IBV_ACCESS_REMOTE_WRITE;
    }
    if (rights == (kRightRead | kRightWrite) && atomics()) {
        access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    if (options_.relaxed_ordering != 0) {
        access |= IBV_ACCESS_RELAXED_ORDERING; // optional: a NIC or a kernel without it ignores it
    }
    using Kind = accel::Registrable::Kind;
    std::vector<accel::Registrable> ways;
    if (region.is_host()) {
        ways.push_back({.kind = Kind::plain, .address = address, .why_not = ""});
    } else {
        ways = engine_.accelerators().driver().registrable(address, nbytes);
    }
    return std::make_shared<MemoryRegion>(device_, ways, address, nbytes, access);
}

uint16_t VerbsDomain::join(VerbsEndpoint& lane) {
    auto free = std::find(lanes_.begin(), lanes_.end(), nullptr);
    if (free == lanes_.end()) {
        if (lanes_.size() > UINT16_MAX) {
            throw NativeError(Status::no_memory, Reason::window_full, "65536 lanes are open on " + device_->name());
        }
        free = lanes_.insert(lanes_.end(), nullptr);
    }
    *free = &lane;
    lane_count_.fetch_add(1);
    if (!device_alive()) { // since the lane was begun: it has yet to be told
        failures_.store(true, std::memory_order_release);
    }
    fill_receives();
    return static_cast<uint16_t>(free - lanes_.begin());
}

void VerbsDomain::leave(uint16_t number) {
    lanes_[number] = nullptr;
    lane_count_.fetch_sub(1);
}

std::unique_ptr<QueuePair> VerbsDomain::queue_pair() const {
    return std::make_unique<QueuePair>(
        device_, QueuePair::Queues{.send = send_queue_, .receive = receive_queue_, .shared_receive = shared_receive_},
        options_);
}

void VerbsDomain::know(uint32_t queue_pair, VerbsEndpoint& lane) {
    by_queue_pair_[queue_pair] = &lane;
}

void VerbsDomain::forget(uint32_t queue_pair) {
    by_queue_pair_.erase(queue_pair);
    while (reap()) { // what is left of it names nobody any more
    }
}

bool VerbsDomain::take_room(uint32_t count) {
    const int wanted = static_cast<int>(count);
    if (room_.fetch_sub(wanted, std::memory_order_acquire) >= wanted) {
        return true;
    }
    room_.fetch_add(wanted, std::memory_order_relaxed);
    return false;
}

void VerbsDomain::repost(const Segment& segment) {
    if (!post_receive(segment.index)) {
        idle_receives_.push_back(segment.index);
    }
}

bool VerbsDomain::post_receive(uint32_t index) {
    ibv_sge piece{reinterpret_cast<uint64_t>(receives_[index].data), kSegmentBytes, receives_[index].key};
    ibv_recv_wr request{};
    request.wr_id = index;
    request.sg_list = &piece;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(shared_receive_, &request, &bad) == 0;
}

// As many as the lanes may need; with very many lanes fewer, and then a sender that finds none tries again by itself.
void VerbsDomain::fill_receives() {
    while (!idle_receives_.empty() && post_receive(idle_receives_.back())) {
        idle_receives_.pop_back();
    }
    const auto wanted = static_cast<uint32_t>(lane_count_.load()) * kReceivesPerLane;
    const uint32_t target = std::clamp(wanted, std::min(kMinReceives, most_receives_), most_receives_);
    while (receives_.size() < target) {
        const Buffer buffer = receive_buffers_.take();
        if (!buffer) {
            return;
        }
        receives_.push_back(buffer);
        if (!post_receive(static_cast<uint32_t>(receives_.size() - 1))) {
            idle_receives_.push_back(static_cast<uint32_t>(receives_.size() - 1));
            return;
        }
    }
}

bool VerbsDomain::poll() {
    const bool did = reap();
    if (failures_.load(std::memory_order_acquire)) {
        act_on_failures();
        return true;
    }
    if (++polls_ % kLookForEvents == 0) {
        const std::lock_guard lock(arm_mutex_);
        take_async_events();
    }
    return did;
}

bool VerbsDomain::reap() {
    if (unseen_.load(std::memory_order_relaxed)) {
        unseen_.store(false, std::memory_order_seq_cst); // before the look
    }
    std::array<ibv_wc, kBatch> ended;
    const int sent = ibv_poll_cq(send_queue_, kBatch, ended.data());
    for (int i = 0; i < sent; ++i) {
        const ibv_wc& completion = ended[static_cast<size_t>(i)];
        const size_t number = lane_of(completion.wr_id);
        if (VerbsEndpoint* lane = number < lanes_.size() ? lanes_[number] : nullptr) {
            lane->on_sent(completion);
        }
    }
    const int received = ibv_poll_cq(receive_queue_, kBatch, ended.data());
    if (received > 0) {
        take_receives({ended.data(), static_cast<size_t>(received)});
    }
    if (sent == kBatch || received == kBatch) {
        unseen_.store(true, std::memory_order_relaxed); // there may be more
    }
    return sent > 0 || received > 0;
}

void VerbsDomain::take_receives(std::span<const ibv_wc> ended) {
    for (const ibv_wc& completion : ended) {
        const auto index = static_cast<uint32_t>(completion.wr_id);
        const Segment segment{index, receives_[index].data, completion.byte_len};
        const auto owner = by_queue_pair_.find(completion.qp_num);
        if (completion.status != IBV_WC_SUCCESS || owner == by_queue_pair_.end() ||
            !owner->second->on_received(completion, segment)) {
            repost(segment);
        }
    }
    if (!idle_receives_.empty()) {
        fill_receives();
    }
}

void VerbsDomain::woken() {
    const std::lock_guard lock(arm_mutex_);
    if (channel_ != nullptr) {
        take_completion_events();
        take_async_events();
    }
}

bool VerbsDomain::unarmed(Happening what) const {
    // Without lanes only the port's state can change, and nobody waits for that.
    return lane_count_.load(std::memory_order_relaxed) != 0 &&
           (unseen_.load(std::memory_order_relaxed) || !receive_armed_.load(std::memory_order_relaxed) ||
            (what == Happening::arrivals_and_ends && !send_armed_.load(std::memory_order_relaxed)));
}

bool VerbsDomain::arm(Happening what) {
    const std::lock_guard lock(arm_mutex_);
    if (channel_ == nullptr) {
        return false;
    }
    take_completion_events();
    take_async_events();
    for (auto [armed, queue] : {std::pair{&send_armed_, send_queue_}, std::pair{&receive_armed_, receive_queue_}}) {
        const bool wanted = what == Happening::arrivals_and_ends || queue == receive_queue_;
        if (wanted && !armed->load(std::memory_order_relaxed) && ibv_req_notify_cq(queue, 0) == 0) {
            armed->store(true, std::memory_order_relaxed);
            unseen_.store(true, std::memory_order_seq_cst); // what came before this wakes nobody
        }
    }
    return unseen_.load(std::memory_order_seq_cst) || failures_.load(std::memory_order_acquire);
}

// With arm_mutex_ held.
void VerbsDomain::take_completion_events() {
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    while ((send_armed_.load(std::memory_order_relaxed) || receive_armed_.load(std::memory_order_relaxed)) &&
           device_->api().get_cq_event(channel_, &queue, &unused) == 0) {
        device_->api().ack_cq_events(queue, 1);
        (queue == send_queue_ ? send_armed_ : receive_armed_).store(false, std::memory_order_relaxed);
    }
}

// With arm_mutex_ held.
void VerbsDomain::take_async_events() {
    ibv_async_event event{};
    while (device_->api().get_async_event(device_->context(), &event) == 0) {
        on_async_event(event);
        device_->api().ack_async_event(&event);
    }
}

void VerbsDomain::on_async_event(const ibv_async_event& event) {
    switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        if (event.element.port_num == device_->port()) {
            port_up_.store(event.event_type == IBV_EVENT_PORT_ACTIVE, std::memory_order_release);
            tell_state();
        }
        return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        failed_queue_pairs_.push_back(event.element.qp->qp_num);
        failures_.store(true, std::memory_order_release);
        return;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
        fatal_.store(true, std::memory_order_release);
        failures_.store(true, std::memory_order_release);
        return;
    default: // addresses and tables that changed: looked up again by whoever makes the next lane
        return;
    }
}

void VerbsDomain::tell_state() {
    engine_.events()->push(kDomainChanged | static_cast<uint64_t>(number_));
}

void VerbsDomain::act_on_failures() {
    std::vector<uint32_t> failed;
    {
        const std::lock_guard lock(arm_mutex_);
        failed.swap(failed_queue_pairs_);
        failures_.store(false, std::memory_order_release);
    }
    for (const uint32_t number : failed) {
        if (const auto owner = by_queue_pair_.find(number); owner != by_queue_pair_.end()) {
            owner->second->on_broken({Status::peer_lost, Reason::lane_reset});
        }
    }
    if (!device_alive()) {
        for (VerbsEndpoint* lane : lanes_) {
            if (lane != nullptr) {
                lane->on_broken({Status::peer_lost, Reason::device_lost});
            }
        }
        // Whoever learns of it may close this domain. Nobody polls it then, while lanes and their users may still hold
        // it: what its descriptors say would wake sleepers for nothing.
        unwatch();
        if (!lost_.exchange(true, std::memory_order_acq_rel)) {
            tell_state();
        }
    }
}

} // namespace zerohop::verbs
