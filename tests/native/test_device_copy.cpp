// Tests the copy of kernels that reach memory by themselves, where it is longer than what is counted in 32 bits.
#include "bytes.hpp"
#include "zerohop/device.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace test_device_copy {

namespace zd = zerohop::device;
using zerohop::test::Bytes;
using zerohop::test::pattern;

namespace {

constexpr size_t kWindow = 2 << 20;
constexpr size_t kWindows = 512; // 1 GiB
constexpr size_t kTail = 100'003;

// Address space in which 2 MiB stand 512 times one behind the other, and then other memory.
struct Long {
    Long() : base(mmap(nullptr, (kWindows + 1) * kWindow, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        REQUIRE(base != MAP_FAILED);
        const int fd = memfd_create("zerohop-test", MFD_CLOEXEC);
        REQUIRE(ftruncate(fd, 2 * kWindow) == 0);
        for (size_t i = 0; i <= kWindows; ++i) {
            const auto offset = static_cast<off_t>(i == kWindows ? kWindow : 0);
            REQUIRE(mmap(at(i * kWindow), kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) !=
                    MAP_FAILED);
        }
        close(fd);
    }
    ~Long() { munmap(base, (kWindows + 1) * kWindow); }
    Long(const Long&) = delete;
    Long& operator=(const Long&) = delete;

    [[nodiscard]] uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(base) + offset; }
    [[nodiscard]] Bytes bytes(size_t offset, size_t nbytes) const { return {at(offset), at(offset) + nbytes}; }

    void* base;
};

} // namespace

TEST_CASE("device copy: more than 1 GiB, with a rest that is no whole piece") {
    const Long source;
    const Long target;
    const Bytes first = pattern(kWindow, 1);
    const Bytes last = pattern(kTail, 2);
    const Bytes poison = pattern(kWindow, 3);
    std::memcpy(source.at(0), first.data(), kWindow);
    std::memcpy(source.at(kWindows * kWindow), last.data(), kTail);
    std::memcpy(target.at(kWindows * kWindow), poison.data(), kWindow);
    zd::detail::copy<zd::Scope::thread>(reinterpret_cast<zd::Word>(target.base),
                                        reinterpret_cast<zd::Word>(source.base), kWindows * kWindow + kTail);
    CHECK(target.bytes(0, kWindow) == first);
    CHECK(target.bytes(kWindows * kWindow, kTail) == last);
    CHECK(target.bytes(kWindows * kWindow + kTail, kWindow - kTail) == Bytes(poison.begin() + kTail, poison.end()));
}

} // namespace test_device_copy
