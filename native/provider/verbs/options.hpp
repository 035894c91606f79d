// Options of queue pairs that a user may set. The defaults and the reason for each are in
// src/zerohop/config/verbs_options.py; these here are what the data plane falls back to in its own tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace zerohop::verbs {

using OptionMap = std::map<std::string, int64_t>;

struct Options {
    int queue_pairs = 2;
    int send_depth = 128;
    int max_inline = 220;
    int read_credit = 16;
    int timeout = 14;
    int retry_count = 6;
    int rnr_retry = 7;
    int min_rnr_timer = 12;
    int mtu = 0;        // bytes; 0: the port's active one
    int gid_index = -1; // -1: none, plain InfiniBand
    int service_level = 0;
    int traffic_class = 0;
    int hop_limit = 64;
    int pkey_index = 0;
    int relaxed_ordering = 1;
    int64_t stripe_bytes = 1 << 20;
    int64_t rail_bytes = 4 << 20;

    // Throws NativeError(unsupported) for a name or a value that makes no sense.
    [[nodiscard]] static Options from(const OptionMap& map);
};

} // namespace zerohop::verbs
