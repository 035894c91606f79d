#include "device/work_requests.hpp"

namespace zerohop::device::mlx5 {

namespace {

constexpr unsigned kTransferSegments = 3;
constexpr unsigned kAtomicSegments = 4;
constexpr unsigned kFlagsMask = 0x00ffffff; // of the word that has the flags in its last byte
constexpr uint64_t kAtomicBytes = 8;

uint64_t address_at(const Block& block, unsigned word) {
    return static_cast<uint64_t>(big(block.words[word])) << 32 | big(block.words[word + 1]);
}

Place place_at(const Block& block, unsigned word) { // of a data segment
    return {address_at(block, word + 2), big(block.words[word + 1])};
}

// Decodes the segments behind the remote address. Returns false if the request is not carried out here. `segments`: as
// many as the request has.
bool take_body(Request& found, const Block& block, unsigned segments) {
    if (found.opcode == Opcode::compare_swap || found.opcode == Opcode::fetch_add) {
        found.operand = address_at(block, detail::kData);
        found.compare = address_at(block, detail::kData + 2);
        found.local = place_at(block, detail::kAtomicData);
        found.nbytes = big(block.words[detail::kAtomicData]);
        return segments == kAtomicSegments && found.nbytes == kAtomicBytes;
    }
    const unsigned length = big(block.words[detail::kData]);
    if (found.opcode == Opcode::write && (length & kInlineMark) != 0) {
        found.nbytes = length & ~kInlineMark;
        if (found.nbytes == 0 || found.nbytes > kInlineBytes ||
            segments != 2 + (4 + found.nbytes + kSegmentBytes - 1) / kSegmentBytes) {
            return false;
        }
        found.payload.assign(reinterpret_cast<const char*>(&block.words[detail::kData + 1]), found.nbytes);
        return true;
    }
    found.nbytes = length;
    found.local = place_at(block, detail::kData);
    return (found.opcode == Opcode::write || found.opcode == Opcode::read) && segments == kTransferSegments &&
           found.nbytes != 0 && found.nbytes <= kMostBytes; // 0 stands for 2 GiB
}

} // namespace

std::optional<Request> take_apart(const Block& block, uint64_t index, uint32_t queue_pair) {
    const uint32_t first = big(block.words[detail::kControl]);
    const uint32_t second = big(block.words[detail::kControl + 1]);
    const uint32_t flags = block.words[detail::kControl + 2];
    Request found;
    found.opcode = static_cast<Opcode>(first & 0xff);
    found.index = index;
    found.fenced = flags >> 24 == static_cast<uint32_t>(Completion::always_fenced);
    found.remote = {address_at(block, detail::kRemote), big(block.words[detail::kRemote + 2])};
    const bool ours =
        (first >> 8 & kIndexMask) == (index & kIndexMask) && first >> 24 == 0 && second >> 8 == queue_pair;
    const bool signalled = found.fenced || flags >> 24 == static_cast<uint32_t>(Completion::always);
    if (!ours || !signalled || (flags & kFlagsMask) != 0 || block.words[detail::kRemote + 3] != 0 ||
        !take_body(found, block, second & 0xff)) {
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
