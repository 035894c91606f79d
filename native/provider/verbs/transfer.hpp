// One-sided operations that the NIC itself carries out, and the work requests that they are made of.
#pragma once

#include "engine/operation.hpp"
#include "memory/extents.hpp"
#include "memory/region.hpp"
#include "provider/provider.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace zerohop::verbs {

inline constexpr size_t kMaxRails = 8;
inline constexpr size_t kMaxQueues = 32;

struct Transfer {
    bool used = false;
    Kind kind = Kind::write;
    OpRef op;
    Pin<Region> local;
    Pin<RemoteKeys> remote;
    std::shared_ptr<const PageList> pages;
    std::array<uint32_t, kMaxRails> local_keys{};
    Extents here; // what is not posted yet
    Extents there;
    uint64_t nbytes = 0;
    int64_t notify = -1;
    uint64_t operand = 0;
    uint64_t compare = 0;
    uint64_t* word = nullptr; // where the NIC puts what an atomic found
    uint32_t word_index = 0;
    uint32_t queues_used = 0; // as bits
    uint32_t chains = 0;      // posted, and not complete
    bool all_posted = false;
    bool marks_due = false;   // the notification goes behind the data on each queue that carried some
    bool marked = false;      // some of them are posted
    uint32_t queues_left = 0; // as bits: where they are not
    uint32_t ticket = 0;
    uint64_t epoch = 0;
    Outcome outcome;
};

// Consecutive work requests of one queue, posted with one doorbell, of which the last is signalled.
struct Chain {
    enum class What : uint8_t { none, transfer, segment, mark };
    What what = What::none;
    uint8_t queue = 0;
    uint16_t generation = 0;
    uint16_t requests = 0;
    uint32_t owner = 0;        // a transfer's index
    std::byte* data = nullptr; // the send buffer that it goes out from
    uint32_t key = 0;
};

// Entries with indices that stay, of which free ones are used again.
template <class T> class Slots {
public:
    uint32_t add() {
        if (free_.empty()) {
            entries_.emplace_back();
            return static_cast<uint32_t>(entries_.size() - 1);
        }
        const uint32_t index = free_.back();
        free_.pop_back();
        return index;
    }
    void remove(uint32_t index) { free_.push_back(index); }
    T& operator[](uint32_t index) { return entries_[index]; }
    [[nodiscard]] size_t size() const { return entries_.size(); }
    [[nodiscard]] size_t in_use() const { return entries_.size() - free_.size(); }

private:
    std::deque<T> entries_; // which never moves an entry
    std::vector<uint32_t> free_;
};

} // namespace zerohop::verbs
