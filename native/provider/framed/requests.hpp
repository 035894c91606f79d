// The table of requests that a lane has sent and that wait for their answer.
#pragma once

#include "base/extents.hpp"
#include "memory/region.hpp"
#include "operation/operation.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/pieces.hpp"
#include "provider/framed/sink.hpp"
#include "provider/framed/whole.hpp"
#include "provider/request.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop::framed {

struct Outstanding {
    bool used = false;
    uint32_t ticket = 0; // its index in the table, and above that how often this entry was used before
    Kind kind = Kind::write;
    OpRef op;
    std::shared_ptr<Whole> whole; // set if this is a part of the operation
    Pin<Region> local;
    std::shared_ptr<const PageList> pages;
    uint64_t nbytes = 0;
    uint64_t local_offset = 0;
    std::unique_ptr<Sink> sink; // reads
    Pieces pieces;              // of a read
    Extents walk;               // see from()
    uint64_t walked = 0;
    Outcome outcome; // the first failure
    uint64_t value = 0;
    uint32_t answers_due = 1;     // page lists are read with several requests
    bool unmatched = false;       // a send whose recv is not there yet
    bool buffered = false;        // it has ended for the sender, while its bytes wait at the receiver
    bool withdrawn = false;       // it ended unmatched, and the peer was told
    int64_t notify = -1;          // a credit was taken for it, which the peer returns only for what it delivers
    bool announced_later = false; // by a frame of its own once the request has ended
    Message message;              // in that frame
    uint64_t epoch = 0;

    // Returns true once every answer has come, and no device copies for it any more.
    bool over() const { return answers_due == 0 && (!sink || sink->settled()); }

    // Returns what follows a byte of it in local memory. Pieces come in order, so that the walk goes on from where the
    // one before began: to find a byte in ranges takes a step for each of them.
    Extents from(uint64_t offset) {
        if (offset < walked) {
            walked = 0;
        }
        if (walked == 0) {
            walk = extents();
        }
        walk.advance(offset - walked);
        walked = offset;
        return walk;
    }

    // Returns the whole of it in local memory.
    Extents extents() const {
        const uint64_t base = local ? local->address() + local_offset : 0;
        return pages ? pages->walk(base, pages->local, nbytes) : Extents(base, nbytes);
    }
};

// Tells when all that was posted before a moment has ended, with one counter per flush instead of a mark per request.
class Epochs {
public:
    uint64_t begin() {
        ++now_;
        return number_;
    }
    [[gnu::always_inline]] void end(uint64_t epoch) {
        if (epoch == number_) [[likely]] {
            --now_;
        } else {
            end_earlier(epoch);
        }
    }
    [[nodiscard]] bool empty() const { return before_.empty() && now_ == 0; }
    // Ends `flush` when everything begun so far has ended.
    void flush(OpRef flush) {
        before_.push_back({std::exchange(now_, 0), std::move(flush)});
        ++number_;
        settle();
    }
    void fail_flushes(Outcome outcome) {
        for (Count& count : before_) {
            count.flush->finish(outcome);
        }
    }

private:
    struct Count {
        uint64_t in_flight;
        OpRef flush;
    };
    [[gnu::noinline]] void end_earlier(uint64_t epoch) {
        --before_[before_.size() - (number_ - epoch)].in_flight;
        settle();
    }
    void settle() {
        while (!before_.empty() && before_.front().in_flight == 0) {
            before_.front().flush->finish({});
            before_.pop_front();
        }
    }
    uint64_t number_ = 0; // of the current epoch
    uint64_t now_ = 0;    // operations in flight that began in it
    std::deque<Count> before_;
};

class Requests {
public:
    Requests() : table_(kWindow) {
        for (uint32_t i = kWindow; i-- > 0;) {
            table_[i].ticket = i;
            free_.push_back(i);
        }
    }
    [[nodiscard]] bool full(uint32_t wanted = 1) const { return kWindow - free_.size() + extra_ + wanted > kWindow; }
    // Call it only if not full.
    Outstanding& add() {
        Outstanding& outstanding = table_[free_.back()];
        free_.pop_back();
        outstanding.used = true;
        outstanding.epoch = epochs.begin();
        return outstanding;
    }
    // Returns null for a ticket that is not outstanding.
    [[nodiscard]] Outstanding* find(uint32_t ticket) {
        const uint32_t index = ticket & 0xffff;
        const bool there = index < kWindow && table_[index].used && table_[index].ticket == ticket;
        return there ? &table_[index] : nullptr;
    }
    // Frees the ticket's slot; the caller has moved out what it needs.
    void remove(uint32_t ticket) {
        Outstanding& outstanding = table_[ticket & 0xffff];
        const uint64_t epoch = outstanding.epoch;
        const bool counted = !outstanding.buffered;
        outstanding = Outstanding{};
        outstanding.ticket = ticket + 0x10000;
        free_.push_back(ticket & 0xffff);
        if (counted) {
            epochs.end(epoch);
        }
    }
    // Lets go of a send whose bytes are queued. It keeps its slot until the receiver has taken it, and no flush waits.
    void buffer(Outstanding& outstanding) {
        outstanding.buffered = true;
        outstanding.local.reset();
        epochs.end(outstanding.epoch);
    }
    [[nodiscard]] size_t size() const { return kWindow - free_.size(); }
    template <class F> void each(F&& f) {
        for (Outstanding& outstanding : table_) {
            if (outstanding.used) {
                f(outstanding);
            }
        }
    }
    void take_extra(uint32_t count) { extra_ += count; }
    void give_extra(uint32_t count) { extra_ -= count; }

    Epochs epochs;

private:
    std::vector<Outstanding> table_;
    std::vector<uint32_t> free_;
    uint32_t extra_ = 0; // requests beyond the first of operations that take several
};

} // namespace zerohop::framed
