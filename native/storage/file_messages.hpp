// The messages by which a process asks a server on its host for transfers, and the server's answers: entries of fixed
// size, as many as a notification's message has room for.
#pragma once

#include "base/status.hpp"
#include "provider/notify.hpp"
#include "storage/file_io.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace zerohop::storage {

// A transfer that is asked for. Numbers of files and memories are those that the server has given out to this client.
// To cancel a transfer, its slot is enough. What is forgotten is in both `file` and `memory`.
struct Ask {
    uint64_t file_offset = 0;
    uint64_t memory_offset = 0; // in the memory, from the start of what its handle names
    uint64_t nbytes = 0;
    uint32_t slot = 0; // the client's name for it, until its answer
    uint16_t file = 0;
    uint16_t memory = 0;
};
static_assert(sizeof(Ask) == 32);

// How the transfer of a slot has ended.
struct Answer {
    uint64_t done = 0;
    uint32_t slot = 0;
    uint16_t error = 0; // errno
    Outcome outcome;
};
static_assert(sizeof(Answer) == 16);

// Slots of one client: the transfers that it may have asked for and has no answer of. Other clients wait no longer than
// for these, and for this many bytes of them: neither side begins another once there are so many.
inline constexpr uint32_t kSlots = 1024;
inline constexpr uint64_t kMostBytesUnderWay = 64ULL << 20;
// The most bytes of one such transfer. More would keep the disk from others for long.
inline constexpr uint64_t kMostAskBytes = 64ULL << 20;
// The slot of the last answer: the server carries out nothing more.
inline constexpr uint32_t kFarewell = UINT32_MAX;

inline constexpr size_t kAsksOfMessage = kMaxMessage / sizeof(Ask);
inline constexpr size_t kAnswersOfMessage = kMaxMessage / sizeof(Answer);

// Tells what is asked for by a message of Asks. Its number is the value of the notification.
struct Purpose {
    // forget_file, forget_memory: the number means nothing from now on. These come behind the transfers that they end.
    enum class What : uint8_t { transfer, cancel, forget_file, forget_memory };
    What what = What::transfer;
    bool write = false;
    Priority priority = Priority::normal;

    friend bool operator==(const Purpose&, const Purpose&) = default;
    [[nodiscard]] uint32_t number() const {
        return static_cast<uint32_t>(what) | (write ? 4U : 0U) | static_cast<uint32_t>(priority) << 3;
    }
    // Returns false for a number that stands for nothing.
    [[nodiscard]] static bool of(uint32_t number, Purpose& purpose) {
        if (number >= kPriorities << 3) {
            return false;
        }
        purpose = {static_cast<What>(number & 3), (number & 4) != 0, static_cast<Priority>(number >> 3)};
        return true;
    }
};

template <class Entry> Message message_with(std::span<const Entry> entries) {
    return std::make_shared<const std::string>(reinterpret_cast<const char*>(entries.data()), entries.size_bytes());
}

// Returns false if the message is no list of such entries. A message of a stranger may begin at any address.
template <class Entry> [[nodiscard]] bool entries_of(const Message& message, std::span<Entry> into, size_t& count) {
    const size_t nbytes = message == nullptr ? 0 : message->size();
    count = nbytes / sizeof(Entry);
    if (count == 0 || nbytes % sizeof(Entry) != 0 || count > into.size()) {
        return false;
    }
    std::memcpy(into.data(), message->data(), nbytes);
    return true;
}

} // namespace zerohop::storage
