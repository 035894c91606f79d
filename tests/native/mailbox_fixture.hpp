// The verbs in which tests of tagged messages are written.
#pragma once

#include "provider/framed/frame.hpp"
#include "raw_peer.hpp"

namespace zerohop::test::tagged {

inline constexpr uint64_t kScope = 0x1122334455667788;
inline constexpr Outcome kLost{Status::peer_lost, Reason::stream_closed};
inline constexpr size_t kRoom = 600'100;
inline constexpr int64_t kAny = -1;
inline const std::vector<size_t> kSizes{0, 1, 256, 257, 8192, 8193, 262'145, 599'999};

inline Posted send(const Side& side, const std::shared_ptr<Region>& source, size_t nbytes, uint32_t tag,
                   uint32_t rank = 7, uint64_t offset = 0) {
    const Envelope envelope{kScope, rank, tag};
    Request request = message(Kind::send, source, nbytes);
    request.local_offset = offset;
    request.envelope = &envelope;
    return side.engine->post(*side.lane, request, false);
}

inline Posted recv(const Side& side, const std::shared_ptr<Region>& target, size_t nbytes, int64_t tag,
                   int64_t rank = kAny, uint64_t deadline_ns = 0, uint64_t offset = 0) {
    Request request = message(Kind::recv, target, nbytes, deadline_ns);
    request.local_offset = offset;
    return side.engine->post_tagged_receive(kScope, {rank, tag}, request);
}

// When this returns, all sends that were posted before are at the peer.
inline void arrive(const Side& sender, const Side& receiver) {
    REQUIRE(sender.wait(post(sender, request(Kind::notify, 0, 0, 0, 1))) == kOk);
    REQUIRE(notification(receiver).value == 1);
}

struct Group : Pair {
    explicit Group(const std::string& provider) : Pair(provider) {
        a.engine->open_mailbox(kScope);
        b.engine->open_mailbox(kScope);
    }
};

} // namespace zerohop::test::tagged
