// How long a stream's copies take, learned from those whose end somebody saw coming.
#pragma once

#include "memory/page_list.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace zerohop::p2p {

class CopyRates {
public:
    // Until copies have shown it.
    explicit CopyRates(double gbps) { bytes_per_ns_.fill(gbps); }

    // What has a rate of its own: ranges, and pages by their size. `pages` may be null.
    [[nodiscard]] static size_t form_of(const PageList* pages);
    // Without what every command takes.
    [[nodiscard]] uint64_t needs_ns(size_t form, uint64_t nbytes) const;
    // A copy took so long, the command included; for `unseen_ns` before its end was seen nobody had looked, although
    // somebody waited.
    void learn(size_t form, uint64_t nbytes, uint64_t took_ns, uint64_t unseen_ns);

    static constexpr uint64_t kFixedNs = 6000;            // what a command takes, however small it is
    static constexpr uint64_t kTellsTheRate = 4ULL << 20; // from this size on a copy shows how fast the link is

private:
    static constexpr size_t kForms = 4;
    std::array<double, kForms> bytes_per_ns_; // which is GB/s
};

} // namespace zerohop::p2p
