// Holds a registered range of host or device memory, or a peer's host memory mapped into this process.
#pragma once

#include "accel/driver.hpp"
#include "base/descriptor.hpp"
#include "base/pinned.hpp"
#include "base/status.hpp"
#include "memory/block_watch.hpp"
#include "memory/registration.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace zerohop {

class Accelerators;
class HostRegistration;

inline constexpr int kHostDevice = -1;

class Region : public Pinnable {
public:
    // Wraps memory that the caller owns and keeps alive until close() has returned true.
    // If `fd` is not negative, it backs the range from `fd_offset` on, and peers may map it.
    [[nodiscard]] static std::shared_ptr<Region> wrap(uint64_t address, size_t nbytes, int device, int fd,
                                                      uint64_t fd_offset, bool readonly, BlockWatch block = {});
    // Allocates host memory in a sealed memfd: zero-filled, page-aligned, and mappable by peers.
    [[nodiscard]] static std::shared_ptr<Region> allocate_host(size_t nbytes);
    // Allocates device memory.
    [[nodiscard]] static std::shared_ptr<Region> allocate_device(std::shared_ptr<accel::Device> device, int index,
                                                                 size_t nbytes);
    // Returns a part of another region. The part is pinned and closed by itself, but registrations are made of the
    // whole, which stays as long as the part. Throws NativeError if the whole is closed.
    [[nodiscard]] static std::shared_ptr<Region> part(const std::shared_ptr<Region>& whole, uint64_t offset,
                                                      size_t nbytes);
    ~Region() override;

    uint64_t address() const { return address_; }
    size_t nbytes() const { return nbytes_; }
    int device() const { return device_; }
    bool is_host() const { return device_ == kHostDevice; }
    bool readonly() const { return readonly_; }
    // Returns true if its owner has moved the bytes elsewhere since. There may be other memory now, or none.
    bool moved() const { return block_.moved(); }
    int fd() const { return whole_ ? whole_->fd() : backing_.get(); }
    uint64_t fd_offset() const { return fd_offset_; }
    // Returns the region that this is a part of; itself if it is not a part.
    Region& whole() { return whole_ ? *whole_ : *this; }
    std::byte* host() const { return reinterpret_cast<std::byte*>(address_); }

    using MakeRegistration = std::function<std::shared_ptr<Registration>()>;
    // Returns the registration of the whole region with a domain, for what `rights` let a peer do; makes it if there is
    // none. One without rights is for our own use and is kept until deregister(); others are kept as long as somebody
    // holds them. Not to be called on a part.
    [[nodiscard]] std::shared_ptr<Registration> registration(int domain, uint8_t rights, const MakeRegistration& make);
    // Registers host memory with the devices, once, so that they copy to and from it by themselves. Throws NativeError.
    void register_with_devices(Accelerators& accelerators);
    [[nodiscard]] bool known_to_devices() const { return known_to_devices_.load(std::memory_order_acquire); }
    // Ends the registrations that are kept; not to be called on a part. Call it once close() has returned true, and
    // again until it returns true itself, before the memory is freed: devices may know host memory for as long as
    // something is queued on their streams. Memory that this class allocated stays that long by itself, and needs no
    // second call. With `wait` it returns only when the result is true.
    [[nodiscard]] bool deregister(bool wait = false);

private:
    Region() = default;
    struct Registered {
        int domain;
        uint8_t rights;
        std::weak_ptr<Registration> registration;
    };

    uint64_t address_ = 0;
    size_t nbytes_ = 0;
    int device_ = kHostDevice;
    bool readonly_ = false;
    BlockWatch block_;
    Descriptor backing_;
    uint64_t fd_offset_ = 0;
    std::shared_ptr<void> pages_;          // set if this class allocated host memory
    std::shared_ptr<accel::Device> owner_; // set if this class allocated device memory
    Pin<Region> whole_;
    std::mutex registrations_mutex_;
    std::vector<Registered> registrations_;
    std::vector<std::shared_ptr<Registration>> own_registrations_;
    std::shared_ptr<HostRegistration> device_registration_;
    std::atomic<bool> known_to_devices_{false};
    uint64_t release_call_ = 0; // the IdleCalls number of the call after which devices no longer know the memory
};

// Pins memory of this side for an operation. If the outcome is not ok, nothing may touch the memory.
[[nodiscard, gnu::always_inline]] inline Outcome pin_local(const std::shared_ptr<Region>& region, Pin<Region>& pin) {
    if (!pin.pin(region)) {
        return {Status::closed, Reason::revoked};
    }
    return pin->moved() ? kLocalMoved : Outcome{};
}

// Maps a part of a peer's shared memory. close() admits no new users; the last reference unmaps.
class Mapping : public Pinnable {
public:
    // Maps [offset, offset + nbytes) of `fd`; `offset` needs no alignment. Throws NativeError.
    Mapping(int fd, uint64_t offset, size_t nbytes, bool writable);
    // Makes a part of another mapping, which is written to only if both are writable. The part is pinned and closed by
    // itself; the whole is in use until the part is unmapped. Throws NativeError if the whole is closed or does not
    // contain the part.
    Mapping(const std::shared_ptr<Mapping>& whole, uint64_t offset, size_t nbytes, bool writable);

    std::byte* data() const { return data_; }
    size_t nbytes() const { return nbytes_; }
    bool writable() const { return writable_; }
    // Unmaps now if nothing uses it; false if it is still in use. A part only lets go of its whole.
    bool unmap();

private:
    Pin<Mapping> whole_;          // set for a part
    std::shared_ptr<void> pages_; // null for a part
    std::byte* data_ = nullptr;
    size_t nbytes_ = 0;
    bool writable_ = false;
};

} // namespace zerohop
