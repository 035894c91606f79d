// Defines the part of FileAsking that sends: transfers, those that are cancelled, and numbers that mean nothing any
// more.
#include "storage/file_asking.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>

namespace zerohop::storage {

// Sends what there is room for. The caller holds the lock.
void FileAsking::send() {
    if (asks_queue_ && !is_closed_.load(std::memory_order_relaxed)) {
        unsent_.store(true, std::memory_order_release);
        try {
            unsent_.store(!(send_forgotten() && send_cancelled() && send_transfers()), std::memory_order_release);
        } catch (const std::bad_alloc&) {
            engine_.kick(); // for poll(), which goes on with it
        }
    }
}

// These return false if the lane has no room.
bool FileAsking::send_transfers() {
    for (auto& waiting : waiting_) {
        while (!waiting.empty() && !free_.empty() && bytes_asked_ < kMostBytesUnderWay) {
            if (!send_first(waiting)) {
                return false;
            }
        }
    }
    return true;
}

bool FileAsking::send_first(std::deque<std::shared_ptr<Batch>>& waiting) {
    const std::shared_ptr<Batch> batch = waiting.front();
    if (batch->sink->wanted()) {
        std::array<Ask, kAsksOfMessage> asks;
        const size_t most = std::min({asks.size(), batch->ranges.size() - batch->next, free_.size()});
        size_t count = 0;
        for (uint64_t nbytes = bytes_asked_; count < most && nbytes < kMostBytesUnderWay; ++count) {
            const size_t i = count;
            const Range& range = batch->ranges[batch->next + i];
            nbytes += range.nbytes;
            asks[i] = {range.file_offset,           range.memory_offset,       range.nbytes,
                       free_[free_.size() - 1 - i], batch->ends.file->value(), batch->ends.memory->value()};
        }
        const Purpose purpose{Purpose::What::transfer, batch->ends.write, batch->ends.priority};
        if (!send(purpose, {asks.data(), count})) {
            return false;
        }
        for (size_t i = 0; i < count; ++i) { // answers are taken under the lock, and so after this
            bytes_asked_ += asks[i].nbytes;
            slots_[free_.back()] = {batch, batch->next++, false};
            free_.pop_back();
        }
    } else {
        end_rest(*batch, kCancelled);
    }
    if (batch->next == batch->ranges.size()) {
        waiting.pop_front();
    }
    return true;
}

bool FileAsking::send_cancelled() {
    while (!cancelled_.empty()) {
        std::array<Ask, kAsksOfMessage> asks;
        const size_t count = std::min(asks.size(), cancelled_.size());
        for (size_t i = 0; i < count; ++i) {
            asks[i].slot = cancelled_[cancelled_.size() - 1 - i];
        }
        if (!send({Purpose::What::cancel}, {asks.data(), count})) {
            return false;
        }
        cancelled_.resize(cancelled_.size() - count);
    }
    return true;
}

bool FileAsking::send_forgotten() {
    while (true) {
        Forgotten first{};
        {
            const std::lock_guard lock(forgotten_lock_);
            if (forgotten_.empty()) {
                forgets_.store(false, std::memory_order_release);
                return true;
            }
            first = forgotten_.front(); // the others come behind it meanwhile
        }
        const Ask ask{.file = first.number, .memory = first.number};
        if (!send({first.what}, {&ask, 1})) {
            return false;
        }
        const std::lock_guard lock(forgotten_lock_);
        forgotten_.pop_front();
    }
}

bool FileAsking::send(const Purpose& purpose, std::span<const Ask> asks) {
    const Message message = message_with<Ask>(asks);
    Request request;
    request.kind = Kind::notify;
    request.notify = notify_of(*asks_queue_, purpose.number());
    request.message = &message;
    // A lane that is gone takes everything: who is asked over it is found out by poll().
    return engine_.try_post(*lane_, request).what != Posted::What::retry;
}

} // namespace zerohop::storage
