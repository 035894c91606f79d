// A registered range of host or device memory, and a peer's host memory mapped into this process.
#pragma once

#include "accel/driver.hpp"
#include "base/descriptor.hpp"
#include "base/pinned.hpp"
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
    // Somebody else's memory: the caller keeps it alive until close() has returned true.
    // `fd`, where not negative, backs the range from `fd_offset` on and may be mapped by peers.
    [[nodiscard]] static std::shared_ptr<Region> wrap(uint64_t address, size_t nbytes, int device, int fd,
                                                      uint64_t fd_offset, bool readonly);
    // Host memory of our own in a sealed memfd, zero-filled, page-aligned, mappable by peers.
    [[nodiscard]] static std::shared_ptr<Region> allocate_host(size_t nbytes);
    // Device memory of our own.
    [[nodiscard]] static std::shared_ptr<Region> allocate_device(std::shared_ptr<accel::Device> device, int index,
                                                                 size_t nbytes);
    // Part of another: pinned and closed by itself, while it is the whole that gets registered. That stays as long as
    // the part. Throws NativeError when it is closed.
    [[nodiscard]] static std::shared_ptr<Region> part(const std::shared_ptr<Region>& whole, uint64_t offset,
                                                      size_t nbytes);
    ~Region() override;

    uint64_t address() const { return address_; }
    size_t nbytes() const { return nbytes_; }
    int device() const { return device_; }
    bool is_host() const { return device_ == kHostDevice; }
    bool readonly() const { return readonly_; }
    int fd() const { return whole_ ? whole_->fd() : backing_.get(); }
    uint64_t fd_offset() const { return fd_offset_; }
    // What it is part of; itself where it is none.
    Region& whole() { return whole_ ? *whole_ : *this; }
    std::byte* host() const { return reinterpret_cast<std::byte*>(address_); }

    using MakeRegistration = std::function<std::shared_ptr<Registration>()>;
    // The registration of all of it with a domain, for what `rights` let a peer do; made if there is none. One without
    // rights is for our own use and kept until deregister(); others as long as somebody holds them. Not of a part.
    [[nodiscard]] std::shared_ptr<Registration> registration(int domain, uint8_t rights, const MakeRegistration& make);
    // Has the devices copy to and from it by themselves; host memory, once. Throws NativeError.
    void register_with_devices(Accelerators& accelerators);
    [[nodiscard]] bool known_to_devices() const { return known_to_devices_.load(std::memory_order_acquire); }
    // Ends those that are kept, of memory that is not part of another. To be called once close() has returned true, and
    // again until it has, too, before the memory goes: devices may know host memory for as long as something is queued
    // on their streams. Memory of our own needs no second call: it stays for as long as that. With `wait` it returns
    // when it is true.
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
    Descriptor backing_;
    uint64_t fd_offset_ = 0;
    std::shared_ptr<void> pages_;          // ours
    std::shared_ptr<accel::Device> owner_; // ours to free
    Pin<Region> whole_;
    std::mutex registrations_mutex_;
    std::vector<Registered> registrations_;
    std::vector<std::shared_ptr<Registration>> own_registrations_;
    std::shared_ptr<HostRegistration> device_registration_;
    std::atomic<bool> known_to_devices_{false};
    uint64_t release_ = 0; // by which devices know it no more
};

// Part of a peer's shared memory, mapped here. close() drains; the mapping goes with the last reference.
class Mapping : public Pinnable {
public:
    // Maps [offset, offset + nbytes) of `fd`; `offset` needs no alignment. Throws NativeError.
    Mapping(int fd, uint64_t offset, size_t nbytes, bool writable);
    ~Mapping() override;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const { return data_; }
    size_t nbytes() const { return nbytes_; }
    bool writable() const { return writable_; }
    // Unmaps now if nothing uses it; false: still in use.
    bool unmap();

private:
    void* base_ = nullptr;
    size_t mapped_bytes_ = 0;
    std::byte* data_ = nullptr;
    size_t nbytes_ = 0;
    bool writable_ = false;
};

// A memfd of `nbytes` (rounded up to pages by the caller). Throws NativeError with the reason that errno gives.
[[nodiscard]] Descriptor make_memfd(const char* name, size_t nbytes, unsigned seals);
[[nodiscard]] size_t page_bytes();
[[nodiscard]] size_t round_to_pages(size_t nbytes);

} // namespace zerohop
