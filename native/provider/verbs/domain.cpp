#include "provider/verbs/domain.hpp"

#include "provider/verbs/endpoint.hpp"
#include "provider/verbs/memory_region.hpp"
#include "provider/verbs/tuning.hpp"

#include <algorithm>
#include <cerrno>

namespace zerohop::verbs {

namespace {

// Returns the gigabytes a second of a port: its lanes times what one of them carries.
double rate_of(const ibv_port_attr& port) {
    static const std::map<int, double> lane_gigabits{{1, 2.5},   {2, 5.0},   {4, 10.0},  {8, 10.0},
                                                     {16, 14.0}, {32, 25.0}, {64, 50.0}, {128, 100.0}};
    static const std::map<int, int> widths{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    const auto speed = lane_gigabits.find(port.active_speed);
    const auto width = widths.find(port.active_width);
    return (speed == lane_gigabits.end() ? 10.0 : speed->second) * (width == widths.end() ? 1 : width->second) / 8;
}

} // namespace

VerbsDomain::VerbsDomain(Host& host, std::shared_ptr<Device> opened, int number, const Options& options)
    : Domain("verbs", opened->name(), opened->port(), number), host_(host), device_(std::move(opened)),
      options_(options), lane_options_(options),
      max_piece_(std::min(device_->max_message(), static_cast<uint64_t>(options.stripe_bytes))),
      gbps_(rate_of(device_->port_attributes())), send_buffers_(device_, kSendBuffers),
      receive_buffers_(device_, kMaxReceives) {
    const ibv_device_attr& limits = device_->attributes();
    const shim::IbVerbs& api = device_->api();
    port_up_.store(device_->port_attributes().state == IBV_PORT_ACTIVE);
    most_receives_ = static_cast<uint32_t>(std::min({kMaxReceives, limits.max_srq_wr, limits.max_cqe}));
    const int send_entries = std::min(kSendEntries, limits.max_cqe);
    room_.store(send_entries);
    channel_ = make_channel(*device_);
    const auto make_queue = [&](int entries) {
        ibv_cq* const made = api.create_cq(device_->context(), entries, nullptr, channel_.get(), 0);
        if (made == nullptr) {
            raise("cannot make a completion queue on " + device_->name(), errno);
        }
        return Made<ibv_cq>(made, {device_.get(), api.destroy_cq});
    };
    send_queue_ = make_queue(send_entries);
    receive_queue_ = make_queue(static_cast<int>(most_receives_));
    ibv_srq_init_attr wanted{};
    wanted.attr.max_wr = most_receives_;
    wanted.attr.max_sge = 1;
    if (limits.max_srq == 0 || most_receives_ == 0) {
        throw NativeError(Status::unsupported, Reason::none,
                          device_->name() + " has no shared receive queues, which lanes need");
    }
    shared_receive_ = Made<ibv_srq>(api.create_srq(device_->pd(), &wanted), {device_.get(), api.destroy_srq});
    if (shared_receive_ == nullptr) {
        raise("cannot make a shared receive queue on " + device_->name(), errno);
    }
    send_buffers_.prepare();
    receive_buffers_.prepare();
    host_.watch_device(channel_->fd);
    try {
        host_.watch_device(device_->context()->async_fd);
    } catch (...) { // whatever it is: the descriptor is closed next, and its watch is counted
        host_.unwatch_device(channel_->fd);
        throw;
    }
    watched_ = true;
}

VerbsDomain::~VerbsDomain() {
    if (channel_ != nullptr && device_->is_ours()) {
        const std::lock_guard lock(arm_mutex_);
        unwatch();
        take_completion_events(); // destroying a queue waits until all of its events are acknowledged
    }
}

void VerbsDomain::unwatch() {
    if (watched_) {
        host_.unwatch_device(channel_->fd);
        host_.unwatch_device(device_->context()->async_fd);
        watched_ = false;
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
        ways = host_.accelerators().registrable(address, nbytes);
        host_.accelerators().expect_inbound(region.device());
    }
    const auto whose = region.is_host() ? MemoryRegion::Whose::host : MemoryRegion::Whose::accelerator;
    return std::make_shared<MemoryRegion>(device_, ways, address, nbytes, access, whose);
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

void VerbsDomain::retune(const DomainOptions& options) {
    const Options wanted = Options::from(options);
    const std::lock_guard lock(lane_options_mutex_);
    lane_options_ = wanted;
}

std::unique_ptr<QueuePair> VerbsDomain::queue_pair() {
    const auto options = [this] {
        const std::lock_guard lock(lane_options_mutex_);
        return lane_options_;
    };
    return std::make_unique<QueuePair>(device_,
                                       QueuePair::Queues{.send = send_queue_.get(),
                                                         .receive = receive_queue_.get(),
                                                         .shared_receive = shared_receive_.get()},
                                       options());
}

bool VerbsDomain::take_room(uint32_t count) {
    const int wanted = static_cast<int>(count);
    if (room_.fetch_sub(wanted, std::memory_order_acquire) >= wanted) {
        return true;
    }
    room_.fetch_add(wanted, std::memory_order_relaxed);
    return false;
}

} // namespace zerohop::verbs
