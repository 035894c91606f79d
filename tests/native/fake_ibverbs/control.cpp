#include "control.hpp"

#include "state.hpp"

#include <algorithm>

namespace zerohop::fake {

namespace {

QueuePair* find(uint32_t number) {
    const auto found = world().queue_pairs.find(number);
    return found == world().queue_pairs.end() ? nullptr : found->second;
}

void raise_everywhere(const std::string& device, ibv_event_type type) {
    for (Context* context : world().contexts) {
        if (!context->dead && device == context->of->name) {
            context->dead = type == IBV_EVENT_DEVICE_FATAL;
            Event event;
            event.event.event_type = type;
            event.event.element.port_num = 1;
            raise(*context, event);
        }
    }
}

} // namespace

void fail_call(Call call, int nth, int error) {
    const std::lock_guard lock(world().mutex);
    world().failures[static_cast<size_t>(call)] = {nth, error};
}

void fail_request(uint32_t queue_pair, ibv_wc_status status) {
    const std::lock_guard lock(world().mutex);
    find(queue_pair)->fails_with = status;
}

void raise_qp(uint32_t queue_pair, ibv_event_type type) {
    const std::lock_guard lock(world().mutex);
    QueuePair& pair = *find(queue_pair);
    if (type == IBV_EVENT_QP_FATAL) {
        stop(pair);
    }
    raise_for(pair, type);
    progress_all(); // queue pairs that sent to it find out
}

void raise_cq_of(uint32_t queue_pair, ibv_event_type type) {
    const std::lock_guard lock(world().mutex);
    CompletionQueue& queue = find(queue_pair)->sent();
    Event event;
    event.event.event_type = type;
    event.event.element.cq = &queue;
    event.acknowledged = &queue.async_acknowledged;
    raise(*static_cast<Context*>(queue.context), event);
}

void raise_device(const std::string& device, ibv_event_type type) {
    const std::lock_guard lock(world().mutex);
    raise_everywhere(device, type);
}

void set_port(const std::string& device, bool up) {
    const std::lock_guard lock(world().mutex);
    for (const auto& each : world().devices) {
        if (device == each->name) {
            each->port.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
        }
    }
    raise_everywhere(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    progress_all();
}

void set_lid(const std::string& device, uint16_t lid) {
    const std::lock_guard lock(world().mutex);
    for (const auto& each : world().devices) {
        if (device == each->name) {
            each->port.lid = lid;
        }
    }
    raise_everywhere(device, IBV_EVENT_LID_CHANGE);
}

void hold_requests(bool held) {
    const std::lock_guard lock(world().mutex);
    world().requests_held = held;
    progress_all();
}

void hold_completions(bool held) {
    const std::lock_guard lock(world().mutex);
    world().completions_held = held;
    if (!held) {
        for (CompletionQueue* queue : world().completion_queues) {
            show_completions(*queue);
        }
    }
}

void hold_posts(const std::vector<uint32_t>& queue_pairs) {
    const std::lock_guard lock(world().mutex);
    world().posts_held = {queue_pairs.begin(), queue_pairs.end()};
    world().acknowledged.notify_all();
}

void slow_posts(const std::vector<uint32_t>& queue_pairs, std::chrono::nanoseconds each) {
    const std::lock_guard lock(world().mutex);
    world().posts_slow = {queue_pairs.begin(), queue_pairs.end()};
    world().slow_post = each;
}

size_t posts_waiting() {
    const std::lock_guard lock(world().mutex);
    return world().posts_waiting;
}

void hold_connects(bool held) {
    const std::lock_guard lock(world().mutex);
    world().connects_held = held;
    world().acknowledged.notify_all();
}

size_t connects_waiting() {
    const std::lock_guard lock(world().mutex);
    return world().connects_waiting;
}

std::optional<Modified> modified(uint32_t queue_pair, ibv_qp_state state) {
    const std::lock_guard lock(world().mutex);
    const QueuePair* pair = find(queue_pair);
    if (pair == nullptr || !pair->history.contains(state)) {
        return std::nullopt;
    }
    return pair->history.at(state);
}

std::optional<ibv_qp_init_attr> created(uint32_t queue_pair) {
    const std::lock_guard lock(world().mutex);
    const QueuePair* pair = find(queue_pair);
    return pair == nullptr ? std::nullopt : std::optional(pair->made_with);
}

size_t receives(const std::string& device) {
    const std::lock_guard lock(world().mutex);
    size_t posted = 0;
    for (const SharedReceiveQueue* shared : world().shared_receive_queues) {
        posted += device == static_cast<Context*>(shared->context)->of->name ? shared->queue.posted.size() : 0;
    }
    return posted;
}

std::vector<uint32_t> queue_pairs(const std::string& device) {
    const std::lock_guard lock(world().mutex);
    std::vector<uint32_t> numbers;
    for (const auto& [number, pair] : world().queue_pairs) {
        if (device == pair->of().of->name) {
            numbers.push_back(number);
        }
    }
    return numbers;
}

size_t waiting(uint32_t queue_pair) {
    const std::lock_guard lock(world().mutex);
    const QueuePair* pair = find(queue_pair);
    return pair == nullptr ? 0 : pair->sends.size();
}

Carried carried(uint32_t queue_pair) {
    const std::lock_guard lock(world().mutex);
    const QueuePair* pair = find(queue_pair);
    return pair == nullptr ? Carried{} : pair->carried;
}

Census census() {
    const std::lock_guard lock(world().mutex);
    return world().open;
}

void reset() {
    const std::lock_guard lock(world().mutex);
    World& all = world();
    all.failures = {};
    all.requests_held = all.completions_held = all.connects_held = false;
    all.posts_held.clear();
    all.posts_slow.clear();
    all.acknowledged.notify_all();
    all.open.misuses = 0;
    for (const auto& device : all.devices) {
        device->port.state = IBV_PORT_ACTIVE;
    }
    for (const auto& [number, pair] : all.queue_pairs) {
        pair->fails_with.reset();
    }
}

} // namespace zerohop::fake
