// Carries out requests at the far end of their queue pair.
#include "state.hpp"

#include <algorithm>
#include <cstring>

namespace zerohop::fake {

namespace {

bool is_atomic(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// A piece of the memory behind a scatter/gather list.
struct Span {
    std::byte* data;
    size_t nbytes;
};
// Finds the memory of all pieces; false if a key, a range or a right is wrong.
bool resolve(const Domain* domain, const std::vector<ibv_sge>& pieces, int access, std::vector<Span>& spans) {
    for (const ibv_sge& piece : pieces) {
        const auto found = world().memory.find(piece.lkey);
        // Devices may take a piece of no bytes for one of 2^31.
        if (piece.length == 0 || found == world().memory.end() || found->second->of != domain ||
            !found->second->has(piece.addr, piece.length) || (found->second->access & access) != access) {
            return false;
        }
        spans.push_back({found->second->at(piece.addr), piece.length});
    }
    return true;
}

size_t total(const std::vector<Span>& spans) {
    size_t nbytes = 0;
    for (const Span& span : spans) {
        nbytes += span.nbytes;
    }
    return nbytes;
}

void gather(const std::vector<Span>& spans, std::byte* to) {
    for (const Span& span : spans) {
        std::memcpy(to, span.data, span.nbytes);
        to += span.nbytes;
    }
}

void scatter(const std::byte* from, size_t nbytes, const std::vector<Span>& spans) {
    for (const Span& span : spans) {
        const size_t n = std::min(nbytes, span.nbytes);
        std::memcpy(span.data, from, n);
        from += n;
        nbytes -= n;
    }
}

bool same(const ibv_gid& a, const ibv_gid& b) {
    return std::memcmp(a.raw, b.raw, sizeof a.raw) == 0;
}

// True if packets of this queue pair reach that port.
bool arrives(const QueuePair& from, const Device& to) {
    const Device& own = *from.of().of;
    const ibv_ah_attr& path = from.now.ah_attr;
    if (own.port.link_layer != to.port.link_layer) {
        return false;
    }
    const bool by_gid = path.is_global != 0 && std::any_of(to.gids.begin(), to.gids.end(), [&](const ibv_gid& gid) {
                            return same(gid, path.grh.dgid);
                        });
    if (own.port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        return by_gid;
    }
    const bool one_subnet = own.gids.front().global.subnet_prefix == to.gids.front().global.subnet_prefix;
    return one_subnet ? path.dlid == to.port.lid : by_gid;
}

// Returns the connected queue pair; null with a status if there is none, and without one if the request must wait.
QueuePair* other_end(const QueuePair& pair, ibv_wc_status& status) {
    status = IBV_WC_RETRY_EXC_ERR;
    const auto found = world().queue_pairs.find(pair.now.dest_qp_num);
    if (found == world().queue_pairs.end()) {
        return nullptr;
    }
    QueuePair& other = *found->second;
    const bool started = other.state == IBV_QPS_RTR || other.state == IBV_QPS_RTS;
    if (other.state == IBV_QPS_ERR || !arrives(pair, *other.of().of) ||
        (started && other.now.dest_qp_num != pair.qp_num)) {
        return nullptr;
    }
    const bool up = pair.of().of->port.state == IBV_PORT_ACTIVE && other.of().of->port.state == IBV_PORT_ACTIVE;
    if (!started || !up || other.of().dead) { // retried until it is there
        status = IBV_WC_SUCCESS;
        return nullptr;
    }
    return &other;
}

// Stops the far end's queue pair for a fault found there.
ibv_wc_status refuse(QueuePair& other, ibv_wc_status status) {
    stop(other);
    raise_for(other, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    return status;
}

struct Target {
    Memory* memory = nullptr;
    std::byte* data = nullptr;
};

// Finds the remote memory of a one-sided request; false if the far end denies access.
bool reach(const QueuePair& other, uint32_t key, uint64_t address, size_t nbytes, int access, Target& target) {
    if (nbytes == 0) {
        return true;
    }
    const auto found = world().memory.find(key);
    if (found == world().memory.end() || found->second->of != other.domain() || !found->second->has(address, nbytes) ||
        (found->second->access & access) != access ||
        (static_cast<int>(other.now.qp_access_flags) & access) != access) {
        return false;
    }
    target = {found->second, found->second->at(address)};
    return true;
}

// Gives the bytes of a message, or the immediate of a write, to the far end's next receive.
ibv_wc_status receive(QueuePair& pair, QueuePair& other, const Send& send, const std::byte* data, size_t nbytes) {
    ReceiveQueue& queue = other.inbound();
    const Receive receive = std::move(queue.posted.front());
    queue.posted.pop_front();
    Completion completion;
    completion.entry.wr_id = receive.id;
    completion.entry.qp_num = other.qp_num;
    completion.entry.src_qp = pair.qp_num;
    completion.entry.byte_len = static_cast<uint32_t>(nbytes);
    completion.entry.opcode = IBV_WC_RECV;
    if (send.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        completion.entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        completion.entry.wc_flags = IBV_WC_WITH_IMM;
        completion.entry.imm_data = send.request.imm_data;
    } else {
        std::vector<Span> spans;
        if (!resolve(other.domain(), receive.pieces, IBV_ACCESS_LOCAL_WRITE, spans) || total(spans) < nbytes) {
            completion.entry.status = IBV_WC_LOC_LEN_ERR;
            complete(other.received(), completion);
            return refuse(other, IBV_WC_REM_INV_REQ_ERR);
        }
        scatter(data, nbytes, spans);
    }
    complete(other.received(), completion);
    return IBV_WC_SUCCESS;
}

ibv_wc_status run_atomic(QueuePair& other, const Send& send, const std::vector<Span>& spans) {
    const auto& atomic = send.request.wr.atomic;
    Target target;
    if (total(spans) != sizeof(uint64_t) || atomic.remote_addr % sizeof(uint64_t) != 0) {
        return refuse(other, IBV_WC_REM_INV_REQ_ERR);
    }
    if (!reach(other, atomic.rkey, atomic.remote_addr, sizeof(uint64_t), IBV_ACCESS_REMOTE_ATOMIC, target)) {
        return refuse(other, IBV_WC_REM_ACCESS_ERR);
    }
    uint64_t before = 0;
    std::memcpy(&before, target.data, sizeof before);
    uint64_t after = before + atomic.compare_add;
    if (send.request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        after = before == atomic.compare_add ? atomic.swap : before;
    }
    std::memcpy(target.data, &after, sizeof after);
    scatter(reinterpret_cast<const std::byte*>(&before), sizeof before, spans);
    return IBV_WC_SUCCESS;
}

ibv_wc_status run_data(QueuePair& pair, QueuePair& other, const Send& send, const std::vector<Span>& spans) {
    const ibv_send_wr& request = send.request;
    const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
    const size_t nbytes = inlined ? send.inlined.size() : total(spans);
    Target target;
    if (request.opcode == IBV_WR_RDMA_READ) {
        if (!reach(other, request.wr.rdma.rkey, request.wr.rdma.remote_addr, nbytes, IBV_ACCESS_REMOTE_READ, target)) {
            return refuse(other, IBV_WC_REM_ACCESS_ERR);
        }
        scatter(target.data, nbytes, spans);
        return IBV_WC_SUCCESS;
    }
    if (request.opcode != IBV_WR_SEND) {
        if (!reach(other, request.wr.rdma.rkey, request.wr.rdma.remote_addr, nbytes, IBV_ACCESS_REMOTE_WRITE, target)) {
            return refuse(other, IBV_WC_REM_ACCESS_ERR);
        }
        if (target.data != nullptr && inlined) {
            std::memcpy(target.data, send.inlined.data(), nbytes);
        } else if (target.data != nullptr) {
            gather(spans, target.data);
        }
        return request.opcode == IBV_WR_RDMA_WRITE ? IBV_WC_SUCCESS : receive(pair, other, send, nullptr, nbytes);
    }
    std::vector<std::byte> message = send.inlined;
    if (!inlined) {
        message.resize(nbytes);
        gather(spans, message.data());
    }
    return receive(pair, other, send, message.data(), nbytes);
}

} // namespace

Turn carry_out(QueuePair& pair, const Send& send, ibv_wc_status& status) {
    const ibv_send_wr& request = send.request;
    if (pair.fails_with) {
        status = *pair.fails_with;
        pair.fails_with.reset();
        return Turn::done;
    }
    std::vector<Span> spans;
    const bool writes_here = request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode);
    if ((request.send_flags & IBV_SEND_INLINE) == 0 &&
        !resolve(pair.domain(), send.pieces, writes_here ? IBV_ACCESS_LOCAL_WRITE : 0, spans)) {
        status = IBV_WC_LOC_PROT_ERR;
        return Turn::done;
    }
    if (total(spans) > kMaxMessage) {
        status = IBV_WC_LOC_LEN_ERR;
        return Turn::done;
    }
    QueuePair* other = other_end(pair, status);
    if (other == nullptr) {
        return status == IBV_WC_SUCCESS ? Turn::wait : Turn::done;
    }
    const bool takes_receive = request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (takes_receive && other->inbound().posted.empty()) {
        status = IBV_WC_RNR_RETRY_EXC_ERR;
        return pair.now.rnr_retry == 7 ? Turn::wait : Turn::done;
    }
    status = is_atomic(request.opcode) ? run_atomic(*other, send, spans) : run_data(pair, *other, send, spans);
    ++pair.carried.requests;
    pair.carried.inlined += (request.send_flags & IBV_SEND_INLINE) != 0 ? 1 : 0;
    return Turn::done;
}

} // namespace zerohop::fake
