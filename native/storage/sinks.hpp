// Who hears that transfers have ended: an operation that they are all part of, or a ring that keeps each result.
#pragma once

#include "base/sync.hpp"
#include "operation/operation.hpp"
#include "provider/host.hpp"
#include "storage/file_queue.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace zerohop::storage {

// Ends an operation with the last of its transfers, whose bytes it sums up. The first failure counts. Fewer bytes than
// `least` are a failure without an errno: the file has ended.
class OperationSink final : public Sink {
public:
    // `moved` learns which way the bytes went.
    OperationSink(Host& host, OpRef op, size_t transfers, uint64_t least, std::shared_ptr<Moved> moved)
        : host_(host), op_(std::move(op)), left_(transfers), least_(least), moved_(std::move(moved)) {}
    void ended(const Range& range, const Ended& ended) override;
    void moved(Passage way, uint64_t nbytes) override { moved_->count(way, nbytes); }
    bool wanted() const override { return !op_->done(); }

private:
    Host& host_;
    OpRef op_;
    size_t left_;
    const uint64_t least_;
    const std::shared_ptr<Moved> moved_;
    Ended sum_;
};

// A part of one of an operation's ranges.
struct RangePart {
    size_t range = 0;
    uint64_t start = 0; // in the range
    uint64_t nbytes = 0;
};

// Ends an operation like OperationSink, of whose ranges the parts are transfers of their own, with the parts' numbers
// as userdata. Of a range count the bytes up to the end of the first part that stops short.
class PartsSink final : public Sink {
public:
    PartsSink(Host& host, OpRef op, std::vector<RangePart> parts, std::vector<uint64_t> ranges, uint64_t least)
        : host_(host), op_(std::move(op)), left_(parts.size()), parts_(std::move(parts)), reached_(std::move(ranges)),
          least_(least) {}
    void ended(const Range& range, const Ended& ended) override;
    bool wanted() const override { return !op_->done(); }

private:
    Host& host_;
    OpRef op_;
    size_t left_;
    const std::vector<RangePart> parts_;
    std::vector<uint64_t> reached_; // of each range; its length at first
    const uint64_t least_;
    Ended first_failure_;
};

// Python reads it as it lies in memory.
struct Completion {
    uint64_t userdata = 0;
    int64_t result = 0; // bytes, or a negative errno
    uint64_t done = 0;  // bytes, also of a failure
    Outcome outcome;    // tells a failure that has no errno
    std::array<uint8_t, 2> unused{};
    uint32_t index = 0;
};
static_assert(sizeof(Completion) == 32);

// Keeps the results of at most `entries` transfers until they are taken. Any thread.
class Ring final : public Sink {
public:
    Ring(Host& host, size_t entries) : host_(host), entries_(entries) { done_.reserve(entries); }
    [[nodiscard]] bool has_room(size_t count) const;
    // Makes room for that many transfers; false, and nothing is done, if there is not enough.
    [[nodiscard]] bool reserve(size_t count);
    // Gives back what transfers that did not begin had reserved.
    void release(size_t count);
    void ended(const Range& range, const Ended& ended) override;
    // Takes results, as many as reserve() has made room for.
    void complete(std::span<const Completion> completions);
    bool wanted() const override { return !closed_.load(std::memory_order_acquire); }

    // Takes none if there are fewer than `least`, and more can still come: another thread may have taken some.
    [[nodiscard]] size_t take(std::span<Completion> completions, size_t least = 0);
    [[nodiscard]] size_t ready() const { return ready_.load(std::memory_order_acquire); }
    // Returns the transfers that have begun, and whose results were not taken.
    [[nodiscard]] size_t taken_up() const;
    // Ends `op` once that many results are there, or all that can still come. Several operations may wait.
    void end_when(size_t results, const OpRef& op);
    // Drops what has not begun. Results still come.
    void close() { closed_.store(true, std::memory_order_release); }

private:
    void end_waiters(std::unique_lock<SpinLock>& lock);
    [[nodiscard]] bool enough(size_t results) const { return done_.size() >= std::min(results, used_); }

    Host& host_;
    const size_t entries_;
    mutable SpinLock lock_;
    size_t used_ = 0;
    std::vector<Completion> done_; // has room for all, so that no end of a transfer needs memory
    struct Waiter {
        size_t results;
        OpRef op;
    };
    std::vector<Waiter> waiters_;
    std::atomic<size_t> ready_{0};
    std::atomic<bool> closed_{false};
};

} // namespace zerohop::storage
