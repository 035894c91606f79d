// Tests send and recv: matched in order, small and large, posted before and after, too large, given up by either side.
#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"

namespace test_framed_messages {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr Outcome kTruncated{Status::protocol, Reason::truncated};
constexpr size_t kRoom = 600'100;
const std::vector<size_t> kSizes{0, 1, 255, 256, 257, 8191, 8192, 8193, 262'144, 262'145, 599'999};

// When this returns, all sends that were posted before wait at the peer.
void arrive(const Side& sender, const Side& receiver) {
    REQUIRE(sender.wait(post(sender, request(Kind::notify, 0, 0, 0, 1))) == kOk);
    REQUIRE(notification(receiver).value == 1);
}

} // namespace

TEST_CASE("message: every size, the recv posted before or after") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int from : {kHostDevice, kSimDevice}) {
            for (const int to : {kHostDevice, kSimDevice}) {
                CAPTURE(provider);
                CAPTURE(from);
                CAPTURE(to);
                Pair pair(provider);
                const auto source = pair.a.alloc(kRoom, from);
                const auto target = pair.b.alloc(kRoom, to);
                unsigned seed = 0;
                for (const size_t nbytes : kSizes) {
                    for (const bool before : {false, true}) {
                        CAPTURE(nbytes);
                        CAPTURE(before);
                        const Bytes bytes = pattern(nbytes, ++seed);
                        Bytes theirs = pattern(kRoom, ++seed);
                        pair.a.put(*source, bytes, 1);
                        pair.b.put(*target, theirs);
                        Request recv = message(Kind::recv, target, nbytes); // just large enough
                        recv.local_offset = 33;
                        Request send = message(Kind::send, source, nbytes);
                        send.local_offset = 1;
                        Posted received;
                        Posted sent;
                        if (before) {
                            received = post(pair.b, recv);
                            sent = post(pair.a, send);
                        } else {
                            sent = post(pair.a, send);
                            arrive(pair.a, pair.b);
                            received = post(pair.b, recv);
                        }
                        REQUIRE(pair.b.wait(received.op) == kOk);
                        REQUIRE(pair.a.wait(sent.op) == kOk);
                        CHECK(received.op->bytes_done() == nbytes);
                        CHECK(sent.op->bytes_done() == nbytes);
                        std::copy(bytes.begin(), bytes.end(), theirs.begin() + 33);
                        REQUIRE(same_bytes(pair.b.get(*target), theirs));
                    }
                }
                pair.a.sync();
                pair.b.sync();
                CHECK(source->pins() == 0);
                CHECK(target->pins() == 0);
            }
        }
    }
}

TEST_CASE("message: in order, both ways at once") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        constexpr int kCount = 60;
        struct End {
            Side* side;
            std::vector<std::shared_ptr<Region>> out;
            std::vector<std::shared_ptr<Region>> in;
            std::vector<Posted> ops;
        };
        End ends[2] = {{&pair.a, {}, {}, {}}, {&pair.b, {}, {}, {}}};
        const auto size_of = [](int i) { return static_cast<size_t>(i * 997 % 30'000); };
        for (End& end : ends) {
            for (int i = 0; i < kCount; ++i) {
                end.out.push_back(end.side->alloc(30'000));
                end.in.push_back(end.side->alloc(30'000));
                end.side->put(*end.out.back(), pattern(size_of(i), static_cast<unsigned>(i)));
            }
        }
        for (int i = 0; i < kCount; ++i) {
            for (End& end : ends) {
                const auto at = static_cast<size_t>(i);
                end.ops.push_back(post(*end.side, message(Kind::send, end.out[at], size_of(i))));
                end.ops.push_back(post(*end.side, message(Kind::recv, end.in[at], 30'000)));
            }
        }
        for (End& end : ends) {
            for (Posted& op : end.ops) {
                REQUIRE(end.side->wait(std::move(op)) == kOk);
            }
            for (int i = 0; i < kCount; ++i) {
                const Bytes got = end.side->get(*end.in[static_cast<size_t>(i)], 0, size_of(i));
                REQUIRE(same_bytes(got, pattern(size_of(i), static_cast<unsigned>(i))));
            }
        }
    }
}

TEST_CASE("message: too large for its recv") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {100, 5000, 100'000}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            const auto source = pair.a.alloc(kRoom);
            const auto target = pair.b.alloc(kRoom);
            pair.b.put(*target, Bytes(kRoom, 1));
            Posted received = post(pair.b, message(Kind::recv, target, nbytes - 1));
            Posted sent = post(pair.a, message(Kind::send, source, nbytes));
            CHECK(pair.b.wait(received.op) == kTruncated);
            CHECK(received.op->value() == nbytes); // the size that the message has
            CHECK(pair.a.wait(sent.op) == kTruncated);
            CHECK(same_bytes(pair.b.get(*target), Bytes(kRoom, 1)));
            // The lane lives, and the next pair matches.
            received = post(pair.b, message(Kind::recv, target, nbytes));
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source, nbytes))) == kOk);
            CHECK(pair.b.wait(received.op) == kOk);
        }
    }
}

TEST_CASE("message: a recv that has ended takes no message") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {10, 5000, 100'000}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            const auto source = pair.a.alloc(kRoom);
            const auto target = pair.b.alloc(kRoom);
            const auto unused = pair.b.alloc(kRoom);
            pair.b.put(*unused, Bytes(kRoom, 9));
            const Bytes bytes = pattern(nbytes, 1);
            pair.a.put(*source, bytes);
            Posted cancelled = post(pair.b, message(Kind::recv, unused, nbytes));
            Posted late = post(pair.b, message(Kind::recv, unused, nbytes, now_ns() + kMillisecond));
            Posted good = post(pair.b, message(Kind::recv, target, nbytes));
            cancelled.op->finish(kCancelled);
            REQUIRE(pair.b.wait(late.op) == kDeadline);
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source, nbytes))) == kOk);
            CHECK(pair.b.wait(good.op) == kOk);
            CHECK(same_bytes(pair.b.get(*target, 0, nbytes), bytes));
            CHECK(same_bytes(pair.b.get(*unused), Bytes(kRoom, 9)));
        }
    }
}

TEST_CASE("message: a recv that has ended lets go of its memory, with no message to come") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const auto target = pair.b.alloc(kRoom);
        Posted late = post(pair.b, message(Kind::recv, target, 100, now_ns() + kMillisecond));
        CHECK(pair.b.wait(late.op) == kDeadline);
        CHECK(eventually([&] { return target->pins() == 0; }));
        Posted cancelled = post(pair.b, message(Kind::recv, target, 100));
        cancelled.op->finish(kCancelled);
        pair.b.engine->poller().kick();
        CHECK(eventually([&] { return target->pins() == 0; }));
        CHECK(target->close());
    }
}

TEST_CASE("message: cancelled recvs race with messages, and none is lost") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        constexpr int kCount = 400;
        const auto source = pair.a.alloc(64);
        std::vector<Posted> sends;
        std::jthread sender([&] {
            for (int i = 0; i < kCount; ++i) {
                Bytes bytes(64, static_cast<uint8_t>(i));
                bytes[1] = static_cast<uint8_t>(i >> 8);
                pair.a.put(*source, bytes);
                sends.push_back(post(pair.a, message(Kind::send, source, 64))); // its bytes are copied at once
            }
        });
        const auto target = pair.b.alloc(64);
        int next = 0;
        for (int round = 0; next < kCount; ++round) {
            Posted recv = post(pair.b, message(Kind::recv, target, 64));
            for (int spins = round * 13 % 3000; spins != 0; --spins) {
                cpu_pause();
            }
            const bool cancelled = round % 2 == 0 && recv.op->finish(kCancelled);
            if (!cancelled) {
                REQUIRE(pair.b.wait(recv.op) == kOk);
                const Bytes got = pair.b.get(*target, 0, 2);
                REQUIRE(got[0] + 256 * got[1] == next);
                ++next;
            }
        }
        sender.join();
        for (Posted& send : sends) {
            CHECK(pair.a.wait(std::move(send)) == kOk);
        }
    }
}

TEST_CASE("message: given up by the sender before it was matched, no recv is spent on it") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {10, 5000, 100'000}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            const auto source = pair.a.alloc(kRoom);
            const auto target = pair.b.alloc(kRoom);
            pair.a.put(*source, Bytes(kRoom, 1));
            Posted late = post(pair.a, message(Kind::send, source, nbytes, now_ns() + kMillisecond));
            CHECK(pair.a.wait(late.op) == kDeadline);
            Posted cancelled = post(pair.a, message(Kind::send, source, nbytes));
            REQUIRE(cancelled.op->finish(kCancelled));
            pair.a.engine->poller().kick();
            CHECK(eventually([&] { return source->pins() == 0; }));
            pair.a.put(*source, Bytes(kRoom, 2));
            Posted recv = post(pair.b, message(Kind::recv, target, kRoom));
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source, nbytes))) == kOk);
            CHECK(pair.b.wait(recv.op) == kOk);
            CHECK(recv.op->bytes_done() == nbytes);
            CHECK(same_bytes(pair.b.get(*target, 0, nbytes), Bytes(nbytes, 2)));
        }
    }
}

TEST_CASE("message: given up at any moment by either side, the lane goes on") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Pair pair(provider);
            const auto source = pair.a.alloc(kRoom, device);
            const auto target = pair.b.alloc(kRoom, device);
            for (int round = 0; round < 300; ++round) {
                const size_t nbytes = round % 3 == 0 ? 100 : round % 3 == 1 ? 8000 : kRoom;
                Posted sent = post(pair.a, message(Kind::send, source, nbytes));
                Posted received = post(pair.b, message(Kind::recv, target, nbytes));
                for (int spins = round * 29 % 9000; spins != 0; --spins) {
                    cpu_pause();
                }
                if (round % 2 == 0) {
                    sent.op->finish(kCancelled);
                    pair.a.engine->poller().kick();
                    // The recv may or may not have been matched; one that got no message is given up as well.
                    REQUIRE(eventually([&] { return source->pins() == 0; }));
                    received.op->finish(kCancelled);
                } else {
                    received.op->finish(kCancelled);
                    pair.b.engine->poller().kick();
                    REQUIRE(eventually([&] { return target->pins() == 0; }));
                    sent.op->finish(kCancelled);
                }
                pair.a.engine->poller().kick();
                pair.b.engine->poller().kick();
                REQUIRE(eventually([&] { return source->pins() == 0 && target->pins() == 0; }));
            }
            Posted received = post(pair.b, message(Kind::recv, target, kRoom));
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source, kRoom))) == kOk);
            CHECK(pair.b.wait(received.op) == kOk);
        }
    }
}

TEST_CASE("message: more sends than the receiver lets wait") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {8, 100'000}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            const auto source = pair.a.alloc(nbytes);
            const auto target = pair.b.alloc(nbytes);
            std::vector<Posted> sends;
            for (uint32_t i = 0; i < framed::kMaxUnmatched; ++i) {
                sends.push_back(post(pair.a, message(Kind::send, source, nbytes), true));
                REQUIRE(sends.back().what == Posted::What::posted);
            }
            const Posted full = post(pair.a, message(Kind::send, source, nbytes), true);
            CHECK(full.what == Posted::What::retry);
            CHECK(full.outcome == Outcome{Status::would_block, Reason::window_full});
            const Posted late = post(pair.a, message(Kind::send, source, nbytes, now_ns() + kMillisecond));
            CHECK(late.what == Posted::What::failed);
            CHECK(late.outcome.status == Status::deadline);
            // A blocking post goes on when a message has found its recv.
            std::jthread blocked([&] { sends.push_back(post(pair.a, message(Kind::send, source, nbytes))); });
            for (uint32_t i = 0; i < framed::kMaxUnmatched + 1; ++i) {
                REQUIRE(pair.b.wait(post(pair.b, message(Kind::recv, target, nbytes))) == kOk);
            }
            blocked.join();
            for (Posted& send : sends) {
                CHECK(pair.a.wait(std::move(send)) == kOk);
            }
        }
    }
}

} // namespace test_framed_messages
