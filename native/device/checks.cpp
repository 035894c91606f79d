#include "device/checks.hpp"

#include "memory/share.hpp"

namespace zerohop::device {

namespace {

constexpr Outcome kBounds{Status::access_denied, Reason::bounds};
constexpr Outcome kRights{Status::access_denied, Reason::rights};
constexpr Outcome kMisaligned{Status::access_denied, Reason::misaligned};
constexpr Outcome kMalformed{Status::protocol, Reason::malformed};

bool within(uint64_t place, uint64_t length, uint64_t nbytes) {
    return place <= nbytes && length <= nbytes - place;
}

bool has(uint8_t rights, uint8_t needed) {
    return (rights & needed) == needed;
}

Outcome check_transfer(const Decoded& entry, const PeerFacts& peer, const std::vector<LocalFacts>& locals) {
    if (entry.local >= locals.size()) {
        return kMalformed;
    }
    const LocalFacts& local = locals[entry.local];
    if (!within(entry.place, entry.nbytes, peer.nbytes) || !within(entry.source, entry.nbytes, local.nbytes)) {
        return kBounds;
    }
    const bool put = entry.op == Op::put;
    const bool may =
        has(peer.rights, put ? kRightWrite : kRightRead) && has(local.rights, put ? kRightRead : kRightWrite);
    return may ? Outcome{} : kRights;
}

// An addition changes what it has read, so it needs both rights.
Outcome check_word(const Decoded& entry, const PeerFacts& peer) {
    if (!within(entry.place, kWordBytes, peer.nbytes)) {
        return kBounds;
    }
    if ((peer.offset + entry.place) % kWordBytes != 0) {
        return kMisaligned;
    }
    const uint8_t needed = entry.op == Op::set ? kRightWrite : static_cast<uint8_t>(kRightRead | kRightWrite);
    return has(peer.rights, needed) ? Outcome{} : kRights;
}

} // namespace

Outcome check(const Decoded& entry, const PeerFacts& peer, const std::vector<LocalFacts>& locals) {
    switch (entry.op) {
    case Op::put:
    case Op::get:
        return check_transfer(entry, peer, locals);
    case Op::set:
    case Op::add:
    case Op::fetch_add:
    case Op::compare_swap:
        return check_word(entry, peer);
    case Op::fence:
    case Op::compare:
        return {};
    case Op::none:
        return kMalformed;
    }
    return kMalformed; // no kernel of ours writes that
}

} // namespace zerohop::device
