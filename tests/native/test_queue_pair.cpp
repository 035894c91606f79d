// Tests the connection attributes given to a device, on Ethernet and on InfiniBand.
#ifdef ZEROHOP_VERBS

#include "base/status.hpp"
#include "fake_ibverbs/control.hpp"
#include "provider/verbs/queue_pair.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

namespace test_queue_pair {

using namespace zerohop;
using namespace zerohop::verbs;

namespace {

// A queue pair on a device of its own, with one completion queue for both directions.
struct One {
    One(const char* name, const Options& options) : device(Device::open(name, 1)) {
        const shim::IbVerbs& api = device->api();
        queue = api.create_cq(device->context(), 64, nullptr, nullptr, 0);
        REQUIRE(queue != nullptr);
        pair = std::make_unique<QueuePair>(
            device, QueuePair::Queues{.send = queue, .receive = queue, .receive_depth = 16}, options);
    }
    ~One() {
        pair.reset();
        device->api().destroy_cq(queue);
    }
    One(const One&) = delete;
    One& operator=(const One&) = delete;

    [[nodiscard]] fake::Modified told(ibv_qp_state state) const {
        const auto modified = fake::modified(pair->number(), state);
        REQUIRE(modified);
        return *modified;
    }
    [[nodiscard]] ibv_ah_attr path() const { return told(IBV_QPS_RTR).attributes.ah_attr; }

    std::shared_ptr<Device> device;
    ibv_cq* queue = nullptr;
    std::unique_ptr<QueuePair> pair;
};

Options global(int gid_index) {
    Options options;
    options.gid_index = gid_index;
    return options;
}

void connect(One& a, One& b) {
    a.pair->connect(b.pair->address());
    b.pair->connect(a.pair->address());
}

bool goes_to(const ibv_ah_attr& path, const One& other, int index) {
    const Gid gid = other.device->gid(index);
    return path.is_global == 1 && std::equal(gid.begin(), gid.end(), path.grh.dgid.raw);
}

std::string refusal(One& from, const One& to) {
    try {
        from.pair->connect(to.pair->address());
    } catch (const NativeError& error) {
        return error.what();
    }
    return "";
}

} // namespace

TEST_CASE("queue pair: a RoCE path has both GIDs and what was asked for") {
    Options options = global(fake::kRoceGid);
    options.hop_limit = 17;
    options.traffic_class = 106;
    options.service_level = 3;
    options.pkey_index = 1;
    One a(fake::kRoce0, options);
    One b(fake::kRoce1, global(1));
    connect(a, b);

    const ibv_ah_attr path = a.path();
    CHECK(goes_to(path, b, 1));
    CHECK(path.grh.sgid_index == fake::kRoceGid);
    CHECK(path.grh.hop_limit == 17);
    CHECK(path.grh.traffic_class == 106);
    CHECK(path.sl == 3);
    CHECK(path.port_num == 1);
    CHECK(path.dlid == 0);
    CHECK(goes_to(b.path(), a, fake::kRoceGid));
    CHECK(b.path().grh.sgid_index == 1);
    CHECK(b.path().grh.hop_limit == Options{}.hop_limit);
    CHECK(b.path().grh.traffic_class == 0);

    const fake::Modified first = a.told(IBV_QPS_INIT);
    CHECK(first.attributes.pkey_index == 1);
    CHECK(first.attributes.port_num == 1);
    CHECK(first.attributes.qp_access_flags ==
          (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
    CHECK(b.told(IBV_QPS_INIT).attributes.pkey_index == 0);
}

TEST_CASE("queue pair: the MTU is the smaller one of both ports, or of what was asked for") {
    for (const auto& [wanted, expected] : {std::pair{0, IBV_MTU_1024}, {512, IBV_MTU_512}, {4096, IBV_MTU_1024}}) {
        CAPTURE(wanted);
        Options options = global(fake::kRoceGid);
        One a(fake::kRoce0, options); // active 1024
        options.mtu = wanted;
        One b(fake::kRoce1, options); // active 4096
        connect(a, b);
        CHECK(a.told(IBV_QPS_RTR).attributes.path_mtu == expected);
        CHECK(b.told(IBV_QPS_RTR).attributes.path_mtu == expected);
    }
}

TEST_CASE("queue pair: each side reads as much at once as the other one takes") {
    Options options = global(fake::kRoceGid);
    options.read_credit = 255;
    One a(fake::kRoce0, options); // takes 16
    options.read_credit = 3;
    One b(fake::kRoce1, options); // would take 8
    connect(a, b);
    CHECK(a.told(IBV_QPS_RTR).attributes.max_dest_rd_atomic == 16);
    CHECK(a.told(IBV_QPS_RTS).attributes.max_rd_atomic == 3);
    CHECK(b.told(IBV_QPS_RTR).attributes.max_dest_rd_atomic == 3);
    CHECK(b.told(IBV_QPS_RTS).attributes.max_rd_atomic == 3);
    One c(fake::kRoce0, global(fake::kRoceGid));
    One d(fake::kRoce1, global(fake::kRoceGid));
    connect(c, d);
    CHECK(c.told(IBV_QPS_RTS).attributes.max_rd_atomic == 8);
    CHECK(d.told(IBV_QPS_RTR).attributes.max_dest_rd_atomic == 8);
}

TEST_CASE("queue pair: timers, retries and sequence numbers") {
    Options options = global(fake::kRoceGid);
    options.timeout = 18;
    options.retry_count = 5;
    options.rnr_retry = 4;
    options.min_rnr_timer = 9;
    One a(fake::kRoce0, options);
    One b(fake::kRoce1, global(fake::kRoceGid));
    connect(a, b);
    const ibv_qp_attr sends = a.told(IBV_QPS_RTS).attributes;
    CHECK(sends.timeout == 18);
    CHECK(sends.retry_cnt == 5);
    CHECK(sends.rnr_retry == 4);
    CHECK(sends.sq_psn == a.pair->address().psn);
    const ibv_qp_attr receives = a.told(IBV_QPS_RTR).attributes;
    CHECK(receives.min_rnr_timer == 9);
    CHECK(receives.rq_psn == b.pair->address().psn);
    CHECK(receives.dest_qp_num == b.pair->number());
    CHECK(b.told(IBV_QPS_RTS).attributes.timeout == Options{}.timeout);
}

TEST_CASE("queue pair: within an InfiniBand subnet a LID is enough, with a GID and without") {
    for (const int gid_index : {-1, 0}) {
        CAPTURE(gid_index);
        Options options = global(gid_index);
        options.service_level = 2;
        One a(fake::kIb0, options);
        One b(fake::kIb1, options);
        connect(a, b);
        CHECK(a.path().is_global == 0);
        CHECK(a.path().dlid == b.device->port_attributes().lid);
        CHECK(b.path().dlid == a.device->port_attributes().lid);
        CHECK(a.path().sl == 2);
    }
}

TEST_CASE("queue pair: one that is made after the subnet manager has moved a port is told of the new LID") {
    One a(fake::kIb0, global(-1));
    One b(fake::kIb1, global(-1));
    const uint16_t before = b.device->port_attributes().lid;
    fake::set_lid(fake::kIb1, 77);
    const QueuePair after(b.device, {.send = b.queue, .receive = b.queue, .receive_depth = 16}, global(-1));
    CHECK(b.pair->address().lid == before);
    CHECK(after.address().lid == 77);
    fake::set_lid(fake::kIb1, before);
}

TEST_CASE("queue pair: another InfiniBand subnet is reached by its GID") {
    One a(fake::kIb0, global(0));
    One b(fake::kIb2, global(0));
    connect(a, b);
    CHECK(goes_to(a.path(), b, 0));
    CHECK(goes_to(b.path(), a, 0));
    CHECK(a.path().grh.sgid_index == 0);
    CHECK(a.path().grh.hop_limit == Options{}.hop_limit);
}

TEST_CASE("queue pair: what cannot be connected is refused, in words") {
    One roce(fake::kRoce0, global(fake::kRoceGid));
    One infiniband(fake::kIb0, global(0));
    CHECK(refusal(roce, infiniband).find("Ethernet") != std::string::npos);
    CHECK(refusal(infiniband, roce).find("InfiniBand") != std::string::npos);
    One nameless(fake::kRoce1, global(-1));
    CHECK(refusal(roce, nameless).find("gid_index") != std::string::npos);
    CHECK(refusal(nameless, roce).find("gid_index") != std::string::npos);
    CHECK_THROWS_AS((void)QueuePair(roce.device, {.send = roce.queue, .receive = roce.queue}, global(9)).address(),
                    const NativeError&);

    QueuePairAddress impossible = roce.pair->address();
    impossible.mtu = 9;
    CHECK_THROWS_AS(roce.pair->connect(impossible), const NativeError&);
}

TEST_CASE("queue pair: takes as much inline as its device does") {
    Options options = global(fake::kRoceGid);
    options.max_inline = 1000;
    const One a(fake::kRoce0, options);
    CHECK(a.pair->max_inline() == 250);
    CHECK(fake::created(a.pair->number())->cap.max_inline_data == 250);
    fake::fail_call(fake::Call::create_qp, 1, EMFILE); // a smaller inline size does not help here
    CHECK_THROWS_AS(QueuePair(a.device, {.send = a.queue, .receive = a.queue}, options), const NativeError&);
    fake::reset();
}

TEST_CASE("queue pair: one that cannot be initialised leaves nothing behind") {
    const One a(fake::kRoce0, global(fake::kRoceGid));
    const fake::Census before = fake::census();
    fake::fail_call(fake::Call::modify_qp, 1, EINVAL);
    CHECK_THROWS_AS(QueuePair(a.device, {.send = a.queue, .receive = a.queue}, Options{}), const NativeError&);
    CHECK(fake::census() == before);
    fake::reset();
}

TEST_CASE("a device whose domain cannot be made is closed again") {
    const fake::Census before = fake::census();
    fake::fail_call(fake::Call::alloc_pd, 1, ENOMEM);
    CHECK_THROWS_AS((void)Device::open(fake::kRoce0, 1), const NativeError&);
    CHECK_THROWS_AS((void)Device::open(fake::kRoce0, 2), const NativeError&);
    CHECK_THROWS_AS((void)Device::open("none", 1), const NativeError&);
    CHECK(fake::census() == before);
    fake::reset();
}

} // namespace test_queue_pair

#endif
