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

FailureTuple failure_of(const PyKernelQueue& self) {
    const std::shared_ptr<KernelQueue> queue = self.work.lock();
    if (!queue) {
        return {};
    }
    const KernelQueue::Failure found = queue->failure();
    if (!found.completion) {
        return {found.text, std::nullopt};
    }
    const fabric::Completion& each = *found.completion;
    return {found.text,
            CompletionTuple{each.id, each.opcode, each.status, each.nbytes, each.immediate, each.vendor_error}};
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

} // namespace

void register_kernel_queues(nb::module_& m) {
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
