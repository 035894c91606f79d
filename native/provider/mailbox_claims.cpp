// Messages that a receive has found, and left in the mailbox: memory is named for them later, by a claim.
#include "provider/mailbox.hpp"

#include <algorithm>

namespace zerohop {

bool only_finds(const PostedRecv& recv, const ArrivedSend& send) {
    const bool described = recv.finds_described && send.header != nullptr && !send.eager;
    return recv.finder != 0 && (!recv.local || send.nbytes > recv.nbytes || described);
}

void Mailbox::found(Kept* kept, PostedRecv& recv) {
    {
        const std::lock_guard lock(mutex_);
        kept->finder = recv.finder;
    }
    if (recv.op->finish({}, kept->send.nbytes, kept->value(recv))) {
        return;
    }
    const std::lock_guard lock(mutex_);
    kept->finder = 0;
    kept->in_hand = false;
}

Mailbox::Posting Mailbox::claim(uint64_t finder, PostedRecv recv) {
    const std::lock_guard lock(mutex_);
    Posting posting;
    const auto kept = std::ranges::find_if(kept_, [&](const Kept& each) { return each.finder == finder; });
    if (!closed_.ok() || kept == kept_.end()) {
        posting.failed = closed_.ok() ? kGivenUp : closed_;
        headers_.erase(finder);
        return posting;
    }
    if (kept->lane) {
        posting.lanes.insert(kept->lane);
    } else {
        posting.here = true;
    }
    if (recv.op) {
        claims_.push_back({&*kept, std::move(recv)});
    } else {
        headers_.erase(finder);
        kept->finder = 0;
        kept->in_hand = false;
    }
    return posting;
}

// The caller holds the lock. Before the receive ends, whose caller asks for the header then.
void Mailbox::keep_header(const Kept& kept, const PostedRecv& recv) {
    if (kept.send.header != nullptr && recv.finder != 0) {
        headers_[recv.finder] = kept.send.header;
    }
}

Message Mailbox::take_header(uint64_t finder) {
    const std::lock_guard lock(mutex_);
    const auto found = headers_.find(finder);
    if (found == headers_.end()) {
        return {};
    }
    Message header = std::move(found->second);
    headers_.erase(found);
    return header;
}

template <typename Which>
void Mailbox::take_claims(Which&& which, std::vector<Claim>& taken) {
    for (auto it = claims_.begin(); it != claims_.end();) {
        if (which(*it)) {
            taken.push_back(std::move(*it));
            it = claims_.erase(it);
        } else {
            ++it;
        }
    }
}

// The caller holds the lock.
std::optional<Mailbox::Pair> Mailbox::next_claim(const Endpoint* lane, Lanes& others, std::vector<Claim>& ended) {
    take_claims([](const Claim& claim) { return claim.recv.op->done(); }, ended);
    for (auto it = claims_.begin(); it != claims_.end(); ++it) {
        if (it->kept->lane.get() == lane) {
            Pair pair{it->kept, std::move(it->recv)};
            claims_.erase(it);
            return pair;
        }
        if (it->kept->lane) {
            others.insert(it->kept->lane);
        }
    }
    return std::nullopt;
}

// Takes the claims of a message that goes. The caller holds the lock, and ends them when it has given it back.
void Mailbox::forget_claims(const Kept& kept, std::vector<Claim>& ended) {
    take_claims([&kept](const Claim& claim) { return claim.kept == &kept; }, ended);
}

void Mailbox::finish(const std::vector<Claim>& claims, Outcome outcome) {
    for (const Claim& claim : claims) {
        claim.recv.op->finish(outcome);
    }
}

} // namespace zerohop
