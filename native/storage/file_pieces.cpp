// Defines the part of FileQueue that carries out one piece of a transfer: a block if the memory is a device's, jobs of
// the system until all bytes have moved, and copies between the block and the device.
#include "storage/file_queue.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

namespace zerohop::storage {

namespace {

// A copy of the cache's that takes longer is for another thread.
constexpr uint64_t kSlowCopy = 64ULL << 10;
// Streams of each device and direction.
constexpr size_t kStreams = 4;

// The system may be asked again for what it did not even try.
bool is_passing(int error) {
    return error == EINTR || error == EAGAIN || error == ECANCELED;
}

} // namespace

// Returns false if there is no room; the transfer may also have failed.
bool FileQueue::begin_piece(const std::shared_ptr<Batch>& batch, Transfer& transfer, size_t index) {
    if (free_.empty()) {
        return false;
    }
    const size_t number = free_.back();
    Piece& piece = pieces_[number];
    const uint64_t nbytes = std::min(kPieceBytes, transfer.limit - transfer.issued);
    const uint64_t offset = transfer.range.file_offset + transfer.issued;
    const uint64_t in_memory = transfer.range.memory_offset + transfer.issued;
    piece.carrier = batch->gpu == nullptr ? nullptr
                                          : batch->file->carrier(batch->write, offset, nbytes,
                                                                 batch->memory.address + in_memory, length_);
    if (batch->memory.host != nullptr) {
        piece.at = batch->memory.host + in_memory;
    } else if (piece.carrier == nullptr) {
        if (batch->file->is_gpudirect_required()) {
            fail(transfer, kNotDirect, 0);
            return true;
        }
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
    piece.nbytes = nbytes;
    piece.done = 0;
    piece.carried = 0;
    piece.refused = false;
    transfer.issued += piece.nbytes;
    ++transfer.pieces;
    under_way_.fetch_add(1, std::memory_order_release);
    if (piece.carrier != nullptr) {
        carry(number);
    } else if (batch->write && piece.block) {
        copy(number, false);
    } else {
        add_job(number);
    }
    return true;
}

// Asks the system for what is left of a piece; ends it if that must go past the cache, and cannot.
void FileQueue::add_job(size_t number) {
    Piece& piece = pieces_[number];
    const Batch& batch = *piece.batch;
    const uint64_t offset = batch.transfers[piece.transfer].range.file_offset + piece.start + piece.done;
    const uint64_t left = piece.nbytes - piece.done;
    std::byte* const data = piece.at + piece.done;
    OpenFile::Way way{batch.file->fd(), false};
    if (!piece.refused) {
        way = batch.file->way(batch.write, offset, left, data, length_);
    }
    if (!way.past_cache && batch.file->is_direct_required()) {
        return fail_piece(number, kNotDirect, 0);
    }
    piece.past_cache = way.past_cache;
    const bool slow = !way.past_cache && left > kSlowCopy;
    const int buffer =
        batch.fixed == nullptr ? -1 : batch.fixed->find(static_cast<uint64_t>(data - batch.memory.host), left);
    const int file = batch.fixed_file == nullptr ? -1 : batch.fixed_file->number(way.past_cache);
    io_.add({.fd = way.fd,
             .write = batch.write,
             .slow = slow,
             .priority = batch.priority,
             .data = data,
             .nbytes = static_cast<uint32_t>(left),
             .offset = offset,
             .buffer = buffer,
             .file = file,
             .number = number});
}

void FileQueue::take_result(const Result& result) {
    Piece& piece = pieces_[result.number];
    Batch& batch = *piece.batch;
    if (result.value < 0 && is_passing(-result.value)) {
        if (!closed_ && batch.sink->wanted()) {
            return add_job(result.number);
        }
        return fail_piece(result.number, closed_.value_or(kCancelled), 0);
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
    const Passage way = piece.past_cache ? Passage::past_cache : Passage::through_cache;
    batch.file->count(way, static_cast<uint64_t>(result.value));
    batch.sink->moved(way, static_cast<uint64_t>(result.value));
    if (result.value != 0 && piece.done < piece.nbytes) {
        return add_job(result.number);
    }
    if (!batch.write && piece.block && piece.done != piece.carried) {
        return copy(result.number, true);
    }
    finish_piece(result.number);
}

// Copies what passes through a piece's block between that and the device.
void FileQueue::copy(size_t number, bool to_device) {
    Piece& piece = pieces_[number];
    const Place& memory = piece.batch->memory;
    const uint64_t device = address_of(piece) + piece.carried;
    const auto host = reinterpret_cast<uint64_t>(piece.at) + piece.carried;
    const accel::CopySegment segment{to_device ? device : host, to_device ? host : device,
                                     (to_device ? piece.done : piece.nbytes) - piece.carried};
    Outcome why;
    accel::Stream* stream = nullptr;
    try {
        stream = engine_.accelerators().stream(
            memory.device, to_device ? Accelerators::Direction::inbound : Accelerators::Direction::outbound,
            1 + static_cast<unsigned>(number % kStreams), why);
        if (stream != nullptr) {
            piece.copy = stream->copy({&segment, 1});
        }
    } catch (const std::bad_alloc&) {
        stream = nullptr;
        why = {Status::no_memory, Reason::out_of_memory};
    }
    if (stream == nullptr) {
        return fail_piece(number, why, 0);
    }
    copying_.emplace_back(number, stream);
    copies_.fetch_add(1, std::memory_order_release);
}

// The copies of a stream end in their order: asking the driver about each of them would take longer than to copy.
bool FileQueue::look_at_copies() {
    bool moved = false;
    std::array<const accel::Stream*, kStreams> pending{};
    size_t found = 0;
    for (size_t i = 0; i < copying_.size();) {
        const auto [number, stream] = copying_[i];
        Piece& piece = pieces_[number];
        const auto last = pending.begin() + static_cast<ptrdiff_t>(found);
        if (std::find(pending.begin(), last, stream) != last) {
            ++i;
            continue;
        }
        if (piece.copy->query() == accel::EventState::pending) {
            if (found < pending.size()) {
                pending[found++] = stream;
            }
            ++i;
            continue;
        }
        const Outcome outcome = piece.copy->outcome();
        piece.copy.reset();
        copying_.erase(copying_.begin() + static_cast<ptrdiff_t>(i));
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
        piece.done = piece.carried; // the other bytes have come as far as the block, and not to the device
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

} // namespace zerohop::storage
