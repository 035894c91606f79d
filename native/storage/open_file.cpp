#include "storage/open_file.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zerohop::storage {

namespace {

// Smaller writes are gathered better by the cache; larger ones only wait longer for the disk that way.
constexpr uint64_t kLargeWrite = 1ULL << 20;
// The cache reads ahead of smaller reads; a disk would have to be asked for each.
constexpr uint64_t kSmallRead = 4096;

// As in linux/mman.h of Linux 6.5, which older systems do not have.
struct CacheRange {
    uint64_t offset;
    uint64_t nbytes;
};
struct CacheCounts {
    uint64_t cached;
    uint64_t dirty;
    uint64_t writeback;
    uint64_t evicted;
    uint64_t recently_evicted;
};
constexpr long kCachestat = 451;

} // namespace

// An older kernel cannot say; then the file may as well be in the cache.
bool OpenFile::cached(uint64_t offset, uint64_t nbytes) const {
    const CacheRange range{offset, nbytes};
    CacheCounts counts{};
    return syscall(kCachestat, cached_.get(), &range, &counts, 0U) != 0 || counts.cached != 0;
}

// A disk reads whole blocks, so the bytes behind the end of the file would reach memory, too.
bool OpenFile::ends_before(uint64_t end, Length& length) const {
    if (length.file == this && end <= length.nbytes) {
        return false;
    }
    struct stat facts{};
    if (fstat(cached_.get(), &facts) != 0) {
        return true;
    }
    length = {this, static_cast<uint64_t>(facts.st_size)};
    return length.nbytes < end;
}

// Asks the system nothing.
Obstacle OpenFile::misfit(uint64_t offset, uint64_t nbytes, const std::byte* data) const {
    if (direct_.get() < 0 || refused_.load(std::memory_order_relaxed)) {
        return Obstacle::file;
    }
    if ((offset & (alignment_.offset - 1)) != 0) {
        return Obstacle::offset;
    }
    if ((nbytes & (alignment_.offset - 1)) != 0) {
        return Obstacle::length;
    }
    return (reinterpret_cast<uintptr_t>(data) & (alignment_.memory - 1)) != 0 ? Obstacle::memory : Obstacle::none;
}

Obstacle OpenFile::obstacle(bool write, uint64_t offset, uint64_t nbytes, const std::byte* data, Length& length) const {
    const Obstacle found = misfit(offset, nbytes, data);
    const bool fits = found == Obstacle::none;
    return fits && !write && ends_before(offset + nbytes, length) ? Obstacle::end : found;
}

OpenFile::Way OpenFile::way(bool write, uint64_t offset, uint64_t nbytes, const std::byte* data, Length& length) const {
    return way_in(mode_, write, offset, nbytes, data, length);
}

OpenFile::Way OpenFile::way_in(Direct mode, bool write, uint64_t offset, uint64_t nbytes, const std::byte* data,
                               Length& length) const {
    const Way through{cached_.get(), false};
    if (mode == Direct::never || misfit(offset, nbytes, data) != Obstacle::none) {
        return through;
    }
    if (mode == Direct::automatic && (write ? nbytes < kLargeWrite : nbytes < kSmallRead || cached(offset, nbytes))) {
        return through;
    }
    if (!write && ends_before(offset + nbytes, length)) {
        return through;
    }
    return {direct_.get(), true};
}

const FixedFile* OpenFile::fixed_in(FileIo& io) {
    asked_.run([&] {
        home_ = io.identity();
        fixed_ = io.fix_file(cached_.get(), direct_.get());
    });
    return home_ == io.identity() ? fixed_.get() : nullptr;
}

std::string OpenFile::why_no_gpudirect(CuFile& library) {
    const std::lock_guard lock(gpu_mutex_);
    if (no_gpudirect_.empty() && !gpu_file_) {
        if (direct_.get() < 0 || mode_ == Direct::never) {
            no_gpudirect_ = "the file is not open for transfers past the page cache";
        } else {
            gpu_file_ = GpuFile::open(library, direct_.get(), no_gpudirect_);
            gpu_.store(gpu_file_.get(), std::memory_order_release);
        }
    }
    return no_gpudirect_;
}

std::string OpenFile::known_no_gpudirect() const {
    const std::lock_guard lock(gpu_mutex_);
    return no_gpudirect_;
}

void OpenFile::refuse_gpudirect(std::string why) {
    const std::lock_guard lock(gpu_mutex_);
    if (no_gpudirect_.empty()) {
        no_gpudirect_ = std::move(why);
    }
    gpu_.store(nullptr, std::memory_order_release);
}

const Carrier* OpenFile::carrier(bool write, uint64_t offset, uint64_t nbytes, uint64_t address, Length& length) const {
    const GpuFile* const found = gpu_.load(std::memory_order_acquire);
    if (found == nullptr || ((offset | nbytes | address) & (kGpuAlignment - 1)) != 0) {
        return nullptr;
    }
    const auto* const data = reinterpret_cast<const std::byte*>(address);
    return way_in(gpu_required_ ? Direct::required : mode_, write, offset, nbytes, data, length).past_cache ? found
                                                                                                            : nullptr;
}

Obstacle OpenFile::gpu_obstacle(bool write, uint64_t offset, uint64_t nbytes, uint64_t address, Length& length) const {
    constexpr uint64_t kRest = kGpuAlignment - 1;
    if (gpu_.load(std::memory_order_acquire) == nullptr) {
        return Obstacle::device;
    }
    if ((offset & kRest) != 0) {
        return Obstacle::offset;
    }
    if ((nbytes & kRest) != 0) {
        return Obstacle::length;
    }
    if ((address & kRest) != 0) {
        return Obstacle::memory;
    }
    return obstacle(write, offset, nbytes, reinterpret_cast<const std::byte*>(address), length);
}

} // namespace zerohop::storage
