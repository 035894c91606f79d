#include "storage/sinks.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

namespace zerohop::storage {

void OperationSink::ended(const Range& /*range*/, const Ended& ended) {
    sum_.nbytes += ended.nbytes;
    if (sum_.outcome.ok()) {
        sum_.outcome = ended.outcome;
        sum_.error = ended.error;
    }
    if (--left_ == 0) {
        if (sum_.outcome.ok() && sum_.nbytes < least_) {
            sum_.outcome = {Status::file_error, Reason::none};
        }
        const OpRef op = std::exchange(op_, OpRef()); // its other holders now see that nothing touches its memory
        host_.finish(op, sum_.outcome, sum_.nbytes, static_cast<uint64_t>(sum_.error));
    }
}

void PartsSink::ended(const Range& range, const Ended& ended) {
    const RangePart& of = parts_[range.userdata];
    if (ended.nbytes < of.nbytes) {
        reached_[of.range] = std::min(reached_[of.range], of.start + ended.nbytes);
    }
    if (first_failure_.outcome.ok()) {
        first_failure_ = ended;
    }
    if (--left_ == 0) {
        const uint64_t nbytes = std::accumulate(reached_.begin(), reached_.end(), uint64_t{0});
        Outcome outcome = first_failure_.outcome;
        if (outcome.ok() && nbytes < least_) {
            outcome = {Status::file_error, Reason::none};
        }
        const int error = outcome.ok() ? 0 : first_failure_.error;
        const OpRef op = std::exchange(op_, OpRef()); // its other holders now see that nothing touches its memory
        host_.finish(op, outcome, nbytes, static_cast<uint64_t>(error));
    }
}

bool Ring::has_room(size_t count) const {
    const std::lock_guard lock(lock_);
    return count <= entries_ - used_;
}

bool Ring::reserve(size_t count) {
    const std::lock_guard lock(lock_);
    if (count > entries_ - used_) {
        return false;
    }
    used_ += count;
    return true;
}

void Ring::release(size_t count) {
    const std::lock_guard lock(lock_);
    used_ -= count;
}

void Ring::ended(const Range& range, const Ended& ended) {
    const int64_t result = ended.error != 0 ? -ended.error : static_cast<int64_t>(ended.nbytes);
    std::unique_lock lock(lock_);
    done_.push_back({.userdata = range.userdata,
                     .result = result,
                     .done = ended.nbytes,
                     .outcome = ended.outcome,
                     .index = range.index});
    ready_.store(done_.size(), std::memory_order_release);
    end_waiters(lock);
}

void Ring::complete(std::span<const Completion> completions) {
    std::unique_lock lock(lock_);
    done_.insert(done_.end(), completions.begin(), completions.end());
    ready_.store(done_.size(), std::memory_order_release);
    end_waiters(lock);
}

// Ends the operations that wait for no more than there is, outside the lock, and wakes threads that wait.
void Ring::end_waiters(std::unique_lock<SpinLock>& lock) {
    std::erase_if(waiters_, [](const Waiter& each) { return each.op->done(); }); // its deadline has passed
    while (true) {
        const auto found =
            std::find_if(waiters_.begin(), waiters_.end(), [&](const Waiter& each) { return enough(each.results); });
        if (found == waiters_.end()) {
            break;
        }
        const OpRef op = std::move(found->op);
        waiters_.erase(found);
        lock.unlock();
        host_.finish(op, {});
        lock.lock();
    }
    lock.unlock();
    host_.wake_waiters();
}

size_t Ring::take(std::span<Completion> completions, size_t least) {
    std::unique_lock lock(lock_);
    const size_t found = std::min(completions.size(), done_.size());
    if (found < std::min(least, used_)) {
        return 0;
    }
    std::copy_n(done_.begin(), found, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(found));
    used_ -= found;
    ready_.store(done_.size(), std::memory_order_release);
    end_waiters(lock); // fewer can still come
    return found;
}

size_t Ring::taken_up() const {
    const std::lock_guard lock(lock_);
    return used_;
}

void Ring::end_when(size_t results, const OpRef& op) {
    std::unique_lock lock(lock_);
    waiters_.push_back({results, op});
    end_waiters(lock);
}

} // namespace zerohop::storage
