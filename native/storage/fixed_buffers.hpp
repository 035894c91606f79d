// Remembers which host memory the system keeps at hand for transfers.
#pragma once

#include "memory/place.hpp"
#include "storage/file_io.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zerohop::storage {

// Not thread-safe, nor is a Buffers: the queue's lock covers both.
class FixedBuffers {
public:
    static constexpr uint64_t kBytes = 1ULL << 30; // the most that the system takes as one buffer

    // The buffers of one memory, each of kBytes but the last. They stay fixed as long as somebody holds this, as
    // transfers do that the system has not carried out yet.
    class Buffers {
    public:
        Buffers(FileIo& io, std::vector<int> numbers) : io_(io), numbers_(std::move(numbers)) {}
        ~Buffers();
        Buffers(const Buffers&) = delete;
        Buffers& operator=(const Buffers&) = delete;
        // Returns the one that has all of a range; -1 if none has.
        [[nodiscard]] int find(uint64_t offset, uint64_t nbytes) const;

    private:
        FileIo& io_;
        const std::vector<int> numbers_;
    };

    explicit FixedBuffers(FileIo& io) : io_(io) {}

    // Fixes host memory, by the object that it pins; false, and `why`, if that cannot be. It stays fixed until remove()
    // has been called as often as this.
    [[nodiscard]] bool add(const Place& memory, std::weak_ptr<const void> object, std::string& why);
    void remove(const void* object);
    // Returns the buffers of memory that is pinned; null if it was not fixed.
    [[nodiscard]] std::shared_ptr<const Buffers> of(const void* object);

private:
    struct Fixed {
        std::weak_ptr<const void> object; // another one may lie where one was that has gone
        std::shared_ptr<const Buffers> buffers;
        int users = 1;
    };
    FileIo& io_;
    std::unordered_map<const void*, Fixed> fixed_;
};

} // namespace zerohop::storage
