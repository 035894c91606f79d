// Matches tagged messages with receives: by the number of the sender and by a tag, or by any of both.
//
// A message goes to the oldest receive that admits it, and a receive takes the oldest message that it admits. Any
// thread posts receives, which wait here, and the poller pairs them with the messages of each lane: so nothing can end
// a receive and let a later message overtake the one that it was meant for. Small messages of lanes that have closed
// are paired by the thread that posts a receive for them.
#pragma once

#include "provider/request.hpp"
#include "provider/tally.hpp"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace zerohop {

// A message whose header has come.
struct ArrivedSend {
    uint32_t ticket = 0;
    uint64_t nbytes = 0;
    bool eager = false; // its bytes have come, too
    std::vector<std::byte> bytes;
    Message header{}; // the sender's, beside the tag
};

// Tells whether a receive leaves a message for claim().
[[nodiscard]] bool only_finds(const PostedRecv& recv, const ArrivedSend& send);

// Ends a receive by an eager message that fits, for memory of the host. Returns nothing if the receive had ended
// before: the message is for the next one.
[[nodiscard]] std::optional<Outcome> finish_eager(PostedRecv& recv, const ArrivedSend& send, uint64_t value);

class Mailbox : public std::enable_shared_from_this<Mailbox> {
public:
    // A message that no receive has ended with. A message without a lane is one whose lane has closed.
    struct Kept {
        Envelope envelope;
        std::shared_ptr<Endpoint> lane;
        ArrivedSend send;
        bool in_hand = false; // taken, and not decided; or found
        uint64_t finder = 0;  // the number of the receive that has found it, and left it here for claim()

        // The value of a receive that takes or finds it.
        [[nodiscard]] uint64_t value(const PostedRecv& recv) const {
            return value_of(envelope) | (send.header != nullptr && recv.finder != 0 ? kDescribed : 0);
        }
    };
    using Lanes = std::set<std::shared_ptr<Endpoint>>;

    // The poller calls these six for messages of a lane.
    //
    // Counts an eager message, or ends the receive that waits for it, if that is all that there is to do; nothing if it
    // is not, and nothing has happened: call keep() and take().
    [[nodiscard]] std::optional<Outcome> deliver(int peer, const Envelope& envelope, const ArrivedSend& send);
    // Keeps a message; take() pairs it. Returns false if nobody will ever receive it.
    [[nodiscard]] bool keep(const Envelope& envelope, const std::shared_ptr<Endpoint>& lane, ArrivedSend& send);
    struct Pair {
        Kept* kept = nullptr;
        PostedRecv recv; // without an operation once the mailbox is closed: the message is to be refused
    };
    // Takes the oldest receive whose oldest message is one of the lane's. decide() comes next, or found(). `others`:
    // lanes that have the oldest message of another receive; call their match_with().
    [[nodiscard]] std::optional<Pair> take(const Endpoint* lane, Lanes& others);
    // Says whether the receive took the message. If it did not, it had ended before, and the message is for another
    // one.
    void decide(Kept* kept, bool taken);
    // Ends a receive that only finds its message, which stays for claim().
    void found(Kept* kept, PostedRecv& recv);
    // Forgets a message that its sender has given up.
    [[nodiscard]] bool withdraw(const Endpoint* lane, uint32_t ticket);
    // Keeps small messages of a lane that closes, and forgets those whose bytes have not come, and will not.
    void lane_closed(const Endpoint* lane);

    struct Posting {
        Outcome failed{}; // not ok: the sender is lost, and nothing of it is here
        uint32_t source = 0;
        Lanes lanes{};     // have a message for the receive, perhaps: call their match_with()
        bool here = false; // one whose lane has closed is for the receive, perhaps: call place()
    };
    // Any thread. Adds a receive.
    [[nodiscard]] Posting post(const Wanted& wanted, PostedRecv recv);
    // Any thread. Pairs messages of lanes that have closed.
    void place();
    // Any thread. Has a message that a receive has found put into memory; without an operation: lets other receives
    // take it. Fails if its sender has given it up, or its bytes have not come and will not.
    [[nodiscard]] Posting claim(uint64_t finder, PostedRecv recv);

    // Any thread. Returns the header of the message that a receive with this number took or found, which forgets it.
    [[nodiscard]] Message take_header(uint64_t finder);

    // Notes with which numbers a peer sends; false if they are too many.
    [[nodiscard]] bool note_member(int peer, uint32_t source);
    // Forgets a peer that is lost. Returns which of its numbers, and of `more`, no other peer sends with: a sender that
    // was started again has a peer of its own.
    [[nodiscard]] std::vector<uint32_t> forget_peer(int peer, const std::vector<uint32_t>& more);
    // Ends the receives of a sender that is lost, and all those of any sender; if there are none of these, the next one
    // that finds no message tells, once. A message of the sender that comes later takes this back.
    void lose(uint32_t source, Outcome outcome);
    void restore(uint32_t source);
    // Counts so many short messages of a sender that was noted; false if they are for receives.
    [[nodiscard]] bool tally(uint64_t count);
    // Has short messages counted from now on, and not kept for receives. Longer ones are for receives as before.
    void count_into(std::shared_ptr<Tally> tally);
    // Lets receives be posted. A mailbox that was never open keeps messages as long as their lanes are.
    void open();
    // Ends all receives, and those that come later. Returns the lanes that have messages here: call their match_with().
    [[nodiscard]] Lanes close(Outcome outcome);
    // Forgets receives that have ended. Returns true if nothing is here, and it is not open.
    [[nodiscard]] bool drop_ended();
    [[nodiscard]] bool is_closed() {
        const std::lock_guard lock(mutex_);
        return !closed_.ok();
    }

private:
    struct Waiting {
        Wanted wanted;
        PostedRecv recv;
    };
    struct Claim {
        Kept* kept = nullptr;
        PostedRecv recv;
    };
    void forget_loss(uint32_t source);
    void keep_header(const Kept& kept, const PostedRecv& recv);
    static void finish(const std::vector<Claim>& claims, Outcome outcome);
    template <typename Which>
    void take_claims(Which&& which, std::vector<Claim>& taken);
    void forget_claims(const Kept& kept, std::vector<Claim>& ended);
    [[nodiscard]] std::optional<Pair> next_claim(const Endpoint* lane, Lanes& others, std::vector<Claim>& ended);
    using Place = std::list<Waiting>::iterator;
    [[nodiscard]] std::set<const Kept*> spoken_for(std::vector<Place>* without);
    [[nodiscard]] std::list<Kept>::iterator first_for(const Wanted& wanted, const std::set<const Kept*>& spoken);
    [[nodiscard]] std::list<Waiting> take_ended();
    enum class At : uint8_t { nowhere, receive, tally };
    [[nodiscard]] At place_of(int peer, const Envelope& envelope, uint64_t nbytes, std::list<Waiting>& receive);

    std::mutex mutex_;   // a receive that is dropped may be the last to hold its memory, whose release takes long
    std::mutex placing_; // held while messages of closed lanes are paired, so that they keep their order
    std::list<Kept> kept_;
    std::list<Waiting> waiting_;
    std::vector<Claim> claims_;
    std::vector<std::pair<uint32_t, Outcome>> lost_;
    std::vector<uint32_t> untold_;              // lost senders of which no receive of any sender has told
    std::map<int, std::set<uint32_t>> members_; // by the ids of peers
    std::map<uint64_t, Message> headers_;       // of messages that were taken or found, by the receives' numbers
    std::shared_ptr<Tally> tally_;              // counts short messages; null: they are for receives
    size_t orphan_bytes_ = 0;                   // what messages without a lane take
    bool is_open_ = false;
    Outcome closed_;
};

} // namespace zerohop
