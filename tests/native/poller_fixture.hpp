// Runs a poller over work that is only counted.
#pragma once

#include "engine/poller.hpp"
#include "engine/tuning.hpp"
#include "engine_fixture.hpp"

#include <sys/eventfd.h>

namespace zerohop::test {

// Past this time a sleeper counts as never woken.
inline uint64_t longest_wait() {
    return patience_ns(10 * kSecond);
}

// Counts the work that is published, and the work that a poll has found.
class Work final : public Pollable {
public:
    Found poll() override {
        if (on_poll) {
            on_poll();
        }
        if (inside_.exchange(true)) {
            overlaps.fetch_add(1);
        }
        polls.fetch_add(1);
        if (readable_fd >= 0) {
            uint64_t count = 0;
            if (::read(readable_fd, &count, sizeof count) > 0) {
                published.fetch_add(1);
            }
        }
        const uint64_t most = one_at_a_time ? taken.load() + 1 : UINT64_MAX;
        const uint64_t now = std::min(published.load(), most);
        const bool did = taken.exchange(now) != now;
        resting.store(published.load() == now);
        inside_.store(false);
        return did ? finds : Found::nothing;
    }
    void tick(uint64_t /*now*/) override { ticks.fetch_add(1); }
    Left left(uint64_t /*now*/) override {
        asleep.store(std::this_thread::get_id()); // the last call before a sleep
        return {.ready = published.load() != taken.load(), .unarmed = false, .sleep_limit_ns = limit.load()};
    }
    uint64_t may_wait_ns() override { return tells_rest && resting.load() ? kStreak : 0; }

    std::atomic<uint64_t> published{0};
    std::atomic<uint64_t> taken{0};
    std::atomic<uint64_t> limit{UINT64_MAX};
    std::atomic<uint64_t> polls{0};
    std::atomic<uint64_t> ticks{0};
    std::atomic<int> overlaps{0};
    std::atomic<std::thread::id> asleep{};
    std::atomic<bool> resting{false};
    std::function<void()> on_poll;
    Found finds = Found::work;
    int readable_fd = -1;
    bool one_at_a_time = false; // each poll takes one piece of work
    bool tells_rest = false;    // only the waiting thread publishes

private:
    std::atomic<bool> inside_{false};
};

struct Polled {
    explicit Polled(uint64_t spin_ns = 0) : poller(work, presence, finished, spin_ns) {
        poller.start();
        peer = std::make_unique<PeerPresence>(presence.page_fd(), presence.make_doorbell().theirs.get());
    }
    // Waits until so much has been polled; false if that was not noticed in time.
    bool wait_for(uint64_t count, uint64_t spin_ns = 0) {
        return wait([this, count] { return work.taken.load() >= count; }, spin_ns);
    }
    bool wait(const std::function<bool()>& condition, uint64_t spin_ns = 0) {
        const uint64_t limit = now_ns() + longest_wait();
        return poller.wait([&] { return condition() && now_ns() < limit; }, limit, spin_ns, true);
    }
    // Publishes work, then rings if the flag says so, as a peer does.
    void publish_as_peer() {
        work.published.fetch_add(1);
        peer->wake();
    }
    void end_operation(std::atomic<bool>& ended) {
        ended.store(true);
        finished.notify_all();
        poller.wake_sleeping_caller();
    }

    EventCount finished;
    Presence presence;
    Work work;
    Poller poller;
    std::unique_ptr<PeerPresence> peer;
};

// A thread in wait_for(1), known to sleep while it has the right to poll.
struct Sleeper {
    explicit Sleeper(Polled& polled) : thread([&] { woken.store(polled.wait_for(1)); }) {
        REQUIRE(eventually([&] { return polled.work.asleep.load() == thread.get_id(); }));
    }
    bool join() {
        thread.join();
        return woken.load();
    }
    std::atomic<bool> woken{false};
    std::thread thread;
};

} // namespace zerohop::test
