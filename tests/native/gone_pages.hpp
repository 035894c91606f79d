// Maps a file in memory that a test then makes shorter, so that its pages are gone.
#pragma once

#include "base/descriptor.hpp"
#include "base/pages.hpp"
#include "memory/region.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

namespace zerohop::test {

class GonePages {
public:
    explicit GonePages(size_t nbytes)
        : fd_(make_memfd("gone", nbytes, 0)), nbytes_(nbytes),
          pages_(map_shared(fd_.get(), nbytes, PROT_READ | PROT_WRITE, "a test's file")) {}

    std::byte* data() const { return static_cast<std::byte*>(pages_.get()); }
    int fd() const { return fd_.get(); }
    // Takes all from `nbytes` on away.
    void truncate(size_t nbytes = 0) const { REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(nbytes)) == 0); }
    // Gives empty pages back.
    void restore() const { REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(nbytes_)) == 0); }
    // Takes the addresses away, as freeing a buffer may.
    void unmap() const { REQUIRE(::mprotect(pages_.get(), nbytes_, PROT_NONE) == 0); }

    std::shared_ptr<Region> region() const {
        return Region::wrap(reinterpret_cast<uint64_t>(data()), nbytes_, kHostDevice, fd_.get(), 0, false);
    }

private:
    Descriptor fd_;
    size_t nbytes_;
    std::shared_ptr<void> pages_;
};

} // namespace zerohop::test
