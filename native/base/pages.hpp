// Makes memory of whole pages: files without a name, and mappings, which last as long as somebody holds them.
#pragma once

#include "base/descriptor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace zerohop {

[[nodiscard]] size_t page_bytes();
[[nodiscard]] size_t round_to_pages(size_t nbytes);
// Throws NativeError with the reason that errno gives, "WHAT: …".
[[noreturn]] void raise_errno(const std::string& what, int error);
// Creates a memfd of `nbytes`, which the caller has rounded up to pages. Throws as raise_errno() does.
[[nodiscard]] Descriptor make_memfd(const char* name, size_t nbytes, unsigned seals);
// Returns the size of a file in memory that nobody can shrink any more, and 0 for any other: in a peer's file that can
// shrink, our next access could be a bus error.
[[nodiscard]] uint64_t sealed_bytes(int fd);
// Maps a part of a file; `offset` is one of a page. Throws as raise_errno() does, "cannot map WHAT: …".
[[nodiscard]] std::shared_ptr<void> map_shared(int fd, size_t nbytes, int protection, const std::string& what,
                                               uint64_t offset = 0);
// Maps fresh memory of this process alone; null, with errno, if the kernel gives none.
[[nodiscard]] std::shared_ptr<void> map_private(size_t nbytes, int protection);
// Has the kernel move what a range has into huge pages, where it can, whatever else uses the range meanwhile. Changes
// no byte. Takes up to four times as long as the first touch of all of it.
void gather_pages(std::byte* data, size_t nbytes);
// Has the kernel find memory for all pages of a range, where it can. Changes no byte.
void populate_pages(std::byte* data, size_t nbytes);

} // namespace zerohop
