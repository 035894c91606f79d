// A send queue that threads of the host write as kernels do, and a NIC in software that moves the bytes between
// registered ranges: late, out of time, or not at all.
#pragma once

#include "device/assist.hpp"
#include "engine_fixture.hpp"
#include "zerohop/device/work_queue.hpp"

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace zerohop::test::work_queue {

namespace mlx5 = zerohop::device::mlx5;
namespace zd = zerohop::device;
using zd::Word;

inline constexpr uint32_t kNumber = 0x00abcdef; // of the queue pair
inline constexpr uint32_t kLocalKey = 0x1234;
inline constexpr uint32_t kRemoteKey = 0xfedcba98;

// Executes requests by copies between two ranges. What it does wrong is said by its settings.
class SoftwareNic final : public mlx5::Executor {
public:
    SoftwareNic(std::vector<uint8_t>& local, std::vector<uint8_t>& remote) : local_(local), remote_(remote) {}

    bool begin(const mlx5::Request& request) override {
        if (held_.size() >= depth) {
            return false;
        }
        held_.push_back(request);
        return true;
    }
    void collect(std::vector<Ended>& ended) override {
        if (holds) {
            return;
        }
        // Some of them at a time, so that completions come late and together.
        for (size_t some = late ? random_() % 3 : held_.size(); some != 0 && !held_.empty(); --some) {
            const mlx5::Request request = held_.front();
            if (request.index == drops_from) {
                return;
            }
            held_.pop_front();
            ended.push_back({request.index, failed_ ? mlx5::kFlushed : carry_out(request)});
            failed_ = failed_ || ended.back().syndrome != 0;
        }
    }

    size_t depth = 64;
    bool late = false;
    bool holds = false;                 // what was begun stays under way
    uint64_t drops_from = ~uint64_t{0}; // requests from this one on are never carried out

private:
    [[nodiscard]] static bool within(const mlx5::Place& place, uint32_t key, uint64_t nbytes,
                                     const std::vector<uint8_t>& range) {
        const auto begin = reinterpret_cast<uint64_t>(range.data());
        return place.key == key && place.address >= begin && nbytes <= range.size() &&
               place.address - begin <= range.size() - nbytes;
    }
    [[nodiscard]] uint8_t carry_out(const mlx5::Request& request) const {
        if (request.payload.empty() && !within(request.local, kLocalKey, request.nbytes, local_)) {
            return mlx5::kLocalProtection;
        }
        if (!within(request.remote, kRemoteKey, request.nbytes, remote_)) {
            return mlx5::kRemoteAccess;
        }
        auto* here = reinterpret_cast<void*>(request.local.address);
        auto* there = reinterpret_cast<void*>(request.remote.address);
        switch (request.opcode) {
        case mlx5::Opcode::write:
            std::memcpy(there, request.payload.empty() ? here : request.payload.data(), request.nbytes);
            return 0;
        case mlx5::Opcode::read:
            std::memcpy(here, there, request.nbytes);
            return 0;
        default: {
            Word found = 0;
            std::memcpy(&found, there, sizeof found);
            const bool adds = request.opcode == mlx5::Opcode::fetch_add;
            const Word next = adds ? found + request.operand : found == request.compare ? request.operand : found;
            std::memcpy(here, &found, sizeof found);
            std::memcpy(there, &next, sizeof next);
            return 0;
        }
        }
    }
    std::vector<uint8_t>& local_;
    std::vector<uint8_t>& remote_;
    std::deque<mlx5::Request> held_;
    bool failed_ = false;
    std::mt19937 random_{7}; // NOLINT(cert-msc51-cpp): with one seed a failure can be repeated
};

struct Rig {
    explicit Rig(uint64_t slots, bool collapsed, size_t nbytes = 1 << 16)
        : local(nbytes), remote(nbytes, 0xA5), nic(local, remote), completion_slots(collapsed ? 1 : slots),
          layout(slots, completion_slots), memory(Region::allocate_host(layout.nbytes)),
          assist(memory->host(), slots, completion_slots, kNumber, nic) {
        std::mt19937_64 random{std::random_device{}()};
        for (uint8_t& each : local) {
            each = static_cast<uint8_t>(random());
        }
        const auto at = [&](uint64_t offset) { return reinterpret_cast<Word>(memory->host()) + offset; };
        queue = {mlx5::kQueueLayout,
                 kNumber,
                 slots,
                 at(mlx5::QueueLayout::kBlocks),
                 at(mlx5::QueueLayout::kRecord),
                 at(mlx5::QueueLayout::kDoorbell),
                 at(layout.completions),
                 completion_slots,
                 at(mlx5::QueueLayout::kCompletionRecord),
                 reinterpret_cast<Word>(&counters[0]),
                 reinterpret_cast<Word>(&counters[1]),
                 reinterpret_cast<Word>(&counters[2]),
                 at(mlx5::QueueLayout::kState),
                 patience_ns(20 * kSecond),
                 slots};
    }
    ~Rig() { stop(); }
    Rig(const Rig&) = delete;
    Rig& operator=(const Rig&) = delete;

    void start() {
        serving = std::thread([this] {
            while (!stopping.load(std::memory_order_relaxed)) {
                if (!assist.poll()) {
                    std::this_thread::yield();
                }
            }
        });
    }
    void stop() {
        stopping = true;
        if (serving.joinable()) {
            serving.join();
        }
    }
    [[nodiscard]] mlx5::Posted post(size_t from, size_t to, size_t nbytes) const {
        return mlx5::PostWrite(&queue, reinterpret_cast<Word>(local.data()) + from, kLocalKey,
                               reinterpret_cast<Word>(remote.data()) + to, kRemoteKey, nbytes);
    }
    [[nodiscard]] Word send(size_t from, size_t to, size_t nbytes) const {
        mlx5::Posted posted = post(from, to, nbytes);
        Word status = mlx5::UpdateSendDbrRecord(&queue, posted);
        status = status == zd::kOk ? mlx5::RingDoorbell(&queue, posted) : status;
        status = status == zd::kOk ? mlx5::PollCq(&queue, posted) : status;
        mlx5::UpdateCqDbrRecord(&queue);
        return status;
    }
    [[nodiscard]] Word ring(mlx5::Posted& posted) const {
        const Word status = mlx5::UpdateSendDbrRecord(&queue, posted);
        return status == zd::kOk ? mlx5::RingDoorbell(&queue, posted) : status;
    }

    std::vector<uint8_t> local;
    std::vector<uint8_t> remote;
    SoftwareNic nic;
    uint64_t completion_slots;
    mlx5::QueueLayout layout;
    std::shared_ptr<Region> memory;
    mlx5::Assist assist;
    Word counters[3]{};
    mlx5::WorkQueue queue{};
    std::atomic<bool> stopping{false};
    std::thread serving;
};

} // namespace zerohop::test::work_queue
