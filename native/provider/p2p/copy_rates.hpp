// How long a stream's copies take, and how late this machine wakes the threads that sleep meanwhile. Both are learned
// from copies whose end somebody saw coming.
#pragma once

#include "base/clock.hpp"
#include "base/page_list.hpp"
#include "provider/p2p/tuning.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace zerohop::p2p {

class CopyRates {
public:
    // `gbps`: the rate until copies have shown it.
    explicit CopyRates(double gbps) { bytes_per_ns_.fill(gbps); }

    // Returns the number of a form of copies that has a rate of its own: ranges, and pages by their size. `pages` may
    // be null.
    [[nodiscard]] static size_t form_of(const PageList* pages);
    // Returns the likely time of a copy, without the fixed time of its command.
    [[nodiscard]] uint64_t needs_ns(size_t form, uint64_t nbytes) const;
    // Learns from a copy that took `took_ns`, its command included. Nobody had looked for `unseen_ns` before its end
    // was seen, although somebody waited.
    void learn(size_t form, uint64_t nbytes, uint64_t took_ns, uint64_t unseen_ns);
    // Any thread. Returns how long before a copy's likely end a sleeper wakes.
    [[nodiscard]] uint64_t early_ns() const { return early_ns_.load(std::memory_order_relaxed); }

private:
    static constexpr size_t kForms = 4;

    void slept_through(size_t form, double measured);

    std::array<double, kForms> bytes_per_ns_;                                // which is GB/s
    std::array<int, kForms> missed_{kUnknown, kUnknown, kUnknown, kUnknown}; // one after the other, since one was seen
    std::atomic<uint64_t> early_ns_{kEarlyNs};
};

} // namespace zerohop::p2p
