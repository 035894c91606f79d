#include "operation/completion_queue.hpp"

#include "base/status.hpp"

#include <cerrno>
#include <cstring>
#include <sys/eventfd.h>
#include <unistd.h>

namespace zerohop {

CompletionQueue::CompletionQueue() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) {
        throw NativeError(Status::no_memory, Reason::out_of_descriptors,
                          std::string("cannot make an event descriptor: ") + std::strerror(errno));
    }
}

void CompletionQueue::push(uint64_t token) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        return;
    }
    tokens_.push_back(token);
    size_.store(tokens_.size(), std::memory_order_release);
    if (tokens_.size() == 1) { // if there were tokens before, the descriptor is readable already
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
    }
}

std::vector<uint64_t> CompletionQueue::drain() {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> tokens;
    tokens.swap(tokens_);
    size_.store(0, std::memory_order_release);
    if (!tokens.empty() && event_) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof count);
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
