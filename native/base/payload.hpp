// Copies the bytes that users move.
#pragma once

#include <cstddef>
#include <cstring>

namespace zerohop {

// Copies like memmove, but hidden from ThreadSanitizer: users may ask two operations for the same bytes at once; the
// result is then undefined, but it is not a race in our code. (ThreadSanitizer would also spend nearly all its time
// here.)
inline void copy_payload(void* dst, const void* src, size_t nbytes) {
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(nbytes) : : "memory");
#else
    std::memmove(dst, src, nbytes);
#endif
}

} // namespace zerohop
