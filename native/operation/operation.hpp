// Operation slots: keep the state of operations in flight, and end them.
//
// A slot has two kinds of holder: those that may still end the operation (a lane's request), and those that may still
// ask for it (the Python object). The slot returns to the slab with the last OpRef, so that a completion that comes
// after the deadline finds its own slot, not one that another operation has taken over.
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

// Operations that end together, with their face: those in flight, and those that are still being posted.
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
    // The values below are meaningful once done().
    Reason reason() const { return reason_; }
    uint64_t bytes_done() const { return bytes_done_; }
    uint64_t value() const { return value_; }
    uint64_t started_ns() const { return started_ns_; }
    uint64_t finished_ns() const { return finished_ns_; }
    uint64_t deadline_ns() const { return deadline_ns_; }
    // Number of OpRefs: those of lanes, which may still move its bytes after its end, and those of Python.
    uint32_t holders() const { return holders_.load(std::memory_order_acquire); }

    // Adds the operation to the group; it ends at once if the group has ended.
    void join(const OperationGroup& group);

    // Ends the operation; false if it had ended before (its deadline passed, or it was cancelled).
    bool finish(Outcome outcome, uint64_t bytes_done = 0, uint64_t value = 0);
    // Keeps everybody else from ending the operation, so that its end can be announced before it is seen; false if it
    // has ended. The caller calls finish_claimed() next.
    [[nodiscard]] bool claim();
    void finish_claimed(Outcome outcome, uint64_t bytes_done, uint64_t value = 0);
    // Has `token` pushed to `queue` when the operation ends, in addition to what was armed before; false (and nothing
    // pushed) if it has ended already. Awaited::no: nobody needs to look for the end sooner because of this token.
    enum class Awaited : bool { no, yes };
    bool arm(std::shared_ptr<Listener> queue, uint64_t token, Awaited awaited = Awaited::yes);
    // Undoes arm(): the token is not pushed any more.
    void disarm(const Listener& queue, uint64_t token);
    // Has a failure counted, because nobody will ask for the operation any more; false if it has ended already.
    bool abandon();

private:
    friend class OperationSlab;
    friend class OpRef;
    bool end(bool claimed, Outcome outcome, uint64_t bytes_done, uint64_t value);
    void settle_notes(Outcome outcome);
    void notify_listeners();

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
    bool noted_ = false;   // true once it was armed or abandoned
    bool awaited_ = false; // true while it counts in slab_->awaited_
    bool abandoned_ = false;
    bool claimed_ = false;
    std::atomic<const OperationGroup*> group_{nullptr}; // only compared, never dereferenced
    OperationSlab* slab_ = nullptr;
    Operation* next_free_ = nullptr;
};

// Holds a counted reference to a slot.
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

    [[gnu::always_inline]] void reset(); // inlined, because every path runs it and it is a few instructions
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
    // Calls `on_finish` after each operation that has ended, on the thread that ended it.
    explicit OperationSlab(std::function<void()> on_finish) : on_finish_(std::move(on_finish)) {}

    // Returns a pending slot, begun at `started_ns`. Throws NativeError(no_memory) past 1 Mi operations in flight.
    [[nodiscard]] OpRef create(uint64_t deadline_ns, uint64_t started_ns = now_ns());
    // Ends, with Status::deadline, every operation past its deadline; returns the earliest deadline left (UINT64_MAX:
    // none).
    uint64_t expire(uint64_t now);
    // Ends all pending operations.
    void finish_all(Outcome outcome);
    // Ends the pending operations of the group, and those that join it later. The first outcome counts.
    void finish_group(OperationGroup& group, Outcome outcome);

    // Returns how many operations have failed after they were abandoned, other than by being cancelled or closed here;
    // and the outcome of the last one.
    [[nodiscard]] std::pair<uint64_t, Outcome> unseen_failures() const;
    uint64_t pending() const { return pending_.load(std::memory_order_acquire); }
    // Returns how many pending operations somebody waits for by a token.
    uint64_t awaited() const { return awaited_.load(std::memory_order_seq_cst); }
    // Returns a lower bound of the deadlines in flight; UINT64_MAX if there are none.
    uint64_t earliest_deadline() const { return earliest_.load(std::memory_order_acquire); }

private:
    friend class Operation;
    friend class OpRef;
    static constexpr size_t kChunk = 1024;
    static constexpr size_t kChunks = 1024;
    using Chunk = std::array<Operation, kChunk>;

    void release(Operation* op);
    void count_unseen(Outcome outcome);
    void note_deadline(uint64_t deadline_ns);
    template <class F> void for_each_pending(F&& f);

    std::function<void()> on_finish_;
    mutable SpinLock lock_;
    Operation* free_ = nullptr;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    uint64_t unseen_failures_ = 0;
    Outcome last_unseen_;
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
