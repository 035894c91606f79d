// Builds the work requests of mlx5 NICs, as kernels write them into a send queue: one block of 64 bytes each.
//
// All fields are big-endian. Not verified on hardware: the tests compare each byte with what rdma-core's own helpers
// make.
#pragma once

#include "zerohop/device/layout.hpp"

namespace zerohop::device::mlx5 {

enum class Opcode : unsigned {
    nop = 0x00,
    write = 0x08,
    write_immediate = 0x09,
    send = 0x0a,
    send_immediate = 0x0b,
    read = 0x10,
    compare_swap = 0x11,
    fetch_add = 0x12,
};

// When the NIC writes a completion, and when it begins a request.
enum class Completion : unsigned {
    on_error = 0,
    always = 0x08,
    always_fenced = 0x88, // the NIC begins the request when the reads and atomics before it have ended
};

constexpr Word kMostBytes = Word(1) << 30; // of one request: what queue pairs are made for
constexpr unsigned kInlineBytes = 28;      // that a block has room for behind an address
constexpr unsigned kInlineMark = 1U << 31; // of a length: the bytes themselves follow
constexpr unsigned kIndexMask = 0xffff;    // requests count blocks with 16 bits
constexpr unsigned kSegmentBytes = 16;     // a request says its length in these
constexpr unsigned kWordsOfBlock = 16;

struct alignas(64) Block {
    unsigned words[kWordsOfBlock];
};
static_assert(sizeof(Block) == 64);

// Names memory to a NIC.
struct Place {
    Word address;
    unsigned key;
};

ZEROHOP_DEVICE_FN constexpr unsigned big(unsigned value) { // bytes in the order of the network
    return value >> 24 | (value >> 8 & 0xff00U) | (value << 8 & 0xff0000U) | value << 24;
}

namespace detail {

constexpr unsigned kControl = 0; // first words of the segments
constexpr unsigned kRemote = 4;
constexpr unsigned kData = 8;
constexpr unsigned kAtomicData = 12;

ZEROHOP_DEVICE_FN constexpr void put(Block& block, unsigned at, Word value) {
    block.words[at] = big(static_cast<unsigned>(value >> 32));
    block.words[at + 1] = big(static_cast<unsigned>(value));
}

ZEROHOP_DEVICE_FN constexpr void control(Block& block, Opcode opcode, Word index, unsigned queue_pair,
                                         unsigned segments, Completion completion, unsigned immediate) {
    block.words[kControl] = big((static_cast<unsigned>(index) & kIndexMask) << 8 | static_cast<unsigned>(opcode));
    block.words[kControl + 1] = big(queue_pair << 8 | segments);
    block.words[kControl + 2] = static_cast<unsigned>(completion) << 24; // the last byte of the word
    block.words[kControl + 3] = big(immediate);
}

ZEROHOP_DEVICE_FN constexpr void remote(Block& block, Place place) {
    put(block, kRemote, place.address);
    block.words[kRemote + 2] = big(place.key);
    block.words[kRemote + 3] = 0;
}

ZEROHOP_DEVICE_FN constexpr void data(Block& block, unsigned at, Place place, unsigned nbytes) {
    block.words[at] = big(nbytes);
    block.words[at + 1] = big(place.key);
    put(block, at + 2, place.address);
}

} // namespace detail

// A write or a read; the block's unused words are left as they are. `nbytes`: kMostBytes at most.
ZEROHOP_DEVICE_FN constexpr void build_transfer(Block& block, Opcode opcode, Word index, unsigned queue_pair,
                                                Place remote, Place local, Word nbytes, Completion completion,
                                                unsigned immediate = 0) {
    constexpr unsigned kSegments = 3;
    detail::control(block, opcode, index, queue_pair, kSegments, completion, immediate);
    detail::remote(block, remote);
    detail::data(block, detail::kData, local, static_cast<unsigned>(nbytes));
}

// A write of bytes that the request has in itself. `nbytes`: kInlineBytes at most.
ZEROHOP_DEVICE_FN constexpr void build_inline_write(Block& block, Word index, unsigned queue_pair, Place remote,
                                                    const unsigned char* bytes, unsigned nbytes,
                                                    Completion completion) {
    constexpr unsigned kBefore = 2; // segments
    const unsigned segments = kBefore + (4 + nbytes + kSegmentBytes - 1) / kSegmentBytes;
    detail::control(block, Opcode::write, index, queue_pair, segments, completion, 0);
    detail::remote(block, remote);
    block.words[detail::kData] = big(nbytes | kInlineMark);
    for (unsigned i = 0; i < nbytes; i += 4) {
        unsigned word = 0; // memory is little-endian, on the host and on devices
        for (unsigned byte = 0; byte < 4 && i + byte < nbytes; ++byte) {
            word |= static_cast<unsigned>(bytes[i + byte]) << (8 * byte);
        }
        block.words[detail::kData + 1 + i / 4] = word;
    }
}

// An atomic of 8 bytes. `operand`: the addend, or the new value. What it finds is written to `local`.
ZEROHOP_DEVICE_FN constexpr void build_atomic(Block& block, Opcode opcode, Word index, unsigned queue_pair,
                                              Place remote, Place local, Word operand, Word compare,
                                              Completion completion) {
    constexpr unsigned kSegments = 4;
    detail::control(block, opcode, index, queue_pair, kSegments, completion, 0);
    detail::remote(block, remote);
    detail::put(block, detail::kData, operand);
    detail::put(block, detail::kData + 2, compare);
    detail::data(block, detail::kAtomicData, local, 8);
}

// A send.
ZEROHOP_DEVICE_FN constexpr void build_send(Block& block, Opcode opcode, Word index, unsigned queue_pair, Place local,
                                            Word nbytes, Completion completion, unsigned immediate = 0) {
    constexpr unsigned kSegments = 2;
    detail::control(block, opcode, index, queue_pair, kSegments, completion, immediate);
    detail::data(block, detail::kRemote, local, static_cast<unsigned>(nbytes));
}

// The word of a doorbell record, and the value of the doorbell behind a request.
ZEROHOP_DEVICE_FN constexpr unsigned record_of(Word next_index) {
    return big(static_cast<unsigned>(next_index) & kIndexMask);
}
ZEROHOP_DEVICE_FN constexpr Word doorbell_of(const Block& last) {
    return static_cast<Word>(last.words[1]) << 32 | last.words[0];
}
// Behind a request of which only the index is known: a NIC needs no more of a doorbell than index and queue pair.
ZEROHOP_DEVICE_FN constexpr Word doorbell_of(Word index, unsigned queue_pair) {
    Block block{};
    constexpr unsigned kSegments = 3;
    detail::control(block, Opcode::write, index, queue_pair, kSegments, Completion::always, 0);
    return doorbell_of(block);
}

} // namespace zerohop::device::mlx5
