// Tests what takes entries of kernels out of a FIFO, with threads of the host that call the functions for kernels.
#include "device/proxy.hpp"
#include "engine_fixture.hpp"
#include "zerohop/device.hpp"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace test_device_proxy {

using namespace zerohop;
using namespace zerohop::test;
namespace zd = zerohop::device;
using zd::Word;

namespace {

constexpr auto kThread = zd::Scope::thread;

Word at(const std::shared_ptr<Region>& region, uint64_t offset = 0) {
    return reinterpret_cast<Word>(region->host()) + offset;
}

// A Queue with one peer behind the proxy and one local, in memory of the host.
struct Device {
    Device(Pair& pair, const Reach& reach, uint64_t slots, uint64_t timeout_ns = patience_ns(60 * kSecond),
           bool flushes = false)
        : engine(pair.a.engine), layout(1, slots), control(Region::allocate_host(layout.nbytes)),
          scratch(Region::allocate_host(8)), counters(Region::allocate_host(192)) {
        Reach words = reach;
        words.local = scratch;
        words_route = engine->add_route(pair.route(words, reach.remote->nbytes()));
        const uint64_t nbytes = reach.local->nbytes();
        proxy = std::make_shared<zd::Proxy>(
            *engine, control, scratch, slots, std::vector<zd::LocalFacts>{{0, nbytes, kReadWrite}},
            std::vector<zd::PeerFacts>{{0, reach.remote->nbytes(), kReadWrite, {reach.route, words_route}, flushes}},
            std::vector<Place>{}, timeout_ns);
        engine->add_work(proxy);
        queue.layout = zd::kLayout;
        queue.peer_count = 1;
        queue.local_count = 1;
        queue.slots = slots;
        queue.fifo = at(control, layout.fifo);
        queue.results = at(control, layout.results);
        queue.head = at(counters);
        queue.taken_copy = at(counters, 64);
        queue.taken = at(control, zd::ControlLayout::kTaken);
        queue.state = at(control, zd::ControlLayout::kState);
        queue.timeout_ns = timeout_ns;
        queue.locals[0] = {at(reach.local), nbytes, kReadWrite, 0};
        queue.peers[0] = {zd::kProxy,
                          0,
                          reach.remote->nbytes(),
                          kReadWrite,
                          at(counters, 128),
                          at(control, zd::ControlLayout::kPeers),
                          at(control, zd::ControlLayout::kPeers + 8),
                          at(counters, 160)};
    }
    ~Device() { engine->close_work(proxy, {Status::closed, Reason::owner_closed}); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    void look(bool begin) const {
        begin ? proxy->begin_looking() : proxy->end_looking();
        engine->poller().kick();
    }

    std::shared_ptr<Engine> engine;
    zd::ControlLayout layout;
    std::shared_ptr<Region> control;
    std::shared_ptr<Region> scratch;
    std::shared_ptr<Region> counters;
    uint64_t words_route = 0;
    std::shared_ptr<zd::Proxy> proxy;
    zd::Queue queue{};
};

const std::vector<Path>& paths() {
    static const std::vector<Path> some{{"ring", "shm", false, kHostDevice, kHostDevice},
                                        {"mapped", "shm", true, kHostDevice, kHostDevice},
                                        {"tcp", "tcp", false, kHostDevice, kHostDevice}};
    return some;
}

std::vector<std::pair<Path, bool>> with_and_without_flushes() {
    std::vector<std::pair<Path, bool>> found;
    for (const Path& path : paths()) {
        found.emplace_back(path, false);
        found.emplace_back(path, true);
    }
    return found;
}

} // namespace

TEST_CASE("device entries: every field comes back as it was, and nothing of its neighbours") {
    for (unsigned bit = 0; bit < 64; ++bit) {
        const Word one = Word(1) << bit;
        const Word offset = one & (zd::kMaxOffset - 1);
        const Word peer = one & (zd::kMaxPeers - 1);
        const Word local = one & (zd::kMaxLocals - 1);
        const Word nbytes = one & ((Word(1) << zd::kLengthBits) - 1);
        for (const Word around : {Word(0), ~Word(0)}) { // the other fields
            const auto other = [&](Word limit) { return around & (limit - 1); };
            const auto far = other(zd::kMaxOffset);
            const zd::Decoded places =
                zd::take_apart(zd::transfer_entry(zd::Op::put, other(zd::kMaxPeers), offset, other(zd::kMaxLocals), far,
                                                  other(Word(1) << zd::kLengthBits)));
            CHECK(places.place == offset);
            CHECK(places.source == far);
            CHECK(places.op == zd::Op::put);
            const zd::Decoded sizes = zd::take_apart(zd::transfer_entry(zd::Op::get, peer, far, local, offset, nbytes));
            CHECK(sizes.op == zd::Op::get);
            CHECK(sizes.peer == peer);
            CHECK(sizes.local == local);
            CHECK(sizes.nbytes == nbytes);
            CHECK(sizes.source == offset);
            const zd::Decoded values =
                zd::take_apart(zd::value_entry(zd::Op::compare_swap, other(zd::kMaxPeers), far, one));
            CHECK(values.op == zd::Op::compare_swap);
            CHECK(values.value == one);
            CHECK(values.place == far);
        }
    }
}

TEST_CASE("device fifo: laps are told apart, and an entry is taken when both words are there") {
    std::vector<zd::Entry> slots(4, zd::Entry{0, 0});
    zd::Fifo fifo(slots.data(), slots.size());
    for (Word index = 0; index < 70000; ++index) {
        CHECK_FALSE(fifo.take());
        zd::Entry& slot = slots[index % slots.size()];
        const zd::Entry entry = zd::value_entry(zd::Op::add, index % zd::kMaxPeers, index, index);
        const Word lap = zd::lap_of(index, slots.size());
        Word& first = index % 2 != 0 ? slot.first : slot.second;
        first = (index % 2 != 0 ? entry.first : entry.second) | lap;
        CHECK_FALSE(fifo.take());
        slot = {entry.first | lap, entry.second | lap};
        const auto taken = fifo.take();
        REQUIRE(taken);
        REQUIRE(taken->value == index);
    }
}

TEST_CASE("device proxy: bytes, signals and atomics of many threads, with fewer slots than entries") {
    for (const auto& [path, flushes] : with_and_without_flushes()) {
        CAPTURE(path.name);
        CAPTURE(flushes);
        constexpr size_t kThreads = 64;
        constexpr size_t kRounds = 16;
        constexpr size_t kPart = 257;
        constexpr size_t kBytes = kThreads * kRounds * kPart;
        constexpr size_t kWords = 64; // at the end of the peer's memory
        Pair pair(path.provider);
        Reach reach = pair.reach(kBytes + kWords, kHostDevice, kHostDevice, path.mapped);
        const Bytes sent = pattern(kBytes, std::random_device{}());
        pair.a.put(*reach.local, sent);
        pair.b.put(*reach.remote, Bytes(kBytes + kWords, 0));
        const Device device(pair, reach, 16, patience_ns(60 * kSecond), flushes);
        const zd::Queue* const queue = &device.queue;
        device.look(true);
        std::atomic<size_t> failures{0};
        std::vector<std::thread> threads;
        for (size_t number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                for (size_t round = 0; round < kRounds; ++round) {
                    const Word place = (number * kRounds + round) * kPart;
                    bool well = zd::put<kThread>(queue, 0, place, 0, place, kPart) == zd::kOk;
                    well &= zd::signal<kThread>(queue, 0, kBytes, 1, true) == zd::kOk;
                    if (round % 8 == 0) {
                        well &= zd::fetch_add<kThread>(queue, 0, kBytes + 8, 3).status == zd::kOk;
                    }
                    failures += well ? 0 : 1;
                }
                failures += zd::flush<kThread>(queue, 0) == zd::kOk ? 0 : 1;
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        device.look(false);
        CHECK(failures == 0);
        CHECK(device.proxy->failure(0) == kOk);
        CHECK((pair.b.get(*reach.remote, 0, kBytes) == sent));
        Word words[2];
        std::memcpy(words, pair.b.get(*reach.remote, kBytes, sizeof words).data(), sizeof words);
        CHECK(words[0] == kThreads * kRounds);
        CHECK(words[1] == 3 * kThreads * (kRounds / 8));
    }
}

TEST_CASE("device proxy: an atomic gives each of many threads a value of its own") {
    for (const auto& [path, flushes] : with_and_without_flushes()) {
        CAPTURE(path.name);
        CAPTURE(flushes);
        constexpr size_t kThreads = 8;
        constexpr size_t kRounds = 50;
        Pair pair(path.provider);
        Reach reach = pair.reach(64, kHostDevice, kHostDevice, path.mapped);
        pair.b.put(*reach.remote, Bytes(64, 0));
        const Device device(pair, reach, 64, patience_ns(60 * kSecond), flushes);
        device.look(true);
        std::vector<std::atomic<int>> seen(kThreads * kRounds);
        std::atomic<size_t> failures{0};
        std::vector<std::thread> threads;
        for (size_t number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                for (size_t round = 0; round < kRounds; ++round) {
                    zd::Found found{};
                    if (number % 2 == 0) {
                        found = zd::fetch_add<kThread>(&device.queue, 0, 8, 1);
                    } else { // the same, by hand
                        Word expected = 0;
                        while (true) {
                            found = zd::compare_swap<kThread>(&device.queue, 0, 8, expected, expected + 1);
                            if (found.status != zd::kOk || found.value == expected) {
                                break;
                            }
                            expected = found.value;
                        }
                    }
                    const bool known = found.status == zd::kOk && found.value < seen.size();
                    failures += known && seen[found.value].fetch_add(1) == 0 ? 0 : 1;
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        device.look(false);
        CHECK(failures == 0);
    }
}

TEST_CASE("device proxy: what does not lie within the memory is refused, and nothing goes to that peer afterwards") {
    Pair pair("tcp");
    Reach reach = pair.reach(4096);
    pair.b.put(*reach.remote, Bytes(4096, 7));
    Device device(pair, reach, 16);
    device.look(true);
    device.queue.peers[0].nbytes = 1 << 20; // a kernel that is wrong, or a descriptor that was overwritten
    CHECK(zd::put<kThread>(&device.queue, 0, 4090, 0, 0, 8) == zd::kOk);
    CHECK(zd::flush<kThread>(&device.queue, 0) == zd::kFailed);
    CHECK(zd::signal<kThread>(&device.queue, 0, 0, 1) == zd::kOk);
    CHECK(zd::flush<kThread>(&device.queue, 0) == zd::kFailed);
    device.look(false);
    CHECK(device.proxy->failure(0) == Outcome{Status::access_denied, Reason::bounds});
    CHECK((pair.b.get(*reach.remote) == Bytes(4096, 7)));
}

TEST_CASE("device proxy: a host that takes nothing is noticed in time, by all threads") {
    Pair pair("tcp");
    Reach reach = pair.reach(4096);
    const Device device(pair, reach, 16, 50 * kMillisecond);
    std::atomic<size_t> timed_out{0};
    std::vector<std::thread> threads;
    for (size_t number = 0; number < 4; ++number) {
        threads.emplace_back([&] {
            for (size_t i = 0; i <= 16; ++i) {
                if (zd::put<kThread>(&device.queue, 0, 0, 0, 0, 8) == zd::kTimedOut) {
                    ++timed_out;
                    return;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(timed_out == 4);
}

TEST_CASE("device proxy: what has ended over a lane that flushes is seen after the flush, or after its failure") {
    for (const Path& path : paths()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        zd::Visible visible;
        CHECK(visible.count(3) == 3);
        visible.add_lane(pair.a.lane);
        visible.add_lane(pair.a.lane);
        const auto show = [&](uint64_t ended) {
            CHECK(visible.count(ended) < ended);
            const uint64_t deadline_ns = now_ns() + patience_ns(60 * kSecond);
            while (visible.count(ended) != ended) {
                (void)visible.advance(*pair.a.engine, ended, now_ns(), deadline_ns);
                std::this_thread::yield();
            }
        };
        show(3);
        show(4);
        CHECK(visible.outcome().ok());
        pair.a.close();
        show(5);
        CHECK_FALSE(visible.outcome().ok());
    }
}

TEST_CASE("device proxy: the loss of a peer ends what waits, also where a kernel waits for nothing that was posted") {
    Pair pair("tcp");
    Reach reach = pair.reach(4096);
    const Device device(pair, reach, 16);
    device.look(true);
    std::thread loses([&] { device.proxy->lose(0); });
    CHECK(zd::wait_signal<kThread>(&device.queue, 0, 0, 1, 0) == zd::kPeerLost);
    loses.join();
    CHECK(zd::put<kThread>(&device.queue, 0, 0, 0, 0, 8) == zd::kOk);
    CHECK(zd::flush<kThread>(&device.queue, 0) == zd::kPeerLost);
    device.look(false);
}

TEST_CASE("device proxy: a kernel of another layout is refused, and writes to nothing") {
    Pair pair("tcp");
    Reach reach = pair.reach(64);
    Device device(pair, reach, 16);
    device.queue.layout = zd::kLayout + 1;
    CHECK(zd::put<kThread>(&device.queue, 0, 0, 0, 0, 8) == zd::kFailed);
    CHECK(zd::flush<kThread>(&device.queue, 0) == zd::kFailed);
    CHECK(zd::signal<kThread>(&device.queue, 0, 0, 0) == zd::kFailed);
    CHECK(zd::fetch_add<kThread>(&device.queue, 0, 0, 0).status == zd::kFailed);
    CHECK(device.control->host()[zd::ControlLayout::kState] == std::byte{0});
}

} // namespace test_device_proxy
