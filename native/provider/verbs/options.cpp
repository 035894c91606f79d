#include "provider/verbs/options.hpp"

#include "base/status.hpp"
#include "provider/verbs/tuning.hpp"

namespace zerohop::verbs {

namespace {

[[noreturn]] void refuse(const std::string& name, int64_t value) {
    throw NativeError(Status::unsupported, Reason::malformed,
                      "the verbs option " + name + " cannot be " + std::to_string(value));
}

} // namespace

Options Options::from(const OptionMap& map) {
    struct Row {
        int Options::* field;
        int64_t least;
        int64_t most;
    };
    static const std::map<std::string, Row> rows{
        {"queue_pairs", {&Options::queue_pairs, 1, 16}},
        {"send_depth", {&Options::send_depth, 32, 4096}},
        {"max_inline", {&Options::max_inline, 0, kMostInline}},
        {"read_credit", {&Options::read_credit, 1, 255}},
        {"timeout", {&Options::timeout, 1, 31}},
        {"retry_count", {&Options::retry_count, 0, 7}},
        {"rnr_retry", {&Options::rnr_retry, 0, 7}},
        {"min_rnr_timer", {&Options::min_rnr_timer, 0, 31}},
        {"mtu", {&Options::mtu, 0, 4096}},
        {"gid_index", {&Options::gid_index, -1, 255}},
        {"service_level", {&Options::service_level, 0, 15}},
        {"traffic_class", {&Options::traffic_class, 0, 255}},
        {"hop_limit", {&Options::hop_limit, 1, 255}},
        {"pkey_index", {&Options::pkey_index, 0, INT16_MAX}},
        {"relaxed_ordering", {&Options::relaxed_ordering, 0, 1}},
    };
    Options options;
    for (const auto& [name, value] : map) {
        if (name == "stripe_bytes" || name == "rail_bytes") {
            if (value < 4096) {
                refuse(name, value);
            }
            (name == "stripe_bytes" ? options.stripe_bytes : options.rail_bytes) = value;
            continue;
        }
        const auto row = rows.find(name);
        if (row == rows.end() || value < row->second.least || value > row->second.most) {
            refuse(name, value);
        }
        options.*row->second.field = static_cast<int>(value);
    }
    return options;
}

} // namespace zerohop::verbs
