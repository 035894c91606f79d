// The send queue of an endpoint as kernels write it: this process reads their requests, and posts them to the endpoint,
// whatever its device is.
#pragma once

#include "base/status.hpp"
#include "device/assist.hpp"
#include "device/looking.hpp"
#include "engine/work.hpp"
#include "fabric/endpoint.hpp"
#include "memory/region.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace zerohop::fabric {

// Posts requests to an endpoint, which nobody else posts to or polls.
class EndpointExecutor final : public device::mlx5::Executor {
public:
    explicit EndpointExecutor(std::shared_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
    bool begin(const device::mlx5::Request& request) override;
    void collect(std::vector<Ended>& ended) override;
    [[nodiscard]] std::optional<Completion> failed() const { // any thread; the first that has
        const std::lock_guard lock(mutex_);
        return failed_;
    }

private:
    const std::shared_ptr<Endpoint> endpoint_;
    Request posted_; // made anew for each
    mutable std::mutex mutex_;
    std::optional<Completion> failed_; // guarded by the mutex
};

class KernelQueue final : public Work {
public:
    // `control`: memory of the host, as large as device::mlx5::QueueLayout says.
    KernelQueue(const std::shared_ptr<Endpoint>& endpoint, std::shared_ptr<Region> control, uint64_t slots,
                uint64_t completion_slots);

    // Any thread. Requests are looked for while there are more begins than ends; those that were rung at an end are
    // carried out.
    void begin_looking() { looking_.begin(); }
    void end_looking() { looking_.end(); }
    // Any thread. Tells whether nothing is left of the requests that were rung when end_looking() was called.
    [[nodiscard]] bool settled() const { return closed_ || broken_ || (looking_.drained() && left_ == 0); }
    struct Failure {
        std::string text;                     // of the device or of the queue; empty: none, or that of a request
        std::optional<Completion> completion; // of the first request that has failed
    };
    // Any thread. Returns what has failed first.
    [[nodiscard]] Failure failure() const;

    bool poll() override;
    int fd() const override { return -1; }
    Backlog backlog() const override;
    void close(Outcome outcome) override;
    // The endpoint waits for the requests that its device still has, when it is closed.
    bool idle() const override { return closed_; }
    void abandon() override { closed_ = true; }

private:
    const std::shared_ptr<Region> control_;
    EndpointExecutor executor_;
    device::mlx5::Assist assist_;
    device::Looking looking_;
    uint64_t empty_looks_ = 0;        // since one that found something
    std::atomic<uint64_t> left_{0};   // requests that were rung and have not ended
    std::atomic<bool> broken_{false}; // the device has refused a request
    std::atomic<bool> closed_{false};
    mutable std::mutex failure_mutex_; // guards:
    std::string device_failure_;
};

} // namespace zerohop::fabric
