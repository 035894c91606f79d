// The mailboxes of an engine, by the scope of their group.
#pragma once

#include "provider/mailbox.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace zerohop {

class Mailboxes {
public:
    // Returns the mailbox of a scope; makes it if there is none.
    [[nodiscard]] std::shared_ptr<Mailbox> at(uint64_t scope) {
        const std::lock_guard lock(lock_);
        if (over_.contains(scope)) {
            return closed_;
        }
        std::shared_ptr<Mailbox>& mailbox = mailboxes_[scope];
        if (!mailbox) {
            mailbox = std::make_shared<Mailbox>();
        }
        return mailbox;
    }

    // Forgets receives that have ended, and mailboxes that peers have named and nobody here uses. Of a closed one its
    // scope is kept: messages to it are refused.
    void drop_ended() {
        const std::lock_guard lock(lock_);
        std::erase_if(mailboxes_, [&](const auto& each) {
            const bool unused = each.second->drop_ended() && each.second.use_count() == 1;
            if (unused && each.second->is_closed()) {
                over_.insert(each.first);
            }
            return unused;
        });
    }

    // Returns how many mailboxes there are that are not closed, or still have something.
    [[nodiscard]] size_t count() {
        const std::lock_guard lock(lock_);
        return mailboxes_.size();
    }

private:
    static std::shared_ptr<Mailbox> closed_mailbox() {
        auto mailbox = std::make_shared<Mailbox>();
        (void)mailbox->close({Status::closed, Reason::owner_closed});
        return mailbox;
    }

    std::mutex lock_;
    std::unordered_map<uint64_t, std::shared_ptr<Mailbox>> mailboxes_;
    std::unordered_set<uint64_t> over_;
    const std::shared_ptr<Mailbox> closed_ = closed_mailbox(); // stands for all that are over
};

} // namespace zerohop
