// What the binding files share: the objects that Python holds. Each keeps its engine alive; nothing here has policy.
#pragma once

#include "bind/released.hpp"
#include "engine/engine.hpp"
#include "engine/loop_bell.hpp"
#include "memory/region.hpp"
#include "provider/p2p/peer_memory.hpp"
#include "provider/provider.hpp"
#include "provider/verbs/remote_keys.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <mutex>

namespace zerohop::bind {

namespace nb = nanobind;

struct PyEngine;

// One reader of completions: the queue, and the engine to wait with.
struct PyQueue {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<CompletionQueue> queue;
};

struct PyBell {
    std::shared_ptr<Engine> engine;
    std::unique_ptr<LoopBell> bell;
};

// Once its end has been taken over, it needs the slot no more.
struct PyOp {
    std::shared_ptr<Engine> engine;
    OpRef op; // none, and no engine: taken over
    uint64_t bytes_done = 0;
    uint64_t value = 0;
    uint64_t started_ns = 0;
    uint64_t finished_ns = 0;

    void take_over() {
        bytes_done = op->bytes_done();
        value = op->value();
        started_ns = op->started_ns();
        finished_ns = op->finished_ns();
        op.reset();
        engine.reset();
    }
};

// Whose operations end together.
struct PyGroup { // knows no engine: whoever keeps a Transport that has ended keeps none with it
    std::shared_ptr<OperationGroup> group = std::make_shared<OperationGroup>();
};

// Whether it has ended well, or does so while it is waited for in place; its end is then taken over.
[[nodiscard]] bool ended_well(PyOp& self, bool patient);

// Without the GIL where this is the last that has it: to free a device's memory waits for its streams, and one of those
// may wait for what only Python does.
template <class T> void let_go(std::shared_ptr<T>& held) {
    if (held.use_count() == 1 && PyGILState_Check() != 0) {
        const Released release;
        held.reset();
    } else {
        held.reset();
    }
}

struct PyRegion {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Region> region; // null once closed and let go
    uint64_t address = 0;
    uint64_t nbytes = 0;
    int device = kHostDevice;

    // Throws ValueError after close().
    const std::shared_ptr<Region>& get() const;
    // Throws ValueError where the range lies outside.
    void check(uint64_t offset, uint64_t range_bytes) const;
    ~PyRegion() { let_go(region); }
};

// One of the engine's devices, by its number; throws ValueError where there is none.
[[nodiscard]] const std::shared_ptr<accel::Device>& device_at(Engine& engine, int device);
// Our number of the device "sim:<number>"; throws ValueError where there is none.
[[nodiscard]] int sim_device(Engine& engine, int number);

struct PyMapping {
    std::shared_ptr<Mapping> mapping;
};

struct PyPeerMemory {
    std::shared_ptr<p2p::PeerMemory> memory; // null once closed and let go
    uint64_t nbytes = 0;
    uint64_t release = 0; // by which it is not mapped any more

    // Throws NativeError after close().
    const std::shared_ptr<p2p::PeerMemory>& get() const;
    ~PyPeerMemory() { let_go(memory); }
};

struct PyDomain {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Domain> domain;
};

struct PyRemoteKeys {
    std::shared_ptr<verbs::RemoteKeys> keys;
};

struct PyEndpoint {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Endpoint> endpoint;
};

void register_status(nb::module_& m);
void register_operation(nb::module_& m);
void register_memory(nb::module_& m);
void register_domain(nb::module_& m);
void register_peer_memory(nb::module_& m);
void register_sim_stream(nb::module_& m);
// Throws NativeError after close().
void check_open(const Engine& engine);
void def_devices(nb::module_& m, nb::class_<Engine>& engine);
void def_peer_memory(nb::class_<Engine>& engine);
void def_pool(nb::class_<Engine>& engine);
void register_array(nb::module_& m);
void register_endpoint(nb::module_& m);
void register_engine(nb::module_& m);
void register_fabric(nb::module_& m);

} // namespace zerohop::bind
