// Tests tagged messages: which receive takes which message, in which order, and what is left of either when a receive,
// a sender, a lane or a mailbox ends.
#include "provider/framed/frame.hpp"
#include "raw_peer.hpp"

#include <atomic>
#include <deque>
#include <random>

namespace test_mailbox {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr uint64_t kScope = 0x1122334455667788;
constexpr Outcome kLost{Status::peer_lost, Reason::stream_closed};
constexpr Outcome kGivenUp{Status::peer_lost, Reason::given_up};
constexpr size_t kRoom = 600'100;
constexpr int64_t kAny = -1;
const std::vector<size_t> kSizes{0, 1, 256, 257, 8192, 8193, 262'145, 599'999};

Posted send(const Side& side, const std::shared_ptr<Region>& source, size_t nbytes, uint32_t tag, uint32_t rank = 7,
            uint64_t offset = 0) {
    const Envelope envelope{kScope, rank, tag};
    Request request = message(Kind::send, source, nbytes);
    request.local_offset = offset;
    request.envelope = &envelope;
    return side.engine->post(*side.lane, request, false);
}

Posted recv(const Side& side, const std::shared_ptr<Region>& target, size_t nbytes, int64_t tag, int64_t rank = kAny,
            uint64_t deadline_ns = 0, uint64_t offset = 0) {
    Request request = message(Kind::recv, target, nbytes, deadline_ns);
    request.local_offset = offset;
    return side.engine->post_tagged_receive(kScope, {rank, tag}, request);
}

// When this returns, all sends that were posted before are at the peer.
void arrive(const Side& sender, const Side& receiver) {
    REQUIRE(sender.wait(post(sender, request(Kind::notify, 0, 0, 0, 1))) == kOk);
    REQUIRE(notification(receiver).value == 1);
}

struct Group : Pair {
    explicit Group(const std::string& provider) : Pair(provider) {
        a.engine->open_mailbox(kScope);
        b.engine->open_mailbox(kScope);
    }
};

} // namespace

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

TEST_CASE("mailbox: messages that are here stay when their sender is gone, and receives of it end") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Group pair(provider);
        const auto source = pair.a.alloc(kRoom);
        const auto target = pair.b.alloc(kRoom);
        pair.a.put(*source, pattern(3000, 5));
        CHECK(send(pair.a, source, 3000, 1).what == Posted::What::done);
        CHECK(send(pair.a, source, 200, 2).what == Posted::What::done);
        const Posted large = send(pair.a, source, kRoom, 3);
        arrive(pair.a, pair.b);
        const Posted named = recv(pair.b, target, kRoom, 4, 7);
        const Posted any = recv(pair.b, target, kRoom, 5);
        const Posted other = recv(pair.b, target, kRoom, kAny, 8);
        pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
        pair.b.engine->lose_member(kScope, 7, kLost);
        CHECK(pair.b.wait(named.op) == kLost);
        CHECK(pair.b.wait(any.op) == kLost);
        CHECK((any.op->value() >> 32) == 7);
        CHECK(!other.op->done());
        const Posted second = recv(pair.b, target, kRoom, 2, 7);
        CHECK(pair.b.wait(second.op) == kOk);
        const Posted first = recv(pair.b, target, kRoom, kAny);
        REQUIRE(pair.b.wait(first.op) == kOk);
        CHECK(first.op->bytes_done() == 3000);
        CHECK(same_bytes(pair.b.get(*target, 0, 3000), pattern(3000, 5)));
        CHECK(pair.b.wait(recv(pair.b, target, kRoom, kAny, 7)) == kLost);
        // A receive of any sender has told of it already: the next one waits for the others.
        const Posted next = recv(pair.b, target, kRoom, kAny);
        CHECK(!next.op->done());
    }
}

TEST_CASE("mailbox: a loss that no receive could tell is told by the next one of any sender, once") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    pair.b.engine->lose_member(kScope, 3, kLost);
    const Posted told = recv(pair.b, target, 8, kAny);
    CHECK(pair.b.wait(told.op) == kLost);
    pair.b.engine->lose_member(kScope, 3, kLost); // found again, in another way
    CHECK((told.op->value() >> 32) == 3);
    const Posted next = recv(pair.b, target, 8, kAny);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(pair.b.wait(next.op) == kOk);
}

TEST_CASE("mailbox: a lost sender that is back is waited for again") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    pair.b.engine->lose_member(kScope, 7, kLost);
    CHECK(pair.b.wait(recv(pair.b, target, 8, kAny, 7)) == kLost);
    pair.b.engine->restore_member(kScope, 7);
    const Posted named = recv(pair.b, target, 8, 1, 7);
    const Posted any = recv(pair.b, target, 8, 2);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 2).what == Posted::What::done);
    CHECK(pair.b.wait(named.op) == kOk);
    CHECK(pair.b.wait(any.op) == kOk);
}

TEST_CASE("mailbox: a peer may send with several numbers, as ranks that share it do") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    for (const uint32_t rank : {7U, 8U, 7U}) {
        CHECK(send(pair.a, pair.a.alloc(8), 8, 1, rank).what == Posted::What::done);
        CHECK(pair.b.wait(recv(pair.b, target, 8, 1, rank)) == kOk);
    }
    pair.b.engine->lose_member(kScope, 8, kLost);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1, 8)) == kLost);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1, 8).what == Posted::What::done); // it is back
    arrive(pair.a, pair.b);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1, 8)) == kOk);
    const int peer = pair.b.peer->id();
    CHECK(pair.b.engine->forget_member(kScope, peer, {5, 7}) == std::vector<uint32_t>{5, 7, 8});
    CHECK(pair.b.engine->forget_member(kScope, peer, {}).empty());
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

TEST_CASE("mailbox: memory for a message whose bytes have been sent ends the lane") {
    Side side;
    RawPeer peer(side, "shm");
    CHECK(send(side, side.alloc(8), 8, 1).what == Posted::What::done);
    FrameHeader header = peer.receive(FrameKind::send);
    header.kind = FrameKind::clear_to_send;
    header.flags = 0;
    CHECK(peer.send(header));
    CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
    side.close();
}

TEST_CASE("mailbox: a loss ends the receives that find no message, also where another one is about to take it") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    Posted first;
    Posted second;
    Posted third;
    pair.b.engine->poller().exclusive([&] {
        first = recv(pair.b, target, 8, kAny);
        second = recv(pair.b, target, 8, 1, 7);
        pair.b.engine->lose_member(kScope, 7, kLost);
        third = recv(pair.b, target, 8, 1, 7);
    });
    CHECK(pair.b.wait(first.op) == kOk);
    CHECK(pair.b.wait(second.op) == kLost);
    CHECK(pair.b.wait(third.op) == kLost);
}

TEST_CASE("mailbox: a message of a lane that has closed stays when a receive into a device's memory cannot have it") {
    Group pair("shm");
    const auto source = pair.a.alloc(100);
    const auto target = pair.b.alloc(100);
    pair.a.put(*source, pattern(100, 1));
    CHECK(send(pair.a, source, 100, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
    const Outcome closed{Status::peer_lost, Reason::lane_closed};
    CHECK(pair.b.wait(recv(pair.b, pair.b.alloc(100, kSimDevice), 100, 1)) == closed);
    CHECK(pair.b.wait(recv(pair.b, target, 100, 1)) == kOk);
    CHECK(same_bytes(pair.b.get(*target), pattern(100, 1)));
}

TEST_CASE("mailbox: a flush does not wait until somebody receives a small message") {
    Group pair("tcp");
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk);
    const auto large = pair.a.alloc(100'000);
    const Posted sent = send(pair.a, large, 100'000, 1);
    const Posted flush = post(pair.a, request(Kind::flush, 0, 0, 0));
    arrive(pair.a, pair.b);
    CHECK(!flush.op->done());
    const auto target = pair.b.alloc(100'000);
    CHECK(pair.b.wait(recv(pair.b, target, 100'000, 1)) == kOk); // the small one
    CHECK(pair.b.wait(recv(pair.b, target, 100'000, 1)) == kOk);
    CHECK(pair.a.wait(sent) == kOk);
    CHECK(pair.a.wait(flush) == kOk);
}

TEST_CASE("mailbox: a loss in the middle of a message names the sender") {
    Side side;
    side.engine->open_mailbox(1);
    const auto target = side.alloc(100'000);
    Posted received;
    {
        RawPeer peer(side, "shm");
        FrameHeader header{.kind = FrameKind::send, .flags = framed::kTagged, .arg = 100'000};
        header.share_index = 1;
        header.notify = 5;
        REQUIRE(peer.send(header));
        received = side.engine->post_tagged_receive(1, {}, message(Kind::recv, target, 100'000));
        (void)peer.receive(FrameKind::clear_to_send);
    }
    CHECK(!side.wait(received.op).ok());
    CHECK((received.op->value() >> 32) == 5);
    side.close();
}

TEST_CASE("mailbox: a message that its sender has given up takes no receive") {
    Group pair("tcp");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    const Posted cancelled = send(pair.a, source, kRoom, 1);
    arrive(pair.a, pair.b);
    REQUIRE(cancelled.op->finish(kCancelled));
    pair.a.engine->poller().kick();
    CHECK(eventually([&] { return source->pins() == 0; }));
    const Posted received = recv(pair.b, target, kRoom, 1);
    CHECK(send(pair.a, source, 10, 1).what == Posted::What::done);
    CHECK(pair.b.wait(received.op) == kOk);
    CHECK(received.op->bytes_done() == 10);
}

TEST_CASE("mailbox: once it is closed, receives end, and senders are told") {
    Group pair("shm");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    const Posted kept = send(pair.a, source, kRoom, 1);
    CHECK(send(pair.a, source, 8, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    const Posted waiting = recv(pair.b, target, 8, 2);
    const Outcome closed{Status::closed, Reason::owner_closed};
    pair.b.engine->close_mailbox(kScope, closed);
    CHECK(pair.b.wait(waiting.op) == closed);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1)) == closed);
    CHECK(pair.a.wait(kept) == kGivenUp);
    CHECK(pair.a.wait(send(pair.a, source, kRoom, 1)) == kGivenUp);
    // There is room for as many small ones as before.
    for (uint32_t i = 0; i < 3 * framed::kMaxUnmatched; ++i) {
        REQUIRE(send(pair.a, source, 8, 1).what == Posted::What::done);
    }
}

TEST_CASE("mailbox: more messages than may wait, and one ticket for two, end the lane") {
    for (const bool twice : {false, true}) {
        Side side;
        RawPeer peer(side, "shm");
        FrameHeader header{.kind = FrameKind::send, .flags = framed::kTagged, .arg = 100'000};
        for (uint32_t i = 0; i <= framed::kMaxUnmatched; ++i) {
            header.ticket = twice ? 1 : i;
            header.share_index = i; // a mailbox each, which nobody has opened
            if (!peer.send(header)) {
                break;
            }
        }
        CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
        side.close();
    }
}

} // namespace test_mailbox
