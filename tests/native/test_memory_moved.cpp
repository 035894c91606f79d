// Tests memory that its owner moves while it is posted: what others have put into its place is never sent.
#include "base/clock.hpp"
#include "base/payload.hpp"
#include "engine_fixture.hpp"
#include "memory/block_watch.hpp"

#include <optional>
#include <random>

namespace test_memory_moved {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr uint8_t kOurs = 0x11;
constexpr uint8_t kOthers = 0xEE;

// Memory that another thread moves away in each round, at a random moment.
class Moving {
public:
    explicit Moving(size_t nbytes) : bytes_(nbytes), others_(nbytes, kOthers), mover_([this] { move_each_round(); }) {}
    ~Moving() {
        over_ = true;
        begin();
    }
    Moving(const Moving&) = delete;
    Moving& operator=(const Moving&) = delete;

    std::shared_ptr<Region> put_back() {
        while (ended_ != begun_) {
        }
        std::fill(bytes_.begin(), bytes_.end(), kOurs);
        address_ = reinterpret_cast<uint64_t>(bytes_.data());
        return Region::wrap(address_, bytes_.size(), kHostDevice, -1, 0, false,
                            BlockWatch(reinterpret_cast<uint64_t>(&address_), address_));
    }
    void begin() { begun_ = begun_ + 1; }

private:
    void move_each_round() {
        std::mt19937 random(1);
        for (uint64_t round = 1;; ++round) {
            while (begun_ < round) {
            }
            if (over_) {
                return;
            }
            const auto until = now_ns() + random() % 3000;
            while (now_ns() < until) {
            }
            __atomic_store_n(&address_, 0, __ATOMIC_RELAXED);
            copy_payload(bytes_.data(), others_.data(), bytes_.size());
            ended_ = round;
        }
    }

    Bytes bytes_;
    const Bytes others_;
    uint64_t address_ = 0;
    std::atomic<uint64_t> begun_{0};
    std::atomic<uint64_t> ended_{0};
    std::atomic<bool> over_{false};
    std::jthread mover_;
};

} // namespace

TEST_CASE("memory moved: messages and small writes, while they are posted") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {200, 8000}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            Moving moving(nbytes);
            const std::shared_ptr<Region> target = pair.b.alloc(nbytes);
            std::optional<Posted> received;
            for (int round = 0; round < 3000; ++round) {
                const std::shared_ptr<Region> source = moving.put_back();
                if (!received) {
                    received = post(pair.b, message(Kind::recv, target, nbytes));
                }
                moving.begin();
                const Posted sent = post(pair.a, message(Kind::send, source, nbytes));
                if (sent.what != Posted::What::posted) {
                    REQUIRE(sent.outcome == kLocalMoved);
                    continue;
                }
                const Outcome outcome = pair.b.wait(*received);
                received.reset();
                if (outcome.ok()) {
                    REQUIRE(same_bytes(pair.b.get(*target), Bytes(nbytes, kOurs)));
                }
                static_cast<void>(pair.a.wait(sent));

                Reach reach;
                reach.local = moving.put_back();
                reach.remote = target;
                pair.share(reach, false, kReadWrite);
                moving.begin();
                static_cast<void>(run(pair.a, reach.route, request(Kind::write, 0, 0, nbytes)));
                const Bytes got = pair.b.get(*target);
                if (nbytes <= 256) { // a longer write may have brought a part before it failed
                    REQUIRE(same_bytes(got, Bytes(nbytes, kOurs)));
                }
            }
        }
    }
}

} // namespace test_memory_moved
