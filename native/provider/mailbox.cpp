#include "provider/mailbox.hpp"

#include "base/guarded.hpp"
#include "provider/provider.hpp"

#include <algorithm>

namespace zerohop {

namespace {

constexpr size_t kMostMembers = 1024; // numbers that one peer may send with
// Bounds the memory of messages that a mailbox keeps of closed lanes, for a peer that connects again and again. A lane
// that is full leaves a quarter of this.
constexpr size_t kMostOrphanBytes = size_t{128} << 20;
constexpr size_t kOfEach = 512; // bytes of a message beside its own

size_t cost_of(const Mailbox::Kept& kept) {
    return kOfEach + kept.send.bytes.size();
}

} // namespace

std::optional<Outcome> finish_eager(PostedRecv& recv, const ArrivedSend& send, uint64_t value) {
    const uint64_t base = recv.local->address() + recv.offset;
    const Gone gone = copy_guarded(reinterpret_cast<void*>(base), send.bytes.data(), send.bytes.size());
    const Outcome outcome = gone != Gone::nothing ? kLocalMemoryGone : recv.local->moved() ? kLocalMoved : Outcome{};
    recv.local.reset();
    if (!recv.op->finish(outcome, outcome.ok() ? send.nbytes : 0, value)) {
        return std::nullopt;
    }
    return outcome;
}

std::optional<Outcome> Mailbox::deliver(int peer, const Envelope& envelope, const ArrivedSend& send) {
    for (;;) {
        std::list<Waiting> receive;
        switch (place_of(peer, envelope, send.nbytes, receive)) {
        case At::nowhere:
            return std::nullopt;
        case At::tally:
            return Outcome{};
        case At::receive:
            break;
        }
        // If it has just ended, the message is for the next one.
        if (const std::optional<Outcome> outcome = finish_eager(receive.front().recv, send, value_of(envelope))) {
            return outcome;
        }
    }
}

// Counts an eager message; or takes the receive that waits for it, if there is no more to do than to put the message
// into its memory, which the host has.
Mailbox::At Mailbox::place_of(int peer, const Envelope& envelope, uint64_t nbytes, std::list<Waiting>& receive) {
    const std::lock_guard lock(mutex_);
    // A sender that is new, or was lost, has to be noted.
    if (!closed_.ok() || !lost_.empty()) {
        return At::nowhere;
    }
    const auto member = members_.find(peer);
    if (member == members_.end() || !member->second.contains(envelope.source)) {
        return At::nowhere;
    }
    if (tally_) {
        tally_->add(1);
        return At::tally;
    }
    if (!kept_.empty()) { // older messages may be for the same receive
        return At::nowhere;
    }
    const auto it = std::ranges::find_if(
        waiting_, [&](const Waiting& each) { return each.wanted.admits(envelope) && !each.recv.op->done(); });
    if (it == waiting_.end() || !it->recv.local || !it->recv.local->is_host() || it->recv.local->moved() ||
        nbytes > it->recv.nbytes) {
        return At::nowhere;
    }
    receive.splice(receive.end(), waiting_, it);
    return At::receive;
}

bool Mailbox::tally(uint64_t count) {
    const std::lock_guard lock(mutex_);
    if (!tally_ || !closed_.ok() || !lost_.empty()) {
        return false;
    }
    tally_->add(count);
    return true;
}

void Mailbox::count_into(std::shared_ptr<Tally> tally) {
    const std::lock_guard lock(mutex_);
    tally_ = std::move(tally);
}

bool Mailbox::keep(const Envelope& envelope, const std::shared_ptr<Endpoint>& lane, ArrivedSend& send) {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) {
        return false;
    }
    forget_loss(envelope.source);
    kept_.push_back({envelope, lane, std::move(send)});
    return true;
}

std::optional<Mailbox::Pair> Mailbox::take(const Endpoint* lane, Lanes& others) {
    std::list<Waiting> ended; // destroyed after the lock is given back
    std::vector<Claim> claims;
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) {
        const auto found = std::ranges::find(kept_, lane, [](const Kept& kept) { return kept.lane.get(); });
        return found == kept_.end() ? std::nullopt : std::optional(Pair{&*found, {}});
    }
    if (std::optional<Pair> claimed = next_claim(lane, others, claims)) {
        return claimed;
    }
    std::set<const Kept*> spoken; // for older receives
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto waiting = it++;
        if (waiting->recv.op->done()) {
            ended.splice(ended.end(), waiting_, waiting);
            continue;
        }
        const auto found = first_for(waiting->wanted, spoken);
        if (found == kept_.end()) {
            continue;
        }
        if (found->lane.get() == lane) {
            Pair pair{&*found, std::move(waiting->recv)};
            keep_header(*found, pair.recv);
            found->in_hand = true;
            waiting_.erase(waiting);
            return pair;
        }
        spoken.insert(&*found);
        if (found->lane) {
            others.insert(found->lane);
        }
    }
    return std::nullopt;
}

std::list<Mailbox::Kept>::iterator Mailbox::first_for(const Wanted& wanted, const std::set<const Kept*>& spoken) {
    return std::ranges::find_if(kept_, [&](const Kept& kept) {
        return !kept.in_hand && wanted.admits(kept.envelope) && !spoken.contains(&kept);
    });
}

void Mailbox::decide(Kept* kept, bool taken) {
    std::list<Kept> ended; // destroyed after the lock is given back
    std::vector<Claim> claims;
    {
        const std::lock_guard lock(mutex_);
        kept->in_hand = kept->finder != 0; // a claim that has ended leaves it for the next one
        if (taken) {
            forget_claims(*kept, claims);
            const auto found = std::ranges::find(kept_, kept, [](const Kept& each) { return &each; });
            orphan_bytes_ -= found->lane ? 0 : cost_of(*found);
            ended.splice(ended.end(), kept_, found);
        }
    }
    finish(claims, kGivenUp);
}

bool Mailbox::withdraw(const Endpoint* lane, uint32_t ticket) {
    std::vector<Claim> ended;
    bool here = false;
    {
        const std::lock_guard lock(mutex_);
        here = std::erase_if(kept_, [&](const Kept& kept) {
                   const bool is_it = kept.lane.get() == lane && kept.send.ticket == ticket;
                   if (is_it) {
                       forget_claims(kept, ended);
                   }
                   return is_it;
               }) != 0;
    }
    finish(ended, kGivenUp);
    return here;
}

void Mailbox::lane_closed(const Endpoint* lane) {
    std::list<Kept> gone;
    std::vector<Claim> ended;
    {
        const std::lock_guard lock(mutex_);
        for (auto it = kept_.begin(); it != kept_.end();) {
            const auto kept = it++;
            if (kept->lane.get() != lane) {
                continue;
            }
            // An eager message that was cut short, for lack of memory, has lost its bytes.
            const bool whole = kept->send.eager && kept->send.bytes.size() == kept->send.nbytes;
            if (whole && is_open_ && orphan_bytes_ + cost_of(*kept) <= kMostOrphanBytes) {
                kept->lane.reset();
                orphan_bytes_ += cost_of(*kept);
            } else {
                forget_claims(*kept, ended);
                gone.splice(gone.end(), kept_, kept);
            }
        }
    }
    finish(ended, {Status::peer_lost, Reason::lane_closed});
    place();
}

Mailbox::Posting Mailbox::post(const Wanted& wanted, PostedRecv recv) {
    const std::lock_guard lock(mutex_);
    Posting posting;
    if (!closed_.ok()) {
        posting.failed = closed_;
        return posting;
    }
    // The lane of the oldest message is enough: if that is for an older receive, take() names other lanes.
    if (const auto oldest = first_for(wanted, {}); oldest != kept_.end()) {
        posting.here = oldest->lane == nullptr;
        if (oldest->lane) {
            posting.lanes.insert(oldest->lane);
        }
    }
    // Others may be about to take them.
    const bool found = lost_.empty() || first_for(wanted, spoken_for(nullptr)) != kept_.end();
    const auto lost = [&](uint32_t source) {
        return std::ranges::find(lost_, source, [](const auto& each) { return each.first; });
    };
    if (!found && wanted.source < 0 && !untold_.empty()) {
        posting = {};
        posting.source = untold_.front();
        untold_.erase(untold_.begin());
        posting.failed = lost(posting.source)->second;
        return posting;
    }
    if (!found && wanted.source >= 0) {
        if (const auto it = lost(static_cast<uint32_t>(wanted.source)); it != lost_.end()) {
            posting = {};
            posting.source = it->first;
            posting.failed = it->second;
            return posting;
        }
    }
    waiting_.push_back({wanted, std::move(recv)});
    return posting;
}

void Mailbox::place() {
    const std::lock_guard placing(placing_);
    Lanes others;
    while (std::optional<Pair> pair = take(nullptr, others)) {
        const Kept& kept = *pair->kept;
        const uint64_t value = kept.value(pair->recv);
        bool taken = true;
        if (pair->recv.op && only_finds(pair->recv, kept.send)) {
            found(pair->kept, pair->recv);
            continue;
        }
        if (!pair->recv.op) {
            taken = true; // the mailbox is closed
        } else if (pair->recv.carried) {
            taken = pair->recv.op->finish({}, kept.send.nbytes, value);
        } else if (pair->recv.local->moved()) {
            taken = pair->recv.op->finish(kLocalMoved, 0, value);
        } else if (kept.send.nbytes > pair->recv.nbytes) {
            taken = pair->recv.op->finish({Status::protocol, Reason::truncated}, 0, value);
        } else if (!pair->recv.local->is_host()) {
            // The lane that would have copied it to the device is gone. The message stays, for memory of the host.
            (void)pair->recv.op->finish({Status::peer_lost, Reason::lane_closed}, 0, value);
            taken = false;
        } else {
            taken = finish_eager(pair->recv, kept.send, value).has_value();
        }
        decide(pair->kept, taken);
    }
    for (const auto& lane : others) {
        lane->match_with(shared_from_this());
    }
}

bool Mailbox::note_member(int peer, uint32_t source) {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) {
        return true; // nobody asks who has sent to it
    }
    std::set<uint32_t>& sources = members_[peer];
    sources.insert(source);
    return sources.size() <= kMostMembers;
}

std::vector<uint32_t> Mailbox::forget_peer(int peer, const std::vector<uint32_t>& more) {
    const std::lock_guard lock(mutex_);
    std::set<uint32_t> sources(more.begin(), more.end());
    if (const auto found = members_.find(peer); found != members_.end()) {
        sources.insert(found->second.begin(), found->second.end());
        members_.erase(found);
    }
    std::erase_if(sources, [&](uint32_t source) {
        return std::ranges::any_of(members_, [&](const auto& each) { return each.second.contains(source); });
    });
    return {sources.begin(), sources.end()};
}

// Returns the messages that the receives that wait will take; `without`, if it is given: the receives that find none.
// The caller holds the lock.
std::set<const Mailbox::Kept*> Mailbox::spoken_for(std::vector<Place>* without) {
    std::set<const Kept*> taken;
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
        if (it->recv.op->done()) {
            continue;
        }
        const auto found = first_for(it->wanted, taken);
        if (found != kept_.end()) {
            taken.insert(&*found);
        } else if (without != nullptr) {
            without->push_back(it);
        }
    }
    return taken;
}

void Mailbox::forget_loss(uint32_t source) {
    if (!lost_.empty()) {
        std::erase_if(lost_, [&](const auto& each) { return each.first == source; });
        std::erase(untold_, source);
    }
}

void Mailbox::restore(uint32_t source) {
    const std::lock_guard lock(mutex_);
    forget_loss(source);
}

void Mailbox::lose(uint32_t source, Outcome outcome) {
    std::list<Waiting> ended;
    {
        const std::lock_guard lock(mutex_);
        if (!closed_.ok()) {
            return;
        }
        const bool known = std::ranges::any_of(lost_, [&](const auto& each) { return each.first == source; });
        if (!known) {
            lost_.emplace_back(source, outcome);
        }
        std::vector<Place> without;
        (void)spoken_for(&without);
        bool told = false;
        for (const Place& waiting : without) {
            const bool of_any = waiting->wanted.source < 0;
            if (of_any ? !known : waiting->wanted.source == source) {
                told |= of_any;
                ended.splice(ended.end(), waiting_, waiting);
            }
        }
        if (!told && !known) {
            untold_.push_back(source);
        }
    }
    for (const Waiting& waiting : ended) {
        waiting.recv.op->finish(outcome, 0, uint64_t{source} << 32);
    }
}

void Mailbox::open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
}

Mailbox::Lanes Mailbox::close(Outcome outcome) {
    std::list<Waiting> ended;
    std::vector<Claim> claims;
    Lanes lanes;
    {
        const std::lock_guard lock(mutex_);
        for (const Kept& kept : kept_) {
            if (kept.lane) {
                lanes.insert(kept.lane);
            }
        }
        is_open_ = false;
        closed_ = outcome;
        ended.swap(waiting_);
        claims.swap(claims_);
    }
    for (const Waiting& waiting : ended) {
        waiting.recv.op->finish(outcome);
    }
    finish(claims, outcome);
    place();
    return lanes;
}

std::list<Mailbox::Waiting> Mailbox::take_ended() {
    std::list<Waiting> ended;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto waiting = it++;
        if (waiting->recv.op->done()) {
            ended.splice(ended.end(), waiting_, waiting);
        }
    }
    return ended;
}

bool Mailbox::drop_ended() {
    std::list<Waiting> ended; // destroyed after the lock is given back
    const std::lock_guard lock(mutex_);
    ended = take_ended();
    return !is_open_ && kept_.empty() && waiting_.empty() && claims_.empty();
}

} // namespace zerohop
