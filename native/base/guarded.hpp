// Touches memory that somebody may take away at any moment: a file that its owner truncates, a file system that is
// full, a buffer that is freed beneath its registration. A touch of what is gone ends the guarded call, and not the
// process.
//
// A handler of SIGSEGV and SIGBUS sees to that. It acts only for a thread inside a guarded call, and only if the
// address is one that the call was told to expect; any other fault goes to the handler before it, unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zerohop {

// Tells which of the two memories of a guarded call was gone.
enum class Gone : uint8_t { nothing = 0, first = 1, second = 2 };

// A range that a guarded call touches.
struct Touched {
    uint64_t address = 0;
    uint64_t nbytes = 0;

    bool holds(uint64_t at) const { return at - address < nbytes; }
};

// Installs the handler, or puts it before one that has been installed since. Call it before the first guarded call, and
// now and then: a handler before ours takes faults that are none.
void install_fault_handler();

namespace guard {

// Small copies run in functions whose addresses tell the handler what they do, so that they cost nothing more.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr size_t kSmallCopy = 128;
[[nodiscard]] Gone copy_small(void* dst, const void* src, size_t nbytes);
#else
inline constexpr size_t kSmallCopy = 0;
[[nodiscard]] inline Gone copy_small(void* /*dst*/, const void* /*src*/, size_t /*nbytes*/) {
    return Gone::nothing; // of no bytes
}
#endif

[[nodiscard]] Gone copy_large(void* dst, const void* src, size_t nbytes);
[[nodiscard]] Gone run(const Touched& first, const Touched& second, void (*call)(void*), void* of);

} // namespace guard

// Copies like memmove. The destination is the first memory, the source the second. After a fault a part has been
// copied.
[[nodiscard]] inline Gone copy_guarded(void* dst, const void* src, size_t nbytes) {
    return nbytes <= guard::kSmallCopy ? guard::copy_small(dst, src, nbytes) : guard::copy_large(dst, src, nbytes);
}

// Runs call(), which touches the two memories and its own stack. After a fault it has stopped in the middle: it must
// hold no lock and no object with a destructor.
template <class F> [[nodiscard]] Gone guarded(const Touched& first, const Touched& second, F&& call) {
    return guard::run(
        first, second, [](void* of) { (*static_cast<std::remove_reference_t<F>*>(of))(); },
        const_cast<void*>(static_cast<const void*>(std::addressof(call))));
}

// Faults, in a guarded call, unless the byte can be written. It is not changed.
void touch_for_writing(uint64_t address);
// Returns whether the mapping lets the byte be written, without changing it: also where there is no page for it,
// because its file is full or shorter.
[[nodiscard]] bool may_write(uint64_t address);

} // namespace zerohop
