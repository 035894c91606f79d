// Tests tagged messages: which receive takes which message, and in which order.
#include "mailbox_fixture.hpp"

#include <atomic>
#include <deque>
#include <random>

namespace test_mailbox {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::tagged;

TEST_CASE("mailbox: every size and memory, the receive posted before or after") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int from : {kHostDevice, kSimDevice}) {
            for (const int to : {kHostDevice, kSimDevice}) {
                CAPTURE(provider);
                CAPTURE(from);
                CAPTURE(to);
                Group pair(provider);
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
                        Posted received;
                        Posted sent;
                        if (before) {
                            received = recv(pair.b, target, nbytes, 5, 7, 0, 33);
                            sent = send(pair.a, source, nbytes, 5, 7, 1);
                        } else {
                            sent = send(pair.a, source, nbytes, 5, 7, 1);
                            arrive(pair.a, pair.b);
                            received = recv(pair.b, target, nbytes, kAny, kAny, 0, 33);
                        }
                        REQUIRE(pair.b.wait(received.op) == kOk);
                        REQUIRE(pair.a.wait(sent) == kOk);
                        CHECK(received.op->bytes_done() == nbytes);
                        CHECK(received.op->value() == value_of(Envelope{kScope, 7, 5}));
                        std::copy(bytes.begin(), bytes.end(), theirs.begin() + 33);
                        REQUIRE(same_bytes(pair.b.get(*target), theirs));
                    }
                }
                pair.a.sync();
                pair.b.sync();
                CHECK(eventually([&] { return source->pins() == 0 && target->pins() == 0; }));
            }
        }
    }
}

TEST_CASE("mailbox: a small message is over for its sender before anybody receives it") {
    Group pair("shm");
    const auto source = pair.a.alloc(8192);
    CHECK(send(pair.a, source, 8192, 1).what == Posted::What::done);
    CHECK(source->pins() == 0);
    const Posted large = send(pair.a, pair.a.alloc(8193), 8193, 1);
    arrive(pair.a, pair.b);
    CHECK(!large.op->done());
}

// A model decides which message each receive gets: receives and messages are each in one order.
TEST_CASE("mailbox: the oldest receive that admits a message takes the oldest message that it admits") {
    for (int round = 0; round < 30; ++round) {
        std::mt19937 random(static_cast<unsigned>(round));
        CAPTURE(round);
        Group pair(round % 2 == 0 ? "shm" : "tcp");
        struct Sent {
            uint32_t tag;
            size_t nbytes;
        };
        struct Wants {
            int64_t tag;
            int expected = -1; // the number of a message
            Posted posted;
            std::shared_ptr<Region> target;
        };
        const auto source = pair.a.alloc(40'000);
        std::vector<Sent> sent;
        std::deque<int> kept;
        std::vector<Wants> wants;
        std::deque<size_t> waiting;
        std::vector<Posted> sends;
        for (int step = 0; step < 60; ++step) {
            if (random() % 2 == 0) {
                const int number = static_cast<int>(sent.size());
                sent.push_back(
                    {static_cast<uint32_t>(random() % 3), 1 + random() % (random() % 3 == 0 ? 30'000 : 300)});
                const auto own = pair.a.alloc(40'000); // a large one is read later
                pair.a.put(*own, pattern(sent.back().nbytes, static_cast<unsigned>(number)));
                sends.push_back(send(pair.a, own, sent.back().nbytes, sent.back().tag));
                arrive(pair.a, pair.b);
                const auto takes = std::find_if(waiting.begin(), waiting.end(), [&](size_t each) {
                    return wants[each].tag == kAny || wants[each].tag == sent.back().tag;
                });
                if (takes != waiting.end()) {
                    wants[*takes].expected = number;
                    waiting.erase(takes);
                } else {
                    kept.push_back(number);
                }
            } else {
                Wants want{random() % 4 == 0 ? kAny : static_cast<int64_t>(random() % 3), -1, {}, pair.b.alloc(40'000)};
                const auto takes = std::find_if(kept.begin(), kept.end(), [&](int each) {
                    return want.tag == kAny || want.tag == sent[static_cast<size_t>(each)].tag;
                });
                if (takes != kept.end()) {
                    want.expected = *takes;
                    kept.erase(takes);
                } else {
                    waiting.push_back(wants.size());
                }
                want.posted = recv(pair.b, want.target, 40'000, want.tag, random() % 2 == 0 ? kAny : 7);
                wants.push_back(std::move(want));
            }
        }
        for (Wants& want : wants) {
            if (want.expected < 0) {
                CHECK(!want.posted.op->done());
                continue;
            }
            const Sent& found = sent[static_cast<size_t>(want.expected)];
            REQUIRE(pair.b.wait(want.posted.op) == kOk);
            CHECK(want.posted.op->value() == value_of(Envelope{kScope, 7, found.tag}));
            REQUIRE(want.posted.op->bytes_done() == found.nbytes);
            CHECK(same_bytes(pair.b.get(*want.target, 0, found.nbytes),
                             pattern(found.nbytes, static_cast<unsigned>(want.expected))));
        }
    }
}

TEST_CASE("mailbox: receives that have ended take no message, and it goes to the next one") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const size_t nbytes : {10, 5000, 100'000}) {
            for (const bool before : {false, true}) {
                CAPTURE(provider);
                CAPTURE(nbytes);
                CAPTURE(before);
                Group pair(provider);
                const auto source = pair.a.alloc(kRoom);
                const auto target = pair.b.alloc(kRoom);
                const auto unused = pair.b.alloc(kRoom);
                pair.b.put(*unused, Bytes(kRoom, 9));
                const Bytes bytes = pattern(nbytes, 1);
                pair.a.put(*source, bytes);
                Posted sent;
                if (!before) {
                    sent = send(pair.a, source, nbytes, 3);
                    arrive(pair.a, pair.b);
                }
                const Posted late = recv(pair.b, unused, nbytes, 4, kAny, now_ns() + kMillisecond);
                const Posted cancelled = recv(pair.b, unused, nbytes, 4);
                cancelled.op->finish(kCancelled);
                REQUIRE(pair.b.wait(late.op) == kDeadline);
                const Posted good = recv(pair.b, target, nbytes, 3);
                if (before) {
                    sent = send(pair.a, source, nbytes, 3);
                }
                CHECK(pair.b.wait(good.op) == kOk);
                CHECK(pair.a.wait(sent) == kOk);
                CHECK(same_bytes(pair.b.get(*target, 0, nbytes), bytes));
                CHECK(same_bytes(pair.b.get(*unused), Bytes(kRoom, 9)));
                CHECK(eventually([&] { return unused->pins() == 0; }));
            }
        }
    }
}

TEST_CASE("mailbox: receives that are cancelled at any moment lose no message, and no later one overtakes") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Group pair(provider);
        constexpr int kCount = 400;
        const auto source = pair.a.alloc(64);
        std::jthread sender([&] {
            for (int i = 0; i < kCount; ++i) {
                Bytes bytes(64, static_cast<uint8_t>(i));
                bytes[1] = static_cast<uint8_t>(i >> 8);
                pair.a.put(*source, bytes);
                REQUIRE(send(pair.a, source, 64, 2).what == Posted::What::done);
            }
        });
        const auto target = pair.b.alloc(64);
        int next = 0;
        for (int round = 0; next < kCount; ++round) {
            const Posted received = recv(pair.b, target, 64, round % 3 == 0 ? kAny : 2);
            for (int spins = round * 13 % 3000; spins != 0; --spins) {
                cpu_pause();
            }
            if (round % 2 == 0 && received.op->finish(kCancelled)) {
                continue;
            }
            REQUIRE(pair.b.wait(received.op) == kOk);
            const Bytes got = pair.b.get(*target, 0, 2);
            REQUIRE(got[0] + 256 * got[1] == next);
            ++next;
        }
    }
}

TEST_CASE("mailbox: threads that receive with a tag each get its messages, and in order") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Group pair(provider);
        constexpr int kEach = 500;
        struct Line {
            uint32_t tag;
            Wanted wanted;
        };
        const std::vector<Line> lines{{0, {7, 0}}, {3, {kAny, 3}}, {8, {7, 8}}, {9, {kAny, 9}}};
        std::atomic<int> wrong{0};
        std::vector<std::jthread> threads;
        for (const Line& line : lines) {
            threads.emplace_back([&] {
                const auto target = pair.b.alloc(8);
                for (int i = 0; i < kEach; ++i) {
                    const Posted received = recv(pair.b, target, 8, line.wanted.tag, line.wanted.source);
                    wrong += pair.b.wait(received.op) != kOk;
                    wrong += received.op->value() != value_of(Envelope{kScope, 7, line.tag});
                    wrong += pair.b.get(*target, 0, 1)[0] != i % 256;
                }
            });
        }
        const auto source = pair.a.alloc(8);
        for (int i = 0; i < kEach; ++i) {
            pair.a.put(*source, Bytes(8, static_cast<uint8_t>(i)));
            for (const Line& line : lines) {
                REQUIRE(send(pair.a, source, 8, line.tag).what == Posted::What::done);
            }
        }
        threads.clear();
        CHECK(wrong == 0);
    }
}

TEST_CASE("mailbox: too long a message ends its receive, and is over") {
    for (const size_t nbytes : {10, 100'000}) {
        Group pair("shm");
        const auto source = pair.a.alloc(kRoom);
        const auto target = pair.b.alloc(kRoom);
        const Posted sent = send(pair.a, source, nbytes, 1);
        const Posted received = recv(pair.b, target, nbytes - 1, 1);
        CHECK(pair.b.wait(received.op) == Outcome{Status::protocol, Reason::truncated});
        if (sent.what == Posted::What::posted) {
            CHECK(pair.a.wait(sent) == Outcome{Status::protocol, Reason::truncated});
        }
        CHECK(send(pair.a, source, 5, 1).what == Posted::What::done);
        CHECK(pair.b.wait(recv(pair.b, target, 5, 1)) == kOk);
    }
}

TEST_CASE("mailbox: a receive that ends before the poller has seen it lets no later message overtake") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const bool any : {false, true}) {
            CAPTURE(provider);
            CAPTURE(any);
            Group pair(provider);
            const auto source = pair.a.alloc(8);
            const auto target = pair.b.alloc(24);
            for (uint8_t i = 1; i <= 2; ++i) {
                pair.a.put(*source, Bytes(8, i));
                CHECK(send(pair.a, source, 8, 1).what == Posted::What::done);
            }
            arrive(pair.a, pair.b);
            Posted first;
            Posted second;
            Posted third;
            pair.b.engine->poller().exclusive([&] {
                first = recv(pair.b, target, 8, 1, any ? kAny : 7);
                second = recv(pair.b, target, 8, 1, 7, 0, 8);
                REQUIRE(first.op->finish(kCancelled));
                third = recv(pair.b, target, 8, kAny, kAny, 0, 16);
            });
            REQUIRE(pair.b.wait(second.op) == kOk);
            REQUIRE(pair.b.wait(third.op) == kOk);
            CHECK(pair.b.get(*target, 8, 1)[0] == 1);
            CHECK(pair.b.get(*target, 16, 1)[0] == 2);
        }
    }
}

TEST_CASE("mailbox: a younger receive takes no message of an older one, whichever lane is looked at first") {
    const Pair one("shm");
    const Pair two("shm");
    const auto memory = one.b.alloc(8);
    Mailbox box;
    box.open();
    const auto keep = [&](const std::shared_ptr<Endpoint>& lane, uint32_t source, uint32_t tag) {
        ArrivedSend sent{.ticket = tag, .nbytes = 0, .eager = true, .bytes = {}};
        REQUIRE(box.keep({kScope, source, tag}, lane, sent));
    };
    keep(one.b.lane, 1, 10);
    keep(two.b.lane, 2, 20);
    keep(two.b.lane, 2, 21);
    std::vector<OpRef> ops;
    for (const Wanted wanted : {Wanted{}, Wanted{}, Wanted{2, kAny}}) {
        ops.push_back(one.b.engine->operations().create(0));
        CHECK(box.post(wanted, {ops.back(), {}, 0, 8}).failed.ok());
    }
    const std::vector<std::pair<std::shared_ptr<Endpoint>, uint32_t>> expected{
        {two.b.lane, 20}, {two.b.lane, 21}, {one.b.lane, 10}};
    const std::vector<size_t> receives{1, 2, 0};
    for (size_t i = 0; i < expected.size(); ++i) {
        Mailbox::Lanes others;
        const auto taken = box.take(expected[i].first.get(), others);
        REQUIRE(taken.has_value());
        CHECK(taken->kept->envelope.tag == expected[i].second);
        CHECK(&*taken->recv.op == &*ops[receives[i]]);
        box.decide(taken->kept, true);
    }
    for (const OpRef& op : ops) {
        op->finish(kOk);
    }
}

} // namespace test_mailbox
