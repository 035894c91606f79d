// Defines the part of FileQueue that moves bytes between files and GPUs by a carrier, on threads, and that goes on
// through host buffers where the carrier stops.
#include "storage/file_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace zerohop::storage {

std::string FileQueue::why_staged(OpenFile& file, const Place& memory, CuFile& library) {
    if (memory.host != nullptr) {
        return "the memory is the host's";
    }
    if (memory.foreign) {
        return "the memory is another process's";
    }
    if (engine_.accelerators().place(memory.device).first->kind() != "cuda") {
        return "the memory is not that of an NVIDIA GPU";
    }
    std::string why = file.why_no_gpudirect(library);
    if (why.empty()) {
        start_carrying();
    }
    return why;
}

void FileQueue::start_carrying() {
    const std::lock_guard lock(carrying_mutex_);
    if (!carries_.load(std::memory_order_relaxed)) {
        in_use_->devices = engine_.accelerators().devices();
        carries_.store(true, std::memory_order_release);
    }
}

// Returns null where all bytes pass through host buffers.
accel::Device* FileQueue::gpu_of(const Place& memory) const {
    if (memory.host != nullptr || memory.foreign || !carries_.load(std::memory_order_acquire) ||
        engine_.accelerators().place(memory.device).first->kind() != "cuda") {
        return nullptr;
    }
    return in_use_->devices.at(static_cast<size_t>(memory.device)).get();
}

uint64_t FileQueue::address_of(const Piece& piece) const {
    const Batch& batch = *piece.batch;
    return batch.memory.address + batch.transfers[piece.transfer].range.memory_offset + piece.start;
}

// Has the carrier move what is left of a piece.
void FileQueue::carry(size_t number) {
    const Piece& piece = pieces_[number];
    const Batch& batch = *piece.batch;
    Job job;
    job.write = batch.write;
    job.data = reinterpret_cast<std::byte*>(address_of(piece) + piece.done); // of the device: nothing here follows it
    job.nbytes = static_cast<uint32_t>(piece.nbytes - piece.done);
    job.offset = batch.transfers[piece.transfer].range.file_offset + piece.start + piece.done;
    job.number = number;
    job.carrier = piece.carrier;
    job.device = batch.gpu;
    io_.add(job);
}

void FileQueue::take_from_carrier(const Result& result) {
    Piece& piece = pieces_[result.number];
    Batch& batch = *piece.batch;
    if (result.value == -EINTR || result.value == -EAGAIN) {
        if (!closed_ && batch.sink->wanted()) {
            return carry(result.number);
        }
        return fail_piece(result.number, closed_.value_or(kCancelled), 0);
    }
    if (result.value <= -shim::kCuFileFirst || result.value == -EINVAL || result.value == -EFAULT ||
        result.value == -EOPNOTSUPP) {
        const std::string call = batch.write ? "cuFileWrite: " : "cuFileRead: ";
        batch.file->refuse_gpudirect(call + (result.value <= -shim::kCuFileFirst
                                                 ? shim::cufile_name(result.value)
                                                 : std::generic_category().message(-result.value)));
        return stage(result.number);
    }
    if (result.value < 0 || (result.value == 0 && batch.write)) {
        return fail_piece(result.number, kFileError, result.value < 0 ? -result.value : EIO);
    }
    const auto moved = static_cast<uint64_t>(result.value);
    piece.done += moved;
    piece.carried = piece.done;
    batch.file->count(Passage::gpudirect, moved);
    batch.sink->moved(Passage::gpudirect, moved);
    if (moved == 0 || piece.done >= piece.nbytes) {
        return finish_piece(result.number);
    }
    // It stopped short: at the end of a file that was made shorter, perhaps.
    const uint64_t offset = batch.transfers[piece.transfer].range.file_offset + piece.start + piece.done;
    piece.carrier =
        batch.file->carrier(batch.write, offset, piece.nbytes - piece.done, address_of(piece) + piece.done, length_);
    if (piece.carrier != nullptr) {
        return carry(result.number);
    }
    stage(result.number);
}

// Goes on with a piece through a host buffer, once there is one.
void FileQueue::stage(size_t number) {
    Piece& piece = pieces_[number];
    piece.carrier = nullptr;
    if (piece.batch->file->is_gpudirect_required()) {
        return fail_piece(number, kNotDirect, 0);
    }
    unstaged_.push_back(number); // issue() follows
}

void FileQueue::begin_staged(size_t number) {
    Piece& piece = pieces_[number];
    piece.at = piece.block.data();
    if (piece.batch->write) {
        copy(number, false);
    } else {
        add_job(number);
    }
}

// Begins with pieces that wait for a block; false if some still do. They go before others, which would take the blocks.
bool FileQueue::issue_unstaged() {
    while (!unstaged_.empty()) {
        const size_t number = unstaged_.back();
        Piece& piece = pieces_[number];
        const Transfer& transfer = piece.batch->transfers[piece.transfer];
        Outcome why;
        if (!transfer.failure.ok()) { // it was cancelled meanwhile
            unstaged_.pop_back();
            fail_piece(number, transfer.failure, transfer.error);
            continue;
        }
        if (closed_ || !piece.batch->sink->wanted()) {
            unstaged_.pop_back();
            fail_piece(number, closed_.value_or(kCancelled), 0);
            continue;
        }
        piece.block = staging_.try_acquire(why);
        if (!piece.block && why.ok()) {
            return false;
        }
        unstaged_.pop_back();
        if (piece.block) {
            begin_staged(number);
        } else {
            fail_piece(number, why, 0);
        }
    }
    return true;
}

} // namespace zerohop::storage
