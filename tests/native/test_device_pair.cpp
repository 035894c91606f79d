// Tests the functions for kernels over a queue pair of their own, with threads of the host and a NIC in software.
#ifdef ZEROHOP_VERBS

#include "work_queue_fixture.hpp"
#include "zerohop/device.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace test_device_pair {

using namespace zerohop;
using namespace zerohop::test::work_queue;

namespace {

constexpr auto kThread = zd::Scope::thread;
constexpr Word kSignal = 4096; // its offset in the peer's memory
constexpr Word kSum = kSignal + 8;

// A Queue with one peer, behind a NIC, and one local.
struct Device {
    explicit Device(uint64_t slots) : rig(slots, false, 8192), queue(std::make_unique<zd::Queue>()) {
        // The NIC in software knows one range of this side. Its end is for what the NIC writes beside the local.
        const Word local = reinterpret_cast<Word>(rig.local.data());
        const Word scratch = local + rig.local.size() - 16;
        pair = {reinterpret_cast<Word>(&rig.queue),
                kRemoteKey,
                scratch,
                scratch + 8,
                kLocalKey,
                reinterpret_cast<Word>(&lock),
                reinterpret_cast<Word>(&key)};
        queue->layout = zd::kLayout;
        queue->peer_count = queue->local_count = 1;
        queue->state = reinterpret_cast<Word>(&states[0]);
        queue->timeout_ns = rig.queue.timeout_ns;
        queue->locals[0] = {local, rig.local.size() - 16, zd::kRead | zd::kWrite, 0};
        queue->peers[0] = {zd::kMlx5,
                           reinterpret_cast<Word>(rig.remote.data()),
                           rig.remote.size(),
                           zd::kRead | zd::kWrite,
                           reinterpret_cast<Word>(&posted),
                           reinterpret_cast<Word>(&pair),
                           reinterpret_cast<Word>(&states[1]),
                           0};
        std::fill(rig.remote.begin() + kSignal, rig.remote.end(), uint8_t{0});
    }
    [[nodiscard]] Word at_peer(Word offset) const {
        return zd::platform::load_acquire(reinterpret_cast<Word>(rig.remote.data()) + offset);
    }

    Rig rig;
    std::unique_ptr<zd::Queue> queue;
    zd::Pair pair{};
    Word posted = 0;
    Word lock = 0;
    Word key = kLocalKey;
    Word states[2]{};
};

} // namespace

TEST_CASE("device pair: threads put, signal, add and get") {
    constexpr unsigned kThreads = 8;
    constexpr Word kEach = kSignal / kThreads;
    constexpr Word kPart = 32;
    Device device(16);
    const zd::Queue* queue = device.queue.get();
    device.rig.nic.late = true;
    device.rig.start();
    std::vector<std::thread> threads;
    std::vector<Word> found(kThreads);
    threads.reserve(kThreads);
    for (unsigned i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            Word status = zd::kOk;
            for (Word at = i * kEach; at < (i + 1) * kEach; at += kPart) {
                status |= zd::put_signal<kThread>(queue, 0, at, 0, at, kPart, kSum, 1, true);
            }
            const zd::Found before = zd::fetch_add<kThread>(queue, 0, kSignal + 16, i + 1);
            status |= before.status | zd::fence<kThread>(queue, 0) | zd::flush<kThread>(queue, 0);
            found[i] = status;
        });
    }
    for (std::thread& each : threads) {
        each.join();
    }
    CHECK(found == std::vector<Word>(kThreads, zd::kOk));
    CHECK(std::equal(device.rig.remote.begin(), device.rig.remote.begin() + kSignal, device.rig.local.begin()));
    CHECK(device.at_peer(kSum) == kSignal / kPart);
    CHECK(device.at_peer(kSignal + 16) == kThreads * (kThreads + 1) / 2);
    CHECK(zd::signal<kThread>(queue, 0, kSignal, ~Word{5}) == zd::kOk);
    CHECK(zd::quiet<kThread>(queue) == zd::kOk);
    CHECK(device.at_peer(kSignal) == ~Word{5});
    const zd::Found other = zd::compare_swap<kThread>(queue, 0, kSignal, 1, 2);
    CHECK((other.status == zd::kOk && other.value == ~Word{5}));
    const zd::Found same = zd::compare_swap<kThread>(queue, 0, kSignal, ~Word{5}, 7);
    CHECK((same.status == zd::kOk && same.value == ~Word{5}));
    CHECK(device.at_peer(kSignal) == 7);
    CHECK(zd::get<kThread>(queue, 0, kSignal, 0, 0, 8) == zd::kOk);
    CHECK(zd::flush<kThread>(queue, 0) == zd::kOk);
    CHECK(zd::platform::load_acquire(reinterpret_cast<Word>(device.rig.local.data())) == 7);
}

TEST_CASE("device pair: waits end with a state, and refused calls with a status") {
    Device device(16);
    const zd::Queue* queue = device.queue.get();
    SUBCASE("the peer is lost") {
        device.rig.nic.holds = true;
        device.rig.start();
        CHECK(zd::put<kThread>(queue, 0, 0, 0, 0, 8) == zd::kOk);
        zd::platform::store_release(device.rig.queue.state, zd::kPeerLost);
        CHECK(zd::flush<kThread>(queue, 0) == zd::kPeerLost);
        CHECK(zd::fetch_add<kThread>(queue, 0, 0, 1).status == zd::kPeerLost);
    }
    SUBCASE("the NIC does not answer") {
        device.rig.queue.timeout_ns = kSecond / 20;
        CHECK(zd::flush<kThread>(queue, 0) == zd::kTimedOut);
        CHECK(zd::fetch_add<kThread>(queue, 0, 0, 1).status == zd::kTimedOut);
        device.rig.queue.timeout_ns = patience_ns(20 * kSecond);
        device.rig.start(); // it answers late, also those whose time was up
        CHECK(zd::fetch_add<kThread>(queue, 0, kSum, 5).value == 0);
        CHECK(zd::fetch_add<kThread>(queue, 0, kSum, 1).value == 5);
    }
    SUBCASE("a key is wrong") {
        device.key ^= 1;
        device.rig.start();
        CHECK(zd::put<kThread>(queue, 0, 0, 0, 0, 8) == zd::kOk);
        CHECK(zd::flush<kThread>(queue, 0) == zd::kFailed);
        CHECK(zd::platform::load_acquire(device.rig.queue.state) == zd::kFailed);
        CHECK(device.rig.remote[0] == 0xA5);
    }
    SUBCASE("a range is wrong") {
        device.rig.start();
        CHECK(zd::put<kThread>(queue, 0, 8190, 0, 0, 8) == zd::kFailed);
        CHECK(zd::signal<kThread>(queue, 0, kSignal, 1) == zd::kFailed); // it would tell of bytes that never moved
        CHECK(zd::flush<kThread>(queue, 0) == zd::kFailed);
        CHECK(device.at_peer(kSignal) == 0);
    }
}

} // namespace test_device_pair
#endif
