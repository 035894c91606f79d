// Copies of the bytes that users move.
#pragma once

#include <cstddef>
#include <cstring>

namespace zerohop {

// As memmove. Not shown to ThreadSanitizer: two operations may be asked for the same bytes at once, and what comes out
// is then undefined, but it is no race of ours. (It would also spend nearly all its time here.)
inline void copy_payload(void* dst, const void* src, size_t nbytes) {
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(nbytes) : : "memory");
#else
    std::memmove(dst, src, nbytes);
#endif
}

} // namespace zerohop
