// An operation that several links carry in parts.
#pragma once

#include "operation/operation.hpp"

#include <utility>

namespace zerohop::framed {

class Whole {
public:
    explicit Whole(OpRef op) : op_(std::move(op)) {}
    virtual ~Whole() = default;
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

    [[nodiscard]] const OpRef& op() const { return op_; }
    // Call it once for each part, when its link has freed all that it took. Any thread, without a lane's lock.
    virtual void part_ended(Outcome outcome) = 0;

private:
    const OpRef op_;
};

} // namespace zerohop::framed
