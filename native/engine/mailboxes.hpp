// The mailboxes of an engine, by the scope of their group.
#pragma once

#include "provider/mailbox.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace zerohop {

class Mailboxes {
public:
    // Returns the mailbox of a scope; makes it if there is none.
    [[nodiscard]] std::shared_ptr<Mailbox> at(uint64_t scope) {
        const std::lock_guard lock(lock_);
        std::shared_ptr<Mailbox>& mailbox = mailboxes_[scope];
        if (!mailbox) {
            mailbox = std::make_shared<Mailbox>();
        }
        return mailbox;
    }

    // Forgets receives that have ended, and mailboxes that peers have named and nobody here uses.
    void drop_ended() {
        const std::lock_guard lock(lock_);
        std::erase_if(mailboxes_, [](const auto& each) {
            const bool unused = each.second->drop_ended();
            return unused && each.second.use_count() == 1;
        });
    }

private:
    std::mutex lock_;
    std::unordered_map<uint64_t, std::shared_ptr<Mailbox>> mailboxes_;
};

} // namespace zerohop
