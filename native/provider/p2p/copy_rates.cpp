#include "provider/p2p/copy_rates.hpp"

#include <algorithm>

namespace zerohop::p2p {

size_t CopyRates::form_of(const PageList* pages) {
    constexpr uint64_t kSmall = 2048;
    constexpr uint64_t kMedium = 8192;
    if (pages == nullptr) {
        return 0;
    }
    if (pages->ranges()) { // whatever lengths they have
        return 1;
    }
    return pages->page_bytes < kSmall ? 1 : pages->page_bytes < kMedium ? 2 : 3;
}

uint64_t CopyRates::needs_ns(size_t form, uint64_t nbytes) const {
    return static_cast<uint64_t>(static_cast<double>(nbytes) / bytes_per_ns_.at(form));
}

void CopyRates::learn(size_t form, uint64_t nbytes, uint64_t took_ns, uint64_t unseen_ns) {
    if (nbytes < kTellsTheRate || took_ns <= kFixedNs) {
        return;
    }
    double& rate = bytes_per_ns_.at(form);
    const double measured = static_cast<double>(nbytes) / static_cast<double>(took_ns - kFixedNs);
    if (unseen_ns <= kSeenNs) {
        rate += kWeight * (measured - rate);
        missed_.at(form) = 0;
        early_ns_.store(std::max(early_ns() - kLessNs, kEarlyNs), std::memory_order_relaxed);
    } else {
        slept_through(form, measured);
    }
}

void CopyRates::slept_through(size_t form, double measured) {
    if (missed_.at(form) < kUnknown) {
        ++missed_.at(form);
        early_ns_.store(std::min(early_ns() + kLaterNs, kMostEarlyNs), std::memory_order_relaxed);
        return;
    }
    double& rate = bytes_per_ns_.at(form);
    rate = std::min(std::max(measured, kFaster * rate), kMostGbps);
}

} // namespace zerohop::p2p
