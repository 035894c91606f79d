// Lets the ranks of a group, all on one host, meet in memory that they share: each says which round it has come to, and
// has a slot for the bytes that the others read.
//
// A rank that has waited long enough leaves word of it for each rank that is not there. The rank that comes later takes
// that word, and the two exchange messages. Exactly one of the two clears the word, so either both send one or none.
//
// Slots are there twice, for odd and for even rounds: nobody begins a round before all have come to the last one, so
// nobody writes what another rank still reads. A rank settles the words that it has left before it ends its round.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace zerohop {

class Board {
public:
    static constexpr size_t kMostRanks = 16;
    static constexpr size_t kSlotBytes = size_t{64} << 10;
    // Ranks as bits of a number.
    using Ranks = uint32_t;

    // The bytes that a board of so many ranks takes, which are zero at first.
    [[nodiscard]] static size_t bytes_for(size_t ranks);

    Board(size_t ranks, size_t rank);

    // Begins this rank's next round. The memory is passed to each call, as it may be reached at another address later.
    void begin() { round_ = round_ == UINT32_MAX ? kRounds : round_ + 1; }
    // Where the bytes of a rank are in the round that has begun.
    [[nodiscard]] std::byte* slot(std::byte* memory, size_t rank) const;
    // Says that this rank has come, and that its slot is filled. `tag` and `detail` say what for; they must be the same
    // at all ranks. Returns the ranks that have left word for this one.
    [[nodiscard]] Ranks arrive(std::byte* memory, uint32_t tag, uint64_t detail) const;
    // Waits until all have come, for so long at most; tells if they have.
    [[nodiscard]] bool await_all(std::byte* memory, uint64_t spin_ns) const;
    // Leaves word for all who have not come. Returns the ranks that find it, or have found it.
    [[nodiscard]] Ranks leave_word(std::byte* memory) const;
    // A rank that has come with another tag or detail than this one, and its tag. Call it once all have come.
    [[nodiscard]] std::optional<std::pair<size_t, uint32_t>> differing(std::byte* memory) const;

private:
    static constexpr size_t kRounds = 2; // odd and even
    static constexpr size_t kLine = 64;

    // Shared between processes, so its layout is fixed. Each rank writes to the lines of its own place, but for `word`.
    struct Place {
        // The round that the rank has come to, above the tag of what it does there.
        alignas(kLine) std::array<std::atomic<uint64_t>, kRounds> come;
        std::array<std::atomic<uint64_t>, kRounds> detail;
        // Holds, for each other rank, the round in which this rank waits for its message; 0: it does not wait.
        alignas(kLine) std::array<std::atomic<uint32_t>, kMostRanks> word;
    };
    static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(Place) == 2 * kLine);

    static Place& place(std::byte* memory, size_t rank) { return *(reinterpret_cast<Place*>(memory) + rank); }
    [[nodiscard]] std::atomic<uint64_t>& come(std::byte* memory, size_t rank) const {
        return place(memory, rank).come[round_ % kRounds];
    }
    [[nodiscard]] bool has_come(std::byte* memory, size_t rank) const {
        return come(memory, rank).load(std::memory_order_seq_cst) >> 32 == round_;
    }

    size_t ranks_;
    size_t rank_;
    int looks_;
    uint32_t round_ = 0; // never 0 once it has begun; nobody is two rounds ahead, so that it can begin anew
};

} // namespace zerohop
