// One-sided operations that the NIC itself carries out, and the work requests that they are made of.
#pragma once

#include "base/extents.hpp"
#include "base/page_list.hpp"
#include "memory/region.hpp"
#include "operation/operation.hpp"
#include "provider/notify.hpp"
#include "provider/request.hpp"
#include "provider/verbs/remote_keys.hpp"
#include "provider/verbs/tuning.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace zerohop::verbs {

// Immediate data have 32 bits: a notification for another queue than the Context's own takes a mark.
inline constexpr bool goes_as_immediate(int64_t notify) {
    return notify >= 0 && queue_of(notify) == 0;
}

struct alignas(64) Transfer {
    bool used = false;
    bool is_one = false; // all of it is one request, which goes by the transfer's own index and generation
    bool all_posted = false;
    bool marks_due = false; // the notification goes behind the data on each queue that carried some
    bool marked = false;    // some of them are posted
    Kind kind = Kind::write;
    uint8_t queue = 0; // of that one request
    uint16_t generation = 0;
    Outcome outcome;
    uint32_t chains = 0; // posted, and not complete
    uint32_t word_index = 0;
    uint64_t* word = nullptr; // where the NIC puts what an atomic found, which is always one request
    OpRef op;
    Pin<Region> local;
    Pin<RemoteKeys> remote;
    uint64_t nbytes = 0;
    uint64_t epoch = 0;
    int64_t notify = -1;
    Message message; // with a notification behind a write

    // For transfers that are more than one request.
    std::shared_ptr<const PageList> pages;
    std::array<uint32_t, kMaxRails> local_keys{};
    Extents here; // what is not posted yet
    Extents there;
    uint32_t queues_used = 0; // as bits
    uint32_t queues_left = 0; // as bits: where the marks are not
    uint32_t ticket = 0;

    // Lets go of everything that it holds. The next transfer sets the fields that are left here.
    void clear() {
        used = is_one = all_posted = marks_due = marked = false;
        outcome = {};
        chains = 0;
        op.reset();
        local.reset();
        remote.reset();
        notify = -1;
        if (pages) {
            pages.reset();
        }
        if (message) {
            message.reset();
        }
        queues_used = 0;
    }
};

// Consecutive work requests of one queue, posted with one doorbell. The last one is signalled.
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

// A table whose entries keep their index and never move. Free ones are used again. in_use() is for any thread.
template <class T> class Slots {
public:
    uint32_t add() {
        const size_t used = in_use();
        if (used == size_) {
            grow();
        }
        in_use_.store(used + 1, std::memory_order_relaxed);
        return order_[used];
    }
    void remove(uint32_t index) {
        const size_t used = in_use() - 1;
        order_[used] = index;
        in_use_.store(used, std::memory_order_relaxed);
    }
    T& operator[](uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }
    [[nodiscard]] size_t size() const { return size_; }
    [[nodiscard]] size_t in_use() const { return in_use_.load(std::memory_order_relaxed); }

private:
    static constexpr uint32_t kChunk = 64;
    void grow() {
        chunks_.push_back(std::make_unique<T[]>(kChunk));
        for (const size_t end = size_ + kChunk; size_ != end; ++size_) {
            order_.push_back(static_cast<uint32_t>(size_));
        }
    }
    std::vector<std::unique_ptr<T[]>> chunks_;
    std::vector<uint32_t> order_; // of the entries to be used next, from in_use_ on
    size_t size_ = 0;
    std::atomic<size_t> in_use_{0};
};

} // namespace zerohop::verbs
