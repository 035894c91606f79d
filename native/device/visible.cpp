#include "device/visible.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::device {

void Visible::add_lane(std::shared_ptr<Endpoint> endpoint) {
    if (std::find(endpoints_.begin(), endpoints_.end(), endpoint) == endpoints_.end()) {
        endpoints_.push_back(std::move(endpoint));
    }
}

bool Visible::advance(Engine& engine, uint64_t ended, uint64_t now_ns, uint64_t deadline_ns) {
    bool moved = false;
    if (begun_ == endpoints_.size() && begun_ != 0) {
        if (!collect_flush()) {
            return false;
        }
        begun_ = 0;
        shown_ = upto_;
        moved = true;
    }
    if (count(ended) == ended) {
        return moved;
    }
    if (begun_ == 0) {
        upto_ = ended;
    }
    return begin_flush(engine, now_ns, deadline_ns) || moved;
}

bool Visible::begin_flush(Engine& engine, uint64_t now_ns, uint64_t deadline_ns) {
    bool moved = false;
    for (; begun_ < endpoints_.size(); ++begun_) {
        Request request(now_ns);
        request.kind = Kind::flush;
        request.deadline_ns = deadline_ns;
        Posted posted = engine.try_post(*endpoints_[begun_], request);
        if (posted.what == Posted::What::retry) {
            return moved;
        }
        if (posted.what == Posted::What::posted) {
            flushes_.push_back(std::move(posted.op));
        } else if (posted.what == Posted::What::failed && outcome_.ok()) {
            outcome_ = posted.outcome;
        }
        moved = true;
    }
    return moved;
}

// Returns true if the flush has ended on all lanes. A flush touches no memory, so its end is enough.
bool Visible::collect_flush() {
    if (!std::all_of(flushes_.begin(), flushes_.end(), [](const OpRef& op) { return op->done(); })) {
        return false;
    }
    for (const OpRef& op : flushes_) {
        const Outcome outcome{op->status(), op->reason()};
        if (!outcome.ok() && outcome_.ok()) {
            outcome_ = outcome;
        }
    }
    flushes_.clear();
    return true;
}

} // namespace zerohop::device
