// Implements completion queues and channels.
#include "state.hpp"

#include <cerrno>
#include <cstring>

namespace zerohop::fake {

namespace {

// Sends one completion event if the queue is armed.
void tell(CompletionQueue& queue) {
    if (queue.armed && queue.channel != nullptr) {
        queue.armed = false;
        auto& channel = *static_cast<Channel*>(queue.channel);
        channel.events.push_back(&queue);
        channel.bell.ring();
    }
}

} // namespace

void complete(CompletionQueue& queue, const Completion& completion) {
    if (queue.entries.size() == static_cast<size_t>(queue.cqe)) {
        if (!queue.overrun) { // the entry is lost, and the queue no longer usable
            queue.overrun = true;
            Event event;
            event.event.event_type = IBV_EVENT_CQ_ERR;
            event.event.element.cq = &queue;
            event.acknowledged = &queue.async_acknowledged;
            raise(*static_cast<Context*>(queue.context), event);
        }
        return;
    }
    queue.entries.push_back(completion);
    if (!world().completions_held) {
        tell(queue);
    }
}

void show_completions(CompletionQueue& queue) {
    if (!queue.entries.empty()) {
        tell(queue);
    }
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* into) {
    const std::lock_guard lock(world().mutex);
    auto& queue = *static_cast<CompletionQueue*>(cq);
    if (world().completions_held) {
        return 0;
    }
    int got = 0;
    for (; got < count && !queue.entries.empty(); ++got) {
        const Completion& front = queue.entries.front();
        into[got] = front.entry;
        if (front.sender != nullptr) {
            front.sender->freed = front.place;
        }
        queue.entries.pop_front();
    }
    return got;
}

int req_notify_cq(ibv_cq* cq, int /*solicited_only*/) {
    const std::lock_guard lock(world().mutex);
    static_cast<CompletionQueue*>(cq)->armed = true;
    return 0;
}

} // namespace zerohop::fake

using namespace zerohop::fake;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::create_channel, context)) {
        return nullptr;
    }
    auto* channel = new Channel;
    channel->context = context;
    channel->fd = channel->bell.fd();
    ++static_cast<Context*>(context)->users;
    ++world().open.channels;
    return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
    const std::lock_guard lock(world().mutex);
    auto* ours = static_cast<Channel*>(channel);
    if (ours->users != 0) {
        ++world().open.misuses;
        return EBUSY;
    }
    --static_cast<Context*>(channel->context)->users;
    --world().open.channels;
    delete ours;
    return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel, int /*vector*/) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::create_cq, context)) {
        return nullptr;
    }
    auto* queue = new CompletionQueue;
    queue->context = context;
    queue->channel = channel;
    queue->cq_context = cq_context;
    queue->cqe = entries;
    if (channel != nullptr) {
        ++static_cast<Channel*>(channel)->users;
    }
    world().completion_queues.insert(queue);
    ++static_cast<Context*>(context)->users;
    ++world().open.completion_queues;
    return queue;
}

int ibv_destroy_cq(ibv_cq* cq) {
    std::unique_lock lock(world().mutex);
    auto* queue = static_cast<CompletionQueue*>(cq);
    if (queue->users != 0) {
        ++world().open.misuses;
        return EBUSY;
    }
    if (queue->channel != nullptr) {
        auto& channel = *static_cast<Channel*>(queue->channel);
        std::erase(channel.events, queue);
        if (channel.events.empty()) {
            channel.bell.silence();
        }
        --channel.users;
    }
    auto& context = *static_cast<Context*>(queue->context);
    forget_events(context, &queue->async_acknowledged);
    world().acknowledged.wait(
        lock, [&] { return queue->told == queue->acknowledged && queue->async_told == queue->async_acknowledged; });
    world().completion_queues.erase(queue);
    --context.users;
    --world().open.completion_queues;
    delete queue;
    return 0;
}

// Never blocks, whatever the descriptor's flags.
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
    const std::lock_guard lock(world().mutex);
    auto& ours = *static_cast<Channel*>(channel);
    if (ours.events.empty()) {
        errno = EAGAIN;
        return -1;
    }
    CompletionQueue* queue = ours.events.front();
    ours.events.pop_front();
    if (ours.events.empty()) {
        ours.bell.silence();
    }
    ++queue->told;
    *cq = queue;
    *cq_context = queue->cq_context;
    return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
    const std::lock_guard lock(world().mutex);
    static_cast<CompletionQueue*>(cq)->acknowledged += count;
    world().acknowledged.notify_all();
}

const char* ibv_wc_status_str(ibv_wc_status /*status*/) {
    return "a status";
}

} // extern "C"
