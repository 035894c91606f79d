#include "memory/page_list.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace zerohop {

std::shared_ptr<const PageList> in_remote_order(std::shared_ptr<const PageList> pages) {
    const std::vector<uint64_t>& remote = pages->remote;
    if (remote.size() < 2 || std::is_sorted(remote.begin(), remote.end())) {
        return pages;
    }
    const auto [least, most] = std::minmax_element(remote.begin(), remote.end());
    const uint64_t first = *least;
    const uint64_t span = *most - first; // one less than the places: it may be as long as numbers go
    if (span >= 2 * remote.size()) {
        return pages;
    }
    // Which entry of the list each place gets; the largest number where it gets none.
    const size_t none = remote.size();
    std::vector<size_t> entries(span + 1, none);
    for (size_t i = 0; i < remote.size(); ++i) {
        size_t& entry = entries[remote[i] - first];
        if (entry != none) {
            return pages;
        }
        entry = i;
    }
    auto ordered = std::make_shared<PageList>();
    ordered->page_bytes = pages->page_bytes;
    ordered->local.reserve(remote.size());
    ordered->remote.reserve(remote.size());
    for (size_t place = 0; place < entries.size(); ++place) {
        if (entries[place] != none) {
            ordered->local.push_back(pages->local[entries[place]]);
            ordered->remote.push_back(first + place);
        }
    }
    return ordered;
}

} // namespace zerohop
