// The pages of one operation, on both sides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace zerohop {

struct PageList {
    std::vector<uint64_t> local;
    std::vector<uint64_t> remote; // as many
    uint64_t page_bytes = 0;
};

// The same pairs of pages in the order of the remote ones, where these lie so closely that most have neighbours: a NIC
// then moves several of them with one request. The list itself where nothing is gained, or a remote page is in it
// twice. Takes linear time.
[[nodiscard]] std::shared_ptr<const PageList> in_remote_order(std::shared_ptr<const PageList> pages);

} // namespace zerohop
