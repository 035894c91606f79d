// Operation slots: where an operation in flight keeps its state, and how it ends.
//
// A slot has two kinds of holder: whoever may still end it (a lane's request) and whoever may still ask (the Python
// object). It returns to the slab when the last OpRef goes, so that a completion that comes after its deadline finds
// its own slot and not somebody else's.
#pragma once

#include "base/clock.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "operation/completion_queue.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop {

class OperationSlab;

// Operations that end together when whoever began them goes: those in flight, and those that are being posted.
class OperationGroup {
public:
    [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_seq_cst); }
    // Meaningful once ended().
    [[nodiscard]] Outcome outcome() const { return outcome_; }

private:
    friend class OperationSlab;
    Outcome outcome_;
    std::atomic<bool> ended_{false};
};

class alignas(64) Operation {
public:
    bool done() const { return status_.load(std::memory_order_acquire) != Status::pending; }
    Status status() const { return status_.load(std::memory_order_acquire); }
    // The rest is meaningful once done().
    Reason reason() const { return reason_; }
    uint64_t bytes_done() const { return bytes_done_; }
    uint64_t value() const { return value_; }
    uint64_t started_ns() const { return started_ns_; }
    uint64_t finished_ns() const { return finished_ns_; }
    uint64_t deadline_ns() const { return deadline_ns_; }

    // It is one of these from now on; it ends where they have.
    void join(const OperationGroup& group);

    // Ends the operation; false when it had ended before (its deadline passed, or it was cancelled).
    bool finish(Outcome outcome, uint64_t bytes_done = 0, uint64_t value = 0);
    // Asks for `token` in `queue` when it ends, beside whoever asked before; false (and nothing queued) when it has
    // ended already.
    enum class Awaited : bool { no, yes }; // no: nobody needs to look for the end sooner because of this
    bool arm(std::shared_ptr<Listener> queue, uint64_t token, Awaited awaited = Awaited::yes);
    // Whoever asked so does not want to know any more.
    void disarm(const Listener& queue, uint64_t token);

private:
    friend class OperationSlab;
    friend class OpRef;
    void tell();

    std::atomic<Status> status_{Status::ok};
    Reason reason_ = Reason::none;
    SpinLock lock_;
    std::atomic<uint32_t> holders_{0};
    uint64_t deadline_ns_ = 0;
    uint64_t started_ns_ = 0;
    uint64_t finished_ns_ = 0;
    uint64_t bytes_done_ = 0;
    uint64_t value_ = 0;
    std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> armed_;
    bool awaited_ = false;                              // it counts among those that are
    std::atomic<const OperationGroup*> group_{nullptr}; // compared, never looked into
    OperationSlab* slab_ = nullptr;
    Operation* next_free_ = nullptr;
};

// A counted reference to a slot.
class OpRef {
public:
    OpRef() = default;
    OpRef(const OpRef& other) : op_(other.op_) {
        if (op_ != nullptr) {
            op_->holders_.fetch_add(1, std::memory_order_relaxed);
        }
    }
    OpRef(OpRef&& other) noexcept : op_(std::exchange(other.op_, nullptr)) {}
    OpRef& operator=(OpRef other) noexcept {
        std::swap(op_, other.op_);
        return *this;
    }
    [[gnu::always_inline]] ~OpRef() { reset(); }
    void swap(OpRef& other) noexcept { std::swap(op_, other.op_); }

    [[gnu::always_inline]] void reset(); // a few instructions, and on every way
    Operation* operator->() const { return op_; }
    Operation& operator*() const { return *op_; }
    explicit operator bool() const { return op_ != nullptr; }

private:
    friend class OperationSlab;
    explicit OpRef(Operation* op) : op_(op) {}
    Operation* op_ = nullptr;
};

class OperationSlab {
public:
    // `on_finish` is called after each operation that ended, on the thread that ended it.
    explicit OperationSlab(std::function<void()> on_finish) : on_finish_(std::move(on_finish)) {}

    // A pending slot, begun at `started_ns`. Throws NativeError(no_memory) past 1 Mi operations in flight.
    [[nodiscard]] OpRef create(uint64_t deadline_ns, uint64_t started_ns = now_ns());
    // Ends with `deadline` whatever has passed its deadline; returns the earliest that is left (0: none).
    uint64_t expire(uint64_t now);
    // Ends everything that pends.
    void finish_all(Outcome outcome);
    // The same of one group, to which nothing can be added any more. The first outcome counts.
    void finish_group(OperationGroup& group, Outcome outcome);

    uint64_t pending() const { return pending_.load(std::memory_order_acquire); }
    // Of these, how many are to be told of in a completion queue.
    uint64_t awaited() const { return awaited_.load(std::memory_order_seq_cst); }
    // A lower bound of the deadlines in flight; UINT64_MAX when none.
    uint64_t earliest_deadline() const { return earliest_.load(std::memory_order_acquire); }

private:
    friend class Operation;
    friend class OpRef;
    static constexpr size_t kChunk = 1024;
    static constexpr size_t kChunks = 1024;
    using Chunk = std::array<Operation, kChunk>;

    void release(Operation* op);
    void note_deadline(uint64_t deadline_ns);
    template <class F> void for_each_pending(F&& f);

    std::function<void()> on_finish_;
    SpinLock lock_;
    Operation* free_ = nullptr;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::atomic<uint64_t> pending_{0};
    std::atomic<uint64_t> awaited_{0};
    std::atomic<uint64_t> earliest_{UINT64_MAX};
};

inline void OpRef::reset() {
    if (op_ != nullptr) {
        Operation* op = std::exchange(op_, nullptr);
        if (op->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            op->slab_->release(op);
        }
    }
}

} // namespace zerohop
