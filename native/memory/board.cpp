#include "memory/board.hpp"

#include "base/clock.hpp"
#include "base/sync.hpp"

#include <sched.h>
#include <thread>

namespace zerohop {

namespace {

// Looks before a waiting rank lets others have its processor: a rank that comes at the same time is there by then.
// Where ranks share processors, it may be one that waits for this one's.
constexpr int kLooks = 200;

} // namespace

Board::Board(size_t ranks, size_t rank)
    : ranks_(ranks), rank_(rank), looks_(ranks <= std::thread::hardware_concurrency() ? kLooks : 0) {}

size_t Board::bytes_for(size_t ranks) {
    return ranks * (sizeof(Place) + kRounds * kSlotBytes);
}

std::byte* Board::slot(std::byte* memory, size_t rank) const {
    std::byte* slots = memory + ranks_ * sizeof(Place);
    return slots + (round_ % kRounds * ranks_ + rank) * kSlotBytes;
}

Board::Ranks Board::arrive(std::byte* memory, uint32_t tag, uint64_t detail) const {
    place(memory, rank_).detail[round_ % kRounds].store(detail, std::memory_order_relaxed);
    come(memory, rank_).store(uint64_t{round_} << 32 | tag, std::memory_order_seq_cst);
    Ranks owed = 0;
    for (size_t other = 0; other < ranks_; ++other) {
        std::atomic<uint32_t>& word = place(memory, other).word[rank_];
        uint32_t waits = round_;
        if (other != rank_ && word.load(std::memory_order_seq_cst) == round_ &&
            word.compare_exchange_strong(waits, 0, std::memory_order_seq_cst)) {
            owed |= Ranks{1} << other;
        }
    }
    return owed;
}

bool Board::await_all(std::byte* memory, uint64_t spin_ns) const {
    uint64_t ends = 0;
    int looks = 0;
    for (size_t other = 0; other < ranks_; ++other) {
        while (!has_come(memory, other)) {
            if (++looks < looks_ && spin_ns != 0) {
                cpu_pause();
                continue;
            }
            const uint64_t now = now_ns();
            ends = ends == 0 ? now + spin_ns : ends;
            if (now >= ends) {
                return false;
            }
            sched_yield();
        }
    }
    return true;
}

Board::Ranks Board::leave_word(std::byte* memory) const {
    Ranks coming = 0;
    for (size_t other = 0; other < ranks_; ++other) {
        if (has_come(memory, other)) {
            continue;
        }
        std::atomic<uint32_t>& word = place(memory, rank_).word[other];
        word.store(round_, std::memory_order_seq_cst);
        uint32_t waits = round_;
        // If it has come meanwhile, either this rank takes its word back, or the other one has seen it.
        if (!has_come(memory, other) || !word.compare_exchange_strong(waits, 0, std::memory_order_seq_cst)) {
            coming |= Ranks{1} << other;
        }
    }
    return coming;
}

std::optional<std::pair<size_t, uint32_t>> Board::differing(std::byte* memory) const {
    const auto said = [this, memory](size_t rank) {
        const uint64_t tag = come(memory, rank).load(std::memory_order_acquire);
        return std::pair(tag, place(memory, rank).detail[round_ % kRounds].load(std::memory_order_relaxed));
    };
    const auto mine = said(rank_);
    for (size_t other = 0; other < ranks_; ++other) {
        if (const auto theirs = said(other); theirs != mine) {
            return std::pair(other, static_cast<uint32_t>(theirs.first));
        }
    }
    return std::nullopt;
}

} // namespace zerohop
