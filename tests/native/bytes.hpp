// Makes and compares the bytes that tests expect in memory.
#pragma once

#include "sim_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace zerohop::test {

using accel::test::Bytes;
using accel::test::pattern;

inline void overlay(Bytes& bytes, size_t to, const Bytes& from, size_t at, size_t nbytes) {
    if (nbytes > 0) {
        std::memcpy(&bytes.at(to), &from.at(at), nbytes);
    }
}

// Returns distinct page numbers below `of`, spread over all of them and shuffled.
inline std::vector<uint64_t> shuffled(size_t count, size_t of, unsigned seed) {
    const size_t candidates = std::min(of, 2 * count);
    std::vector<uint64_t> pages(candidates);
    std::iota(pages.begin(), pages.end(), uint64_t{0});
    std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
    pages.resize(count);
    for (uint64_t& page : pages) {
        page *= of / candidates;
    }
    return pages;
}

// Compares as a whole; a failed check tells the first difference, instead of printing megabytes.
inline bool same_bytes(const Bytes& a, const Bytes& b) {
    if (a.size() != b.size()) {
        MESSAGE("sizes " << a.size() << " and " << b.size());
        return false;
    }
    if (a == b) {
        return true;
    }
    const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin());
    MESSAGE("first difference at " << (x - a.begin()) << ": " << int{*x} << " and " << int{*y});
    return false;
}

} // namespace zerohop::test
