// Connects two engines in one process whose simulated devices reach each other's memory, by a p2p lane.
#pragma once

#include "engine_fixture.hpp"
#include "provider/p2p/notify_rings.hpp"
#include "provider/p2p/peer_memory.hpp"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace zerohop::test {

// Imports b's memory for a's devices, so that they reach it directly instead of through the ring.
inline std::shared_ptr<p2p::PeerMemory> import_from(const Pair& pair, const Region& remote, bool writable = true) {
    Accelerators& ours = pair.a.engine->accelerators();
    if (remote.is_host()) {
        return make_pinnable<p2p::PeerMemory>(ours,
                                              std::make_unique<Mapping>(remote.fd(), 0, remote.nbytes(), writable));
    }
    const accel::Exported exported = pair.b.sim->export_memory(remote.address(), remote.nbytes());
    std::vector<Descriptor> descriptors; // closed at the end, because the import has its own
    for (const accel::Exported::Piece& piece : exported.pieces) {
        descriptors.emplace_back(piece.fd);
    }
    return make_pinnable<p2p::PeerMemory>(ours, exported, writable);
}

// Like Pair::reach, but a's devices reach the memory.
inline Reach reach_directly(Pair& pair, size_t nbytes, int local, int remote, uint8_t rights = kReadWrite) {
    Reach reach;
    reach.local = pair.a.alloc(nbytes, local);
    reach.remote = pair.b.alloc(nbytes, remote);
    reach.share = pair.b.engine->shares().add(reach.remote, 0, nbytes, rights, kCapability);
    Route route = pair.route(reach, nbytes, rights);
    const auto memory = import_from(pair, *reach.remote, (rights & kRightWrite) != 0);
    const auto reached = memory->reach(pair.a.engine->accelerators(), *reach.local);
    route.access = std::make_shared<p2p::DeviceAccess>(memory, reached);
    reach.route = pair.a.engine->add_route(std::move(route));
    return reach;
}

// Returns how many bytes devices were given to copy on this lane.
inline uint64_t copied(const Side& side) {
    Statistics sums;
    side.lane->add_statistics(sums);
    return sums.at("bytes_copied_by_devices");
}

// A user's stream that is held until let_go(): work that follows it does not begin.
class HeldStream {
public:
    explicit HeldStream(const Side& side, size_t device = 0) {
        stream_ = accel::user_stream(*side.sim->devices().at(device), number_);
        REQUIRE(stream_ != nullptr);
        (void)stream_->wait32(reinterpret_cast<uint64_t>(&word_), 1);
    }
    ~HeldStream() { let_go(); }
    HeldStream(const HeldStream&) = delete;
    HeldStream& operator=(const HeldStream&) = delete;

    void let_go() { accel::test::store(word_, 1); }
    [[nodiscard]] uint64_t number() const { return number_; }

private:
    uint32_t word_ = 0;
    uint64_t number_ = 0;
    std::unique_ptr<accel::Stream> stream_;
};

inline Request after(const HeldStream& stream, Request request) {
    request.after_stream = stream.number();
    return request;
}

} // namespace zerohop::test
