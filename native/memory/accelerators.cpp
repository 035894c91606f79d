#include "memory/accelerators.hpp"

namespace zerohop {

namespace {

// Makes a driver's allocation id unique among all drivers, each of which counts from its own start.
uint64_t unique_id(size_t number, uint64_t id) {
    constexpr unsigned kDriverBits = 3;
    return id << kDriverBits | number;
}

} // namespace

HostRegistration::HostRegistration(const std::vector<std::shared_ptr<accel::Driver>>& drivers, void* address,
                                   size_t nbytes, accel::HostPages kind, std::shared_ptr<void> pages)
    : address_(address), pages_(std::move(pages)) {
    if (nbytes == 0) {
        return; // drivers refuse a range without bytes, and a copy of none touches nothing
    }
    drivers_.reserve(drivers.size()); // so that no registration is lost for lack of memory to note it
    try {
        for (const auto& driver : drivers) {
            const Outcome outcome = driver->register_host(address, nbytes, kind);
            if (!outcome.ok()) {
                throw NativeError(outcome, "the memory could not be registered with the " + driver->kind() + " driver");
            }
            drivers_.push_back(driver);
        }
    } catch (...) { // whatever a driver throws, those before it give their registrations back
        unregister();
        throw;
    }
}

void HostRegistration::unregister() {
    for (const auto& driver : drivers_) {
        // a lost device has no registration left
        [[maybe_unused]] const Outcome outcome = driver->unregister_host(address_, pages_);
    }
    drivers_.clear();
}

void Accelerators::open() {
    // Kept only once all are there: a call that finds no memory is made again from the beginning.
    decltype(devices_) devices;
    decltype(places_) places;
    for (const auto& driver : drivers_) {
        int index = 0;
        for (auto& device : driver->devices()) {
            devices.push_back(std::move(device));
            places.emplace_back(driver, index++);
        }
    }
    devices_.swap(devices);
    places_.swap(places);
}

const std::vector<std::shared_ptr<accel::Device>>& Accelerators::devices() {
    opened_.run([this] { open(); });
    return devices_;
}

std::vector<std::shared_ptr<accel::Driver>> Accelerators::in_use() {
    std::vector<std::shared_ptr<accel::Driver>> found;
    devices();
    for (const auto& [driver, index] : places_) {
        if (index == 0) {
            found.push_back(driver);
        }
    }
    return found;
}

const std::pair<std::shared_ptr<accel::Driver>, int>& Accelerators::place(int device) {
    devices();
    return places_.at(static_cast<size_t>(device));
}

uint64_t Accelerators::allocation_id(uint64_t address) {
    devices();
    for (size_t number = 0; number < drivers_.size(); ++number) {
        if (const uint64_t id = drivers_[number]->allocation_id(address); id != 0) {
            return unique_id(number, id);
        }
    }
    return 0;
}

accel::Description Accelerators::describe(uint64_t address) {
    devices();
    for (size_t number = 0; number < drivers_.size(); ++number) {
        const auto& driver = drivers_[number];
        accel::Description found = driver->describe(address);
        if (found.kind == accel::MemoryKind::unknown) {
            continue;
        }
        found.allocation_id = unique_id(number, found.allocation_id);
        for (size_t device = 0; found.device >= 0 && device < places_.size(); ++device) {
            if (places_[device].first == driver && places_[device].second == found.device) {
                found.device = static_cast<int>(device);
                return found;
            }
        }
        return found;
    }
    return {};
}

accel::Description Accelerators::describe(uint64_t address, size_t nbytes) {
    accel::Description whole = describe(address);
    if (whole.kind != accel::MemoryKind::device) {
        return whole;
    }
    while (whole.size != 0 && address + nbytes > whole.base + whole.size) {
        const accel::Description next = describe(whole.base + whole.size);
        if (next.kind != accel::MemoryKind::device || next.device != whole.device || next.size == 0) {
            return {};
        }
        whole.size += next.size;
        constexpr uint64_t kPrime = 0x100000001b3; // the prime of the FNV hash
        whole.allocation_id = (whole.allocation_id ^ next.allocation_id) * kPrime;
    }
    return whole;
}

std::vector<accel::Registrable> Accelerators::registrable(uint64_t address, size_t nbytes) {
    const accel::Description found = describe(address);
    if (found.device < 0) {
        return {};
    }
    return place(found.device).first->registrable(address, nbytes);
}

void Accelerators::expect_inbound(int device) {
    constexpr int kMost = 64; // the bits of flushed_
    if (device >= 0 && device < kMost && devices().at(static_cast<size_t>(device))->needs_flush()) {
        flushed_.fetch_or(uint64_t{1} << device, std::memory_order_acq_rel);
    }
}

void Accelerators::flush_devices() {
    for (uint64_t left = flushed_.load(std::memory_order_acquire); left != 0; left &= left - 1) {
        devices_[static_cast<size_t>(std::countr_zero(left))]->flush_inbound();
    }
}

accel::Stream* Accelerators::stream(int device, Direction direction, unsigned number, Outcome& why) {
    const auto& found = devices().at(static_cast<size_t>(device));
    const std::lock_guard lock(mutex_);
    if (stopped_) {
        why = {Status::closed, Reason::context_closed};
        return nullptr;
    }
    auto& stream = streams_[{device, direction, number}];
    if (!stream) {
        stream = found->stream(why);
    }
    return stream.get();
}

void Accelerators::stop() {
    decltype(streams_) streams;
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    streams.swap(streams_);
}

} // namespace zerohop
