// Tests page lists sorted by remote page.
#include "base/page_list.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace test_page_list {

using namespace zerohop;

namespace {

std::shared_ptr<const PageList> list(PageNumbers remote) {
    auto pages = std::make_shared<PageList>();
    pages->page_bytes = 512;
    pages->local.resize(remote.size());
    std::iota(pages->local.begin(), pages->local.end(), 1000);
    pages->remote = std::move(remote);
    return pages;
}

std::vector<std::pair<uint64_t, uint64_t>> pairs(const PageList& pages) {
    std::vector<std::pair<uint64_t, uint64_t>> found;
    for (size_t i = 0; i < pages.remote.size(); ++i) {
        found.emplace_back(pages.remote[i], pages.local[i]);
    }
    return found;
}

} // namespace

TEST_CASE("page list: the same pairs, in the order of the remote pages") {
    std::mt19937 random(3);
    for (const size_t count : {2, 3, 17, 256}) {
        PageNumbers remote(count + count / 2); // a third of the places is empty
        std::iota(remote.begin(), remote.end(), 7);
        std::shuffle(remote.begin(), remote.end(), random);
        remote.resize(count);
        const auto given = list(remote);
        const auto ordered = in_remote_order(given);
        CHECK(ordered->page_bytes == 512);
        CHECK(ordered->local.size() == count);
        auto expected = pairs(*given);
        std::sort(expected.begin(), expected.end());
        CHECK(pairs(*ordered) == expected);
    }
}

TEST_CASE("page list: left as it is where nothing is gained") {
    const auto stays = [](const std::shared_ptr<const PageList>& pages) { return in_remote_order(pages) == pages; };
    CHECK(stays(list({})));
    CHECK(stays(list({5})));
    CHECK(stays(list({5, 6, 9})));       // in order
    CHECK(stays(list({9, 5})));          // far apart
    CHECK(stays(list({UINT64_MAX, 0}))); // as far apart as possible
    CHECK(stays(list({3, 1, 2, 1, 4}))); // one page appears twice: which entry wins is the caller's affair
    CHECK_FALSE(stays(list({UINT64_MAX, UINT64_MAX - 1}))); // the largest numbers
    CHECK_FALSE(stays(list({5, 9, 7})));
}

} // namespace test_page_list
