#include "storage/file_queue.hpp"

#include "base/pages.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <poll.h>
#include <utility>

namespace zerohop::storage {

namespace {

constexpr size_t kResults = 64;
// Reads of a local disk need less to end. A queue whose engine was closed in a hurry is reaped by nobody else.
constexpr uint64_t kLastWait = 2 * kSecond;
constexpr int kLastWaitPieceMs = 10;

} // namespace

FileQueue::FileQueue(Engine& engine, std::unique_ptr<FileIo> io, uint64_t staging_bytes)
    : engine_(engine),
      in_use_(std::make_unique<InUse>(std::move(io), StagingBlocks(engine.accelerators(), staging_bytes, kPieceBytes))),
      io_(*in_use_->io), staging_(in_use_->staging), pieces_(in_use_->pieces), fixed_(io_) {
    pieces_.resize(io_.depth());
    copying_.reserve(pieces_.size());
    unstaged_.reserve(pieces_.size());
    free_.reserve(pieces_.size());
    for (size_t i = pieces_.size(); i-- > 0;) {
        free_.push_back(i);
    }
}

FileQueue::~FileQueue() {
    for (const uint64_t limit = now_ns() + kLastWait; !is_done() && now_ns() < limit;) {
        pollfd results{io_.fd(), POLLIN, 0};
        if (!abandoned_ && copies_.load(std::memory_order_relaxed) == 0) {
            ::poll(&results, 1, kLastWaitPieceMs);
        }
        const std::lock_guard lock(lock_);
        (void)look();
    }
    if (!is_done()) {
        // The system or a device still uses the memory, which stays pinned for good.
        [[maybe_unused]] const InUse* const left = in_use_.release();
    }
}

Outcome FileQueue::post(Ends ends, std::span<const Range> ranges, std::shared_ptr<Sink> sink) {
    auto batch = std::make_shared<Batch>();
    batch->memory = std::move(ends.memory);
    batch->file = ends.file;
    batch->sink = std::move(sink);
    batch->write = ends.write;
    batch->priority = ends.priority;
    batch->transfers.resize(ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
        Transfer& transfer = batch->transfers[i];
        transfer.range = ranges[i];
        transfer.limit = transfer.reached = ranges[i].nbytes;
    }
    if (ranges.empty()) {
        return {};
    }
    if (!lock_.try_lock()) {
        return leave(std::move(batch));
    }
    const std::lock_guard lock(lock_, std::adopt_lock);
    if (closed_) {
        return *closed_;
    }
    take_left();
    take(std::move(batch));
    try {
        issue();
        (void)look(); // what the cache had is there already
    } catch (const std::bad_alloc&) {
        unsent_.store(true, std::memory_order_release); // the poller goes on with it
    }
    return {};
}

// Leaves transfers to the thread that polls next. The lock's holder may be looking at many files, and a caller who
// begins a transfer is not to wait for that.
Outcome FileQueue::leave(std::shared_ptr<Batch> batch) {
    {
        const std::lock_guard lock(left_lock_);
        left_.push_back(std::move(batch));
        any_left_.store(true, std::memory_order_seq_cst);
    }
    engine_.kick();
    if (is_closed_.load(std::memory_order_seq_cst)) { // it may be polled no more
        const std::lock_guard lock(lock_);
        take_left();
        issue();
    }
    return {};
}

// The caller holds the lock, here and below.
void FileQueue::take_left() {
    if (!any_left_.load(std::memory_order_acquire)) {
        return;
    }
    const std::lock_guard lock(left_lock_);
    while (!left_.empty()) {
        take(left_.front());
        left_.pop_front();
    }
    any_left_.store(false, std::memory_order_seq_cst);
}

void FileQueue::take(std::shared_ptr<Batch> batch) {
    batch->fixed = fixed_.of(batch->memory.identity);
    batch->gpu = gpu_of(batch->memory);
    batch->fixed_file = batch->file->fixed_in(io_);
    if (closed_) {
        fail_rest(*batch, *closed_);
    }
    Batch& taken = *batch;
    waiting_.at(static_cast<size_t>(batch->priority)).push_back(std::move(batch));
    taken.epoch = transfers_.begin(taken.transfers.size()); // now that nothing fails any more: they will end
}

void FileQueue::fail_rest(Batch& batch, Outcome outcome) {
    for (size_t i = batch.next; i < batch.transfers.size(); ++i) {
        fail(batch.transfers[i], outcome, 0);
    }
}

size_t FileQueue::cancel(const Sink& sink, std::optional<uint64_t> userdata, Outcome outcome) {
    const std::lock_guard lock(lock_);
    take_left();
    size_t found = 0;
    const auto cancel_one = [&](Batch& batch, size_t index) {
        Transfer& transfer = batch.transfers[index];
        const bool meant = batch.sink.get() == &sink && (!userdata || transfer.range.userdata == *userdata);
        if (meant && transfer.failure.ok()) {
            fail(transfer, outcome, 0);
            ++found;
        }
    };
    // Those that pieces were made for in full go on, as all their bytes move in any case.
    for (const auto& waiting : waiting_) {
        for (const auto& batch : waiting) {
            for (size_t i = batch->next; i < batch->transfers.size(); ++i) {
                cancel_one(*batch, i);
            }
        }
    }
    issue();
    return found;
}

bool FileQueue::fix(const Place& memory, std::weak_ptr<const void> object, std::string& why) {
    if (memory.host == nullptr) {
        why = "the memory is a device's";
        return false;
    }
    // Before they are fixed: then they cannot move any more. A peer's memory is the peer's to gather.
    if (!memory.foreign && memory.nbytes <= kGatheredBytes) {
        gather_pages(memory.host, memory.nbytes);
    }
    populate_pages(memory.host, memory.nbytes); // which takes long, and would under the lock hold up all transfers
    const std::lock_guard lock(lock_);
    return !closed_ && fixed_.add(memory, std::move(object), why);
}

void FileQueue::unfix(const void* object) {
    const std::lock_guard lock(lock_);
    fixed_.remove(object);
}

bool FileQueue::poll() {
    const bool any_unsent = unsent_.load(std::memory_order_acquire) || any_left_.load(std::memory_order_acquire);
    if ((under_way_.load(std::memory_order_acquire) == 0 && !any_unsent) || !lock_.try_lock()) {
        return false;
    }
    const std::lock_guard lock(lock_, std::adopt_lock);
    return look();
}

bool FileQueue::look() {
    bool moved = false;
    length_ = {};
    std::array<Result, kResults> results;
    while (const size_t found = io_.reap(results)) {
        for (size_t i = 0; i < found; ++i) {
            take_from_system(results[i]);
        }
        moved = true;
    }
    moved |= look_at_copies();
    moved |= any_left_.load(std::memory_order_relaxed);
    take_left();
    if (moved || unsent_.load(std::memory_order_relaxed)) {
        issue();
    }
    return moved;
}

// A result comes once: a lack of memory fails the piece, or its operation would wait for ever.
void FileQueue::take_from_system(const Result& result) {
    const Piece& piece = pieces_[result.number];
    try {
        piece.carrier == nullptr ? take_result(result) : take_from_carrier(result);
    } catch (const std::bad_alloc&) {
        if (piece.batch) { // else it has ended
            fail_piece(result.number, {Status::no_memory, Reason::out_of_memory}, 0);
        }
    }
}

Backlog FileQueue::backlog() const {
    Backlog backlog;
    backlog.ready = io_.ready() || unsent_.load(std::memory_order_acquire) || any_left_.load(std::memory_order_acquire);
    backlog.in_device = copies_.load(std::memory_order_acquire) != 0;
    backlog.look_in_ns = backlog.in_device ? kDeviceInterval : UINT64_MAX;
    return backlog;
}

void FileQueue::close(Outcome outcome) {
    const std::lock_guard lock(lock_);
    closed_ = outcome;
    take_left();
    for (const auto& waiting : waiting_) {
        for (const auto& batch : waiting) {
            fail_rest(*batch, outcome);
        }
    }
    issue();
    is_closed_.store(true, std::memory_order_seq_cst);
}

bool FileQueue::idle() const {
    return is_closed_.load(std::memory_order_seq_cst) && is_done() && !any_left_.load(std::memory_order_seq_cst);
}

// Peers have no part in what this process moves by itself.
OpRef FileQueue::under_way_at(int peer) {
    if (peer >= 0) {
        return {};
    }
    const std::lock_guard lock(lock_);
    take_left();
    return transfers_.all();
}

void FileQueue::abandon() {
    abandoned_ = true;
    io_.abandon();
}

// Makes pieces as long as there is room for them.
void FileQueue::issue() {
    length_ = {};
    if (issue_unstaged()) {
        for (auto& waiting : waiting_) {
            while (!waiting.empty() && issue_first(waiting)) {
            }
        }
    }
    unsent_.store(true, std::memory_order_release); // until it has returned: it may lack memory
    unsent_.store(!io_.submit(), std::memory_order_release);
}

// Makes one piece, or ends the first transfer; false if there is no room for a piece.
bool FileQueue::issue_first(std::deque<std::shared_ptr<Batch>>& waiting) {
    const std::shared_ptr<Batch> batch = waiting.front();
    Transfer& transfer = batch->transfers[batch->next];
    if (transfer.issued < transfer.limit && !batch->sink->wanted()) {
        fail(transfer, kCancelled, 0);
    }
    if (transfer.issued < transfer.limit && !begin_piece(batch, transfer, batch->next)) {
        return false;
    }
    if (transfer.issued >= transfer.limit) {
        transfer.all_issued = true;
        if (transfer.pieces == 0) {
            end(*batch, transfer);
        }
        if (++batch->next == batch->transfers.size()) {
            waiting.pop_front();
        }
    }
    return true;
}

// Makes no more pieces of a transfer. The first failure counts.
void FileQueue::fail(Transfer& transfer, Outcome outcome, int error) {
    if (transfer.failure.ok()) {
        transfer.failure = outcome;
        transfer.error = error;
    }
    stop(transfer);
}

void FileQueue::end(Batch& batch, Transfer& transfer) {
    const uint64_t nbytes = std::min(transfer.reached, transfer.limit);
    batch.sink->ended(transfer.range, {nbytes, transfer.failure, transfer.error});
    transfers_.end_one(batch.epoch);
}

} // namespace zerohop::storage
