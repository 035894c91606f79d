#include "operation/completion_queue.hpp"

#include "base/sync.hpp"

#include <new>

namespace zerohop {

// A token that is lost would leave somebody waiting for ever, so it is tried again until there is memory for its 8
// bytes.
void CompletionQueue::push(uint64_t token) {
    while (!try_push(token)) {
        nap_shortly();
    }
}

bool CompletionQueue::try_push(uint64_t token) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        return true;
    }
    try {
        tokens_.push_back(token);
    } catch (const std::bad_alloc&) {
        return false;
    }
    size_.store(tokens_.size(), std::memory_order_release);
    if (tokens_.size() == 1) { // if there were tokens before, the descriptor is readable already
        event_.ring();
    }
    return true;
}

std::vector<uint64_t> CompletionQueue::drain() {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> tokens;
    tokens.swap(tokens_);
    size_.store(0, std::memory_order_release);
    if (!tokens.empty() && event_) {
        (void)event_.drain(); // rung or not
    }
    return tokens;
}

bool CompletionQueue::closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
}

void CompletionQueue::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    tokens_.clear();
    size_.store(0, std::memory_order_release);
    event_.reset();
}

} // namespace zerohop
