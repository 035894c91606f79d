// Tests the parts of the verbs provider that need no device. test_verbs_*.cpp run it on devices in software, and
// tests/lab on those of a kernel.
#ifdef ZEROHOP_VERBS

#include "base/status.hpp"
#include "provider/verbs/completion.hpp"
#include "provider/verbs/options.hpp"
#include "provider/verbs/queue_pair.hpp"
#include "provider/verbs/refusal.hpp"
#include "provider/verbs/transfer.hpp"

#include <doctest/doctest.h>

#include <cerrno>

namespace test_verbs {

using namespace zerohop;
using namespace zerohop::verbs;

TEST_CASE("verbs options are read by name") {
    const Options options =
        Options::from({{"queue_pairs", 4}, {"gid_index", 3}, {"traffic_class", 106}, {"stripe_bytes", 65536}});
    CHECK(options.queue_pairs == 4);
    CHECK(options.gid_index == 3);
    CHECK(options.traffic_class == 106);
    CHECK(options.stripe_bytes == 65536);
    CHECK(options.retry_count == Options{}.retry_count);
}

TEST_CASE("a verbs option that makes no sense is named") {
    for (const OptionMap& map : {OptionMap{{"queue_pairs", 0}}, OptionMap{{"queue_pairs", 17}},
                                 OptionMap{{"gid_index", -2}}, OptionMap{{"rail_bytes", 1}}, OptionMap{{"typo", 1}}}) {
        try {
            (void)Options::from(map);
            FAIL("taken");
        } catch (const NativeError& error) {
            CHECK(std::string(error.what()).find(map.begin()->first) != std::string::npos);
        }
    }
}

TEST_CASE("MTUs have InfiniBand's codes") {
    CHECK(mtu_code(256) == IBV_MTU_256);
    CHECK(mtu_code(4096) == IBV_MTU_4096);
    CHECK(mtu_code(1500) == 0);
    CHECK(mtu_code(0) == 0);
}

TEST_CASE("a completion's status tells whose fault it was") {
    CHECK(outcome_of(IBV_WC_SUCCESS).ok());
    CHECK(outcome_of(IBV_WC_REM_ACCESS_ERR) == Outcome{Status::access_denied, Reason::remote_access});
    CHECK(outcome_of(IBV_WC_RETRY_EXC_ERR) == Outcome{Status::peer_lost, Reason::no_answer});
    CHECK(outcome_of(IBV_WC_RNR_RETRY_EXC_ERR) == Outcome{Status::peer_lost, Reason::not_ready});
    CHECK(outcome_of(IBV_WC_WR_FLUSH_ERR) == Outcome{Status::peer_lost, Reason::lane_reset});
    CHECK(outcome_of(IBV_WC_LOC_PROT_ERR) == Outcome{Status::device_error, Reason::local_access});
    for (int status = IBV_WC_SUCCESS + 1; status <= IBV_WC_GENERAL_ERR; ++status) {
        CHECK_FALSE(outcome_of(static_cast<ibv_wc_status>(status)).ok());
    }
}

TEST_CASE("an errno tells whether it is worth another try") {
    CHECK(refusal_of(ENOMEM, true) == Outcome{Status::no_memory, Reason::memlock});
    CHECK(refusal_of(ENOMEM, false) == Outcome{Status::no_memory, Reason::nic_full});
    CHECK(refusal_of(EMFILE) == Outcome{Status::no_memory, Reason::out_of_descriptors});
    CHECK(refusal_of(EIO) == Outcome{Status::device_error, Reason::none});
    for (const int error : {EFAULT, EOPNOTSUPP, EINVAL, EPERM}) {
        CHECK(refusal_of(error) == Outcome{Status::unsupported, Reason::none});
    }
}

TEST_CASE("slots keep their entries where they are") {
    Slots<int> slots;
    const uint32_t one = slots.add();
    int* const address = &slots[one];
    *address = 1;
    for (int i = 0; i < 1000; ++i) {
        slots[slots.add()] = 7;
    }
    CHECK(&slots[one] == address);
    CHECK(slots[one] == 1);
    CHECK(slots.in_use() == 1001);
    slots.remove(one);
    CHECK(slots.in_use() == 1000);
    CHECK(slots.add() == one); // the slot is used again
}

} // namespace test_verbs

#endif
