// What arrives at this end of a verbs lane without having been asked for.
#include "provider/verbs/endpoint.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <mutex>

namespace zerohop::verbs {

bool VerbsEndpoint::on_received(const ibv_wc& completion, const Segment& segment) {
    if (!is_open()) {
        return false;
    }
    if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) { // the data of the whole write is in place before it
        deliver(ntohl(completion.imm_data), completion.byte_len);
        return false;
    }
    SegmentHeader header;
    if (segment.nbytes < sizeof header) {
        fail({Status::protocol, Reason::malformed});
        return false;
    }
    std::memcpy(&header, segment.data, sizeof header);
    switch (header.kind) {
    case SegmentKind::stream:
    case SegmentKind::taken:
        if (!segments_->note_taken(header.taken)) {
            fail({Status::protocol, Reason::malformed});
            return false;
        }
        if (header.kind == SegmentKind::taken) {
            return false;
        }
        if (!segments_->arrived(segment)) {
            fail({Status::protocol, Reason::window_full});
            return false;
        }
        return true;
    case SegmentKind::notify:
    case SegmentKind::flush:
    case SegmentKind::flushed:
        if (!on_mark(header.kind, segment.data + sizeof header,
                     segment.nbytes - static_cast<uint32_t>(sizeof header))) {
            fail({Status::protocol, Reason::malformed});
        }
        return false;
    }
    fail({Status::protocol, Reason::malformed});
    return false;
}

// Returns false for what no peer of ours sends.
bool VerbsEndpoint::on_mark(SegmentKind kind, const std::byte* body, uint32_t nbytes) {
    Mark mark;
    const size_t message_bytes = nbytes - sizeof mark; // of more than there are, if the mark is too short
    if (nbytes < sizeof mark || message_bytes > (kind == SegmentKind::notify ? kMaxMessage : 0)) {
        return false;
    }
    std::memcpy(&mark, body, sizeof mark);
    if (kind == SegmentKind::flushed) {
        OpRef op;
        {
            const std::lock_guard lock(lane());
            if (flushes_.empty() || flushes_.front().ticket != mark.ticket || !flushes_.front().begun) {
                return false;
            }
            op = std::move(flushes_.front().op);
            flushes_.pop_front();
            note_work();
        }
        op->finish({});
        return true;
    }
    if (mark.parts == 0 || mark.parts > kMaxQueues) {
        return false;
    }
    const uint64_t key = static_cast<uint64_t>(kind) << 32 | mark.ticket;
    const uint32_t seen = ++parts_[key];
    if (seen < mark.parts) {
        return parts_.size() <= framed::kWindow;
    }
    parts_.erase(key);
    if (kind == SegmentKind::notify) {
        Message message;
        if (message_bytes != 0) {
            message =
                std::make_shared<const std::string>(reinterpret_cast<const char*>(body) + sizeof mark, message_bytes);
        }
        deliver(notify_of(mark.queue, mark.value), mark.nbytes, std::move(message));
        return true;
    }
    const std::lock_guard lock(lane());
    if (owed_.size() >= framed::kWindow) {
        return false;
    }
    owed_.push_back(mark);
    work_due_.store(true, std::memory_order_release);
    return true;
}

} // namespace zerohop::verbs
