#include "device/work_requests.hpp"

namespace zerohop::device::mlx5 {

namespace {

constexpr unsigned kTransferSegments = 3;
constexpr unsigned kFlagsMask = 0x00ffffff; // of the word that has the flags in its last byte

uint64_t address_at(const Block& block, unsigned word) {
    return static_cast<uint64_t>(big(block.words[word])) << 32 | big(block.words[word + 1]);
}

} // namespace

std::optional<Request> take_apart(const Block& block, uint64_t index, uint32_t queue_pair) {
    const uint32_t first = big(block.words[detail::kControl]);
    const uint32_t second = big(block.words[detail::kControl + 1]);
    const uint32_t flags = block.words[detail::kControl + 2];
    Request found;
    found.opcode = static_cast<Opcode>(first & 0xff);
    found.index = index;
    const bool transfers = found.opcode == Opcode::write || found.opcode == Opcode::read;
    const bool ours = (first >> 8 & kIndexMask) == (index & kIndexMask) && first >> 24 == 0 &&
                      second == (queue_pair << 8 | kTransferSegments);
    const bool signalled = flags == static_cast<uint32_t>(Completion::always) << 24;
    if (!transfers || !ours || !signalled || (flags & kFlagsMask) != 0 || block.words[detail::kRemote + 3] != 0) {
        return std::nullopt;
    }
    found.remote = {address_at(block, detail::kRemote), big(block.words[detail::kRemote + 2])};
    found.nbytes = big(block.words[detail::kData]);
    found.local = {address_at(block, detail::kData + 2), big(block.words[detail::kData + 1])};
    if (found.nbytes == 0 || found.nbytes > kMostBytes) { // 0 stands for 2 GiB
        return std::nullopt;
    }
    return found;
}

std::optional<uint64_t> tail_of(uint64_t doorbell, uint64_t known, uint64_t slots, uint32_t queue_pair) {
    const uint32_t first = big(static_cast<uint32_t>(doorbell));
    const uint32_t second = big(static_cast<uint32_t>(doorbell >> 32));
    const uint64_t ahead = ((first >> 8) + 1 - known) & kIndexMask;
    if (second >> 8 != queue_pair || ahead > slots) {
        return std::nullopt;
    }
    return known + ahead;
}

} // namespace zerohop::device::mlx5
