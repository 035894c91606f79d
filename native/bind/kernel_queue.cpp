// Binds the send queues that kernels write.
#include "bind/fabric.hpp"

#ifdef ZEROHOP_VERBS
#include "bind/kernel_work.hpp"
#include "fabric/kernel_queue.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using device::mlx5::QueueLayout;
using fabric::KernelQueue;

using PyKernelQueue = PyKernelWork<KernelQueue>;

// Text, and the first request that has failed, or None: id, opcode, status, bytes, immediate, vendor's error.
using CompletionTuple = std::tuple<uint64_t, int, int, uint32_t, int64_t, uint32_t>;
using FailureTuple = std::tuple<std::string, std::optional<CompletionTuple>>;

FailureTuple failure_tuple(const std::string& text, const std::optional<fabric::Completion>& found) {
    if (!found) {
        return {text, std::nullopt};
    }
    const fabric::Completion& each = *found;
    return {text, CompletionTuple{each.id, each.opcode, each.status, each.nbytes, each.immediate, each.vendor_error}};
}

FailureTuple failure_of(const PyKernelQueue& self) {
    const std::shared_ptr<KernelQueue> queue = self.work.lock();
    if (!queue) {
        return {};
    }
    const KernelQueue::Failure found = queue->failure();
    return failure_tuple(found.text, found.completion);
}

void make(PyKernelQueue* self, const std::shared_ptr<Engine>& engine, const PyFabricEndpoint& endpoint,
          const PyRegion& control, const std::vector<nb::object>& own, uint64_t slots, uint64_t completion_slots,
          bool on_device) {
    if (slots == 0 || (slots & (slots - 1)) != 0 || (completion_slots != 1 && completion_slots != slots)) {
        throw nb::value_error("not a power of two, or neither one completion nor as many");
    }
    control.check(0, QueueLayout(slots, completion_slots).nbytes);
    const std::vector<Target> lasting = targets_of(own);
    const std::shared_ptr<fabric::Endpoint> held = endpoint.get();
    std::vector<Place> kept;
    std::shared_ptr<Region> region = control.get();
    std::shared_ptr<KernelQueue> queue;
    {
        const Released release;
        kept = pinned(lasting);
        if (on_device) {
            region->register_with_devices(engine->accelerators());
        }
        queue = std::make_shared<KernelQueue>(held, region, slots, completion_slots);
        engine->add_work(queue);
    }
    new (self) PyKernelQueue{engine, queue, std::move(kept)};
}

// Memory of the NIC's library, which GPUs know as long as this lives.
struct PyDirectQueue {
    std::shared_ptr<fabric::Endpoint> endpoint; // whose queues they are
    std::shared_ptr<Region> control;            // the state of the queue
    fabric::DirectQueue found;
    std::vector<std::shared_ptr<HostRegistration>> registered;
    std::vector<Place> kept; // memory that kernels read and write, also after the Context was closed
};

void make_direct(PyDirectQueue* self, const std::shared_ptr<Engine>& engine, const PyFabricEndpoint& endpoint,
                 const PyRegion& control, const std::vector<nb::object>& own, bool on_device) {
    const std::vector<Target> lasting = targets_of(own);
    PyDirectQueue made{endpoint.get(), control.get(), {}, {}, {}};
    {
        const Released release;
        made.found = made.endpoint->direct_queue();
        made.kept = pinned(lasting);
        if (on_device) {
            made.control->register_with_devices(engine->accelerators());
            const auto drivers = engine->accelerators().in_use();
            const fabric::DirectQueue& at = made.found;
            using accel::HostPages;
            const std::tuple<uint64_t, size_t, HostPages> parts[] = {
                {at.blocks, at.slots * sizeof(device::mlx5::Block), HostPages::writable},
                {at.record, sizeof(uint64_t), HostPages::writable},
                {at.doorbell, sizeof(uint64_t), HostPages::registers},
                {at.completions, at.completion_slots * sizeof(device::mlx5::Completed), HostPages::writable},
                {at.completion_record, sizeof(uint64_t), HostPages::writable},
            };
            for (const auto& [address, nbytes, kind] : parts) {
                // NOLINTNEXTLINE(performance-no-int-to-ptr): the NIC's library has told it as an address
                auto* start = reinterpret_cast<void*>(address);
                try {
                    made.registered.push_back(std::make_shared<HostRegistration>(drivers, start, nbytes, kind));
                } catch (const NativeError& error) {
                    const char* const what = kind == HostPages::registers ? "doorbell" : "queues";
                    throw NativeError(Status::unsupported, Reason::none,
                                      "the GPU's driver does not map the NIC's " + std::string(what) + ": " +
                                          error.what());
                }
            }
        }
    }
    new (self) PyDirectQueue(std::move(made));
}

} // namespace

void register_kernel_queues(nb::module_& m) {
    nb::class_<PyDirectQueue>(m, "FabricDirectQueue", "Keeps the queues of an endpoint within reach of kernels.")
        .def("__init__", &make_direct, nb::arg("engine"), nb::arg("endpoint"), nb::arg("control"), nb::arg("own"),
             nb::arg("on_device"), "own: memory that is pinned as long as this object; `control` is among it.")
        .def_prop_ro(
            "parts",
            [](const PyDirectQueue& self) {
                const fabric::DirectQueue& at = self.found;
                return std::tuple(at.number, at.slots, at.blocks, at.record, at.doorbell, at.completions,
                                  at.completion_slots, at.completion_record, at.most);
            },
            "The number of the queue pair, blocks and their address, doorbell record, doorbell, address and number of "
            "the completions, their record, and the most requests that may be under way.")
        .def(
            "failure",
            [](const PyDirectQueue& self) {
                return self.endpoint ? failure_tuple("", fabric::find_failure(self.found)) : FailureTuple{};
            },
            "What has failed first, as FabricKernelQueue tells it.")
        .def("close",
             [](PyDirectQueue& self) {
                 // Moved first: another thread may look for a failure.
                 const auto registered = std::move(self.registered);
                 std::shared_ptr<fabric::Endpoint> endpoint = std::move(self.endpoint);
                 const Released release;
                 endpoint.reset();
             })
        .def("abandon", [](PyDirectQueue& self) { // all of it is the parent's
            static auto* kept = new std::vector<PyDirectQueue>;
            kept->push_back(std::move(self));
        });
    nb::class_<PyKernelQueue> bound(m, "FabricKernelQueue", "Posts the requests that kernels write to an endpoint.");
    def_kernel_work(bound);
    bound
        .def("__init__", &make, nb::arg("engine"), nb::arg("endpoint"), nb::arg("control"), nb::arg("own"),
             nb::arg("slots"), nb::arg("completion_slots"), nb::arg("on_device"),
             "own: memory that is pinned as long as this object; `control` is among it.")
        .def_static(
            "control_layout",
            [](uint64_t slots, uint64_t completion_slots) {
                const QueueLayout layout(slots, completion_slots);
                return std::tuple(QueueLayout::kRecord, QueueLayout::kDoorbell, QueueLayout::kCompletionRecord,
                                  QueueLayout::kState, QueueLayout::kBlocks, layout.completions, layout.nbytes);
            },
            nb::arg("slots"), nb::arg("completion_slots"),
            "Where the parts of the control memory lie: doorbell record, doorbell, record of completions, state, "
            "blocks, completions; and its size.")
        .def("failure", &failure_of, "What has failed first: text, and a request's completion or None.")
        .def("abandon", [](PyKernelQueue& self) { self.work.reset(); });
}

} // namespace zerohop::bind
#endif
