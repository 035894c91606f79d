#include "storage/file_queue.hpp"

#include "base/pages.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <new>
#include <poll.h>
#include <utility>

namespace zerohop::storage {

namespace {

// A copy of the cache's that takes longer is for another thread.
constexpr uint64_t kSlowCopy = 64ULL << 10;
constexpr size_t kResults = 64;
// What reads of a local disk need to end, at most. A queue whose engine was closed in a hurry is reaped by nobody else.
constexpr uint64_t kLastWait = 2 * kSecond;
constexpr int kLastWaitPieceMs = 10;
constexpr Outcome kFileError{Status::file_error, Reason::none};
constexpr Outcome kNotDirect{Status::unsupported, Reason::not_direct};

// The system may be asked again for what it did not even try.
bool is_passing(int error) {
    return error == EINTR || error == EAGAIN || error == ECANCELED;
}

} // namespace

FileQueue::FileQueue(Engine& engine, std::unique_ptr<FileIo> io, uint64_t staging_bytes)
    : engine_(engine),
      in_use_(std::make_unique<InUse>(std::move(io), StagingBlocks(engine.accelerators(), staging_bytes, kPieceBytes))),
      io_(*in_use_->io), staging_(in_use_->staging), pieces_(in_use_->pieces), fixed_(io_) {
    pieces_.resize(io_.depth());
    copying_.reserve(pieces_.size());
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
    const std::lock_guard lock(lock_);
    if (closed_) {
        return *closed_;
    }
    if (const auto* const fixed = fixed_.of(batch->memory.identity); fixed != nullptr) {
        batch->fixed = *fixed;
    }
    waiting_.at(static_cast<size_t>(ends.priority)).push_back(std::move(batch));
    try {
        issue();
        (void)look(); // what the cache had is there already
    } catch (const std::bad_alloc&) {
        unsent_.store(true, std::memory_order_release); // the poller goes on with it
    }
    return {};
}

size_t FileQueue::cancel(const Sink& sink, std::optional<uint64_t> userdata, Outcome outcome) {
    const std::lock_guard lock(lock_);
    size_t found = 0;
    const auto cancel_one = [&](Batch& batch, size_t index) {
        Transfer& transfer = batch.transfers[index];
        const bool meant = batch.sink.get() == &sink && (!userdata || transfer.range.userdata == *userdata);
        if (meant && transfer.failure.ok()) {
            fail(transfer, outcome, 0);
            ++found;
        }
    };
    for (const Piece& piece : pieces_) {
        if (piece.batch) {
            cancel_one(*piece.batch, piece.transfer);
        }
    }
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
    const std::lock_guard lock(lock_);
    return !closed_ && fixed_.add(memory, std::move(object), why);
}

void FileQueue::unfix(const void* object) {
    const std::lock_guard lock(lock_);
    fixed_.remove(object);
}

bool FileQueue::poll() {
    if ((under_way_.load(std::memory_order_acquire) == 0 && !unsent_.load(std::memory_order_acquire)) ||
        !lock_.try_lock()) {
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
            take_result(results[i]);
        }
        moved = true;
    }
    moved |= look_at_copies();
    if (moved || unsent_.load(std::memory_order_relaxed)) {
        issue();
    }
    return moved;
}

Backlog FileQueue::backlog() const {
    Backlog backlog;
    backlog.ready = io_.ready() || unsent_.load(std::memory_order_acquire);
    backlog.in_device = copies_.load(std::memory_order_acquire) != 0;
    backlog.look_in_ns = backlog.in_device ? kDeviceInterval : UINT64_MAX;
    return backlog;
}

void FileQueue::close(Outcome outcome) {
    const std::lock_guard lock(lock_);
    closed_ = outcome;
    for (const auto& waiting : waiting_) {
        for (const auto& batch : waiting) {
            for (size_t i = batch->next; i < batch->transfers.size(); ++i) {
                fail(batch->transfers[i], outcome, 0);
            }
        }
    }
    issue();
    is_closed_.store(true, std::memory_order_release);
}

bool FileQueue::idle() const {
    return is_closed_.load(std::memory_order_acquire) && is_done();
}

void FileQueue::abandon() {
    abandoned_ = true;
    io_.abandon();
}

// Makes pieces as long as there is room for them. The caller holds the lock.
void FileQueue::issue() {
    length_ = {};
    for (auto& waiting : waiting_) {
        while (!waiting.empty() && issue_first(waiting)) {
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
        fail(transfer, {Status::cancelled, Reason::user}, 0);
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

// Returns false if there is no room; the transfer may also have failed.
bool FileQueue::begin_piece(const std::shared_ptr<Batch>& batch, Transfer& transfer, size_t index) {
    if (free_.empty()) {
        return false;
    }
    const size_t number = free_.back();
    Piece& piece = pieces_[number];
    if (batch->memory.host != nullptr) {
        piece.at = batch->memory.host + transfer.range.memory_offset + transfer.issued;
    } else {
        Outcome why;
        piece.block = staging_.try_acquire(why);
        if (!piece.block) {
            if (!why.ok()) {
                fail(transfer, why, 0);
            }
            return !why.ok();
        }
        piece.at = piece.block.data();
    }
    free_.pop_back();
    piece.batch = batch;
    piece.transfer = index;
    piece.start = transfer.issued;
    piece.nbytes = std::min(kPieceBytes, transfer.limit - transfer.issued);
    piece.done = 0;
    piece.refused = false;
    transfer.issued += piece.nbytes;
    ++transfer.pieces;
    under_way_.fetch_add(1, std::memory_order_release);
    if (batch->write && piece.block) {
        copy(number, false);
    } else {
        add_job(number);
    }
    return true;
}

// Asks the system for what is left of a piece; ends it if that must go past the cache, and cannot.
void FileQueue::add_job(size_t number) {
    Piece& piece = pieces_[number];
    Batch& batch = *piece.batch;
    const uint64_t offset = batch.transfers[piece.transfer].range.file_offset + piece.start + piece.done;
    const uint64_t left = piece.nbytes - piece.done;
    std::byte* const data = piece.at + piece.done;
    OpenFile::Way way{batch.file->fd(), false};
    if (!piece.refused) {
        way = batch.file->way(batch.write, offset, left, data, length_);
    }
    if (!way.past_cache && batch.file->is_direct_required()) {
        fail(batch.transfers[piece.transfer], kNotDirect, 0);
        return finish_piece(number);
    }
    piece.past_cache = way.past_cache;
    const bool slow = !way.past_cache && left > kSlowCopy;
    const int buffer = batch.fixed.empty()
                           ? -1
                           : FixedBuffers::find(batch.fixed, static_cast<uint64_t>(data - batch.memory.host), left);
    io_.add({way.fd, batch.write, slow, batch.priority, data, static_cast<uint32_t>(left), offset, buffer, number});
}

void FileQueue::take_result(const Result& result) {
    Piece& piece = pieces_[result.number];
    Batch& batch = *piece.batch;
    if (result.value < 0 && is_passing(-result.value)) {
        if (!closed_ && batch.sink->wanted()) {
            return add_job(result.number);
        }
        return fail_piece(result.number, closed_.value_or(Outcome{Status::cancelled, Reason::user}), 0);
    }
    if (result.refused) {
        return fail_piece(result.number, {Status::unsupported, Reason::not_allowed}, 0);
    }
    if (result.value == -EINVAL && piece.past_cache) {
        batch.file->refuse_direct();
        piece.refused = true;
        return add_job(result.number);
    }
    if (result.value < 0 || (result.value == 0 && batch.write)) {
        const int error = result.value < 0 ? -result.value : EIO;
        const Outcome gone = batch.memory.foreign ? kMemoryGone : kLocalMemoryGone;
        return fail_piece(result.number, error == EFAULT ? gone : kFileError, error);
    }
    piece.done += static_cast<uint64_t>(result.value);
    batch.file->count(piece.past_cache, static_cast<uint64_t>(result.value));
    batch.sink->moved(piece.past_cache, static_cast<uint64_t>(result.value));
    if (result.value != 0 && piece.done < piece.nbytes) {
        return add_job(result.number);
    }
    if (!batch.write && piece.block && piece.done != 0) {
        return copy(result.number, true);
    }
    finish_piece(result.number);
}

// Copies what a piece has between its block and the device.
void FileQueue::copy(size_t number, bool to_device) {
    Piece& piece = pieces_[number];
    const Place& memory = piece.batch->memory;
    const uint64_t device = memory.address + piece.batch->transfers[piece.transfer].range.memory_offset + piece.start;
    const auto host = reinterpret_cast<uint64_t>(piece.at);
    Outcome why;
    accel::Stream* const stream = engine_.accelerators().stream(
        memory.device, to_device ? Accelerators::Direction::inbound : Accelerators::Direction::outbound,
        1 + static_cast<unsigned>(number % 4), why);
    if (stream == nullptr) {
        return fail_piece(number, why, 0);
    }
    const accel::CopySegment segment{to_device ? device : host, to_device ? host : device,
                                     to_device ? piece.done : piece.nbytes};
    try {
        piece.copy = stream->copy({&segment, 1});
    } catch (const std::bad_alloc&) {
        return fail_piece(number, {Status::no_memory, Reason::out_of_memory}, 0);
    }
    copying_.push_back(number);
    copies_.fetch_add(1, std::memory_order_release);
}

bool FileQueue::look_at_copies() {
    bool moved = false;
    for (size_t i = 0; i < copying_.size();) {
        const size_t number = copying_[i];
        Piece& piece = pieces_[number];
        if (piece.copy->query() == accel::EventState::pending) {
            ++i;
            continue;
        }
        const Outcome outcome = piece.copy->outcome();
        piece.copy.reset();
        copying_[i] = copying_.back();
        copying_.pop_back();
        copies_.fetch_sub(1, std::memory_order_release);
        moved = true;
        if (!outcome.ok()) {
            fail_piece(number, outcome, 0);
        } else if (piece.batch->write) {
            add_job(number);
        } else {
            finish_piece(number);
        }
    }
    return moved;
}

void FileQueue::fail_piece(size_t number, Outcome outcome, int error) {
    Piece& piece = pieces_[number];
    if (piece.block && !piece.batch->write) {
        piece.done = 0; // its bytes have come as far as the block, and not to the device
    }
    fail(piece.batch->transfers[piece.transfer], outcome, error);
    finish_piece(number);
}

void FileQueue::finish_piece(size_t number) {
    Piece& piece = pieces_[number];
    const std::shared_ptr<Batch> batch = std::move(piece.batch);
    Transfer& transfer = batch->transfers[piece.transfer];
    if (piece.done < piece.nbytes) { // the file ends there, or something failed
        transfer.reached = std::min(transfer.reached, piece.start + piece.done);
        stop(transfer);
    }
    piece.block.reset();
    free_.push_back(number);
    --transfer.pieces;
    if (transfer.pieces == 0 && transfer.all_issued) {
        end(*batch, transfer);
    }
    under_way_.fetch_sub(1, std::memory_order_release);
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
    batch.sink->ended(transfer.range.userdata, {nbytes, transfer.failure, transfer.error});
}

} // namespace zerohop::storage
