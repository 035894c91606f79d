// Manages the range of addresses that sim device memory lives in.
//
// Addresses are reserved in large PROT_NONE arenas that stay until the driver ends, so that an address stays
// recognisable as a device address after its allocation is freed. Were it unmapped instead, a late copy would take it
// for host memory and crash, or write into whatever the process has mapped there since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace zerohop::accel::sim {

inline void* pointer(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

// Not thread-safe: SimMemory guards it.
class AddressSpace {
public:
    AddressSpace() = default;
    ~AddressSpace();
    AddressSpace(const AddressSpace&) = delete;
    AddressSpace& operator=(const AddressSpace&) = delete;

    // Maps `nbytes` (whole pages) of `fd` PROT_NONE at a fresh address; 0 if the kernel refuses. Throws std::bad_alloc,
    // with nothing taken.
    [[nodiscard]] uint64_t map(int fd, size_t nbytes);
    // Unmaps a range from `map`. The pages are released; the addresses stay reserved and may be used again.
    void unmap(uint64_t address, size_t nbytes) noexcept;

    // True if any byte of the range is a device address. The range does not wrap around.
    [[nodiscard]] bool touches(uint64_t address, size_t nbytes) const {
        for (const Extent& arena : arenas_) {
            if (address < arena.address + arena.nbytes && arena.address < address + nbytes) {
                return true;
            }
        }
        return false;
    }

private:
    struct Extent {
        uint64_t address = 0;
        size_t nbytes = 0;
    };

    [[nodiscard]] bool grow(size_t nbytes);
    void add_vacant(uint64_t address, size_t nbytes);

    std::vector<Extent> arenas_;
    std::map<uint64_t, size_t> vacant_; // by address, neighbours merged
};

} // namespace zerohop::accel::sim
