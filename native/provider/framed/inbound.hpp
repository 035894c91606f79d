// The state of the receiving half of a framed lane: the frame that is coming in, and the transfers that wait for
// devices.
#pragma once

#include "memory/share.hpp"
#include "operation/operation.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/pieces.hpp"
#include "provider/framed/sink.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace zerohop::framed {

struct Inbound {
    FrameHeader header;
    size_t head_got = 0; // bytes of header and table
    bool head_complete = false;
    std::vector<uint64_t> table; // of the current frame
    bool in_payload = false;
    uint64_t payload_left = 0;
    Sink* sink = nullptr;           // null: the payload is thrown away
    std::unique_ptr<Sink> own_sink; // a sink for this frame alone
    Outcome verdict;                // on this frame
    std::shared_ptr<Share> share;   // the share that this frame writes to
    OpRef op;                       // the operation that this frame belongs to
    bool streaming = false;         // a large write: spare the cache
    std::vector<std::byte> eager;   // payload of a message that nobody waits for yet
    std::vector<std::byte> scrap;   // where unwanted payload goes

    // Makes it ready for the next frame; the buffers keep their memory.
    void reset() {
        head_got = 0;
        head_complete = false;
        in_payload = false;
        payload_left = 0;
        sink = nullptr;
        own_sink.reset();
        verdict = {};
        share.reset();
        op.reset();
        streaming = false;
        eager.clear();
    }
};

// A transfer towards memory of ours whose end must wait: for device copies, or for more frames of a message.
struct Arrival {
    uint32_t ticket = 0;
    std::unique_ptr<Sink> sink;
    std::shared_ptr<Share> share;
    bool counted = false; // in the share's device_copies
    Outcome outcome;
    FrameHeader last{};
    // Messages.
    OpRef recv;
    uint64_t value = 0; // of the recv
    Extents extents;
    uint64_t nbytes = 0;
    Pieces pieces;
    std::vector<std::byte> eager; // bytes that came before the recv, for device memory
    // Such bytes have a staging buffer: the copy is short. A deadline or cancel() does not end the recv meanwhile,
    // because the sender hears of nothing any more, and the message would be lost. Without a buffer, which a peer that
    // stands still may keep, they do end it, and the message with it.
    bool claimed = false;
};

} // namespace zerohop::framed
