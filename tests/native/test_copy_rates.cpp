// Tests how long copies are expected to take, learned from copies whose end was seen and copies that were slept
// through.
#include "base/clock.hpp"
#include "provider/p2p/copy_rates.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace test_copy_rates {

using namespace zerohop;
using namespace zerohop::p2p;

namespace {

constexpr uint64_t kBytes = 256ULL << 20;
constexpr uint64_t kTakesNs = 690 * kMicrosecond;

// A thread that waits for one copy after the other. It spins first, then sleeps until shortly before the expected end,
// wakes late, and polls without pause from then on. It records how long each copy took to be noticed.
class Waiter {
public:
    Waiter(double gbps, uint64_t wakes_late_ns) : rates(gbps), late_(wakes_late_ns) {}

    uint64_t wait_for(uint64_t nbytes, uint64_t takes_ns, const PageList* pages = nullptr) {
        const size_t form = CopyRates::form_of(pages);
        const uint64_t expected = kFixedNs + rates.needs_ns(form, nbytes);
        const bool sleeps = expected > kSpin + rates.early_ns();
        const uint64_t woken = sleeps ? expected - rates.early_ns() + late_ : kSpin;
        const bool seen = takes_ns <= kSpin || woken < takes_ns;
        const uint64_t took = seen ? takes_ns : woken;
        rates.learn(form, nbytes, took, seen ? 0 : took - kSpin);
        return took;
    }

    CopyRates rates;

private:
    static constexpr uint64_t kSpin = 50 * kMicrosecond;
    const uint64_t late_;
};

uint64_t median(std::vector<uint64_t> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

} // namespace

TEST_CASE("copy rates: on a machine that wakes a sleeper late, copies are noticed when they end all the same") {
    for (const uint64_t late : {10 * kMicrosecond, 90 * kMicrosecond, 150 * kMicrosecond, 400 * kMicrosecond}) {
        for (const double at_first : {50.0, 300.0, 3000.0}) {
            CAPTURE(late);
            CAPTURE(at_first);
            Waiter waiter(at_first, late);
            for (int i = 0; i < 20; ++i) {
                (void)waiter.wait_for(kBytes, kTakesNs);
            }
            std::vector<uint64_t> times;
            for (int i = 0; i < 200; ++i) {
                times.push_back(waiter.wait_for(kBytes, kTakesNs));
            }
            CHECK(median(times) == kTakesNs);
        }
    }
}

TEST_CASE("copy rates: where a sleeper is woken late, few copies are missed, however short they are") {
    for (const uint64_t late : {60 * kMicrosecond, 130 * kMicrosecond, 200 * kMicrosecond}) {
        for (const uint64_t takes : {180 * kMicrosecond, 212 * kMicrosecond, 400 * kMicrosecond, kTakesNs}) {
            CAPTURE(late);
            CAPTURE(takes);
            Waiter waiter(300.0, late);
            for (int i = 0; i < 50; ++i) {
                (void)waiter.wait_for(kBytes / 4, takes);
            }
            int missed = 0;
            for (int i = 0; i < 1000; ++i) {
                missed += waiter.wait_for(kBytes / 4, takes) > takes ? 1 : 0;
            }
            CHECK(missed <= 50);
        }
    }
}

TEST_CASE("copy rates: what was missed on a loaded machine costs no sleep for good") {
    CopyRates rates(300.0);
    const uint64_t at_first = rates.early_ns();
    rates.learn(0, kBytes, kTakesNs, 0);
    rates.learn(0, kBytes, kTakesNs, kTakesNs);
    CHECK(rates.early_ns() > at_first);
    for (int i = 0; i < 500; ++i) {
        rates.learn(0, kBytes, kTakesNs, 0);
    }
    CHECK(rates.early_ns() == at_first);
}

TEST_CASE("copy rates: a copy that was held up once does not make those after it late for long") {
    Waiter waiter(390.0, 20 * kMicrosecond);
    for (int i = 0; i < 5; ++i) {
        (void)waiter.wait_for(kBytes, 50 * kMillisecond);
    }
    int late = 0;
    for (int i = 0; i < 100; ++i) {
        late += waiter.wait_for(kBytes, kTakesNs) > kTakesNs ? 1 : 0;
    }
    CHECK(late <= 15);
}

TEST_CASE("copy rates: lists of small pages, which are slower, say nothing of other copies") {
    Waiter waiter(390.0, 20 * kMicrosecond);
    PageList small;
    PageList large;
    small.page_bytes = 1024;
    large.page_bytes = 65536;
    for (int i = 0; i < 50; ++i) {
        (void)waiter.wait_for(kBytes, 10 * kTakesNs, &small);
    }
    CHECK(waiter.wait_for(kBytes, kTakesNs) == kTakesNs);
    CHECK(waiter.wait_for(kBytes, kTakesNs, &large) == kTakesNs);
    CHECK(waiter.wait_for(kBytes, 10 * kTakesNs, &small) == 10 * kTakesNs);
}

TEST_CASE("copy rates: what is small tells nothing") {
    CopyRates rates(300.0);
    const uint64_t before = rates.needs_ns(0, kBytes);
    rates.learn(0, kTellsTheRate - 1, kSecond, 0);
    rates.learn(0, kBytes, kFixedNs, 0);
    CHECK(rates.needs_ns(0, kBytes) == before);
}

} // namespace test_copy_rates
