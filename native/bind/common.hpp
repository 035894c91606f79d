// Defines the objects that Python holds, which the binding files share. Each keeps its engine alive; none decides
// policy.
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

namespace zerohop::bind {

namespace nb = nanobind;

inline constexpr uint64_t kLongestSpin = 200 * kMillisecond; // limits one call, so that Ctrl-C is heard

// A completion queue, and the engine that its reader waits with.
struct PyQueue {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<CompletionQueue> queue;
};

struct PyBell {
    std::shared_ptr<Engine> engine;
    std::unique_ptr<LoopBell> bell;
};

// An operation that has ended, and that a lane may still hold. It keeps what operations are made of, and no engine.
struct EndedOp {
    std::shared_ptr<OperationSlab> slab;
    OpRef op; // destroyed before the slab
};

struct PyHeldOp {
    std::shared_ptr<const EndedOp> ended;
};

// An operation. Once it has copied the result, it needs the slot no more.
struct PyOp {
    std::shared_ptr<Engine> engine;
    OpRef op; // empty, as is `engine`, once the result has been copied
    // Shared by all who ask until when a lane holds the operation, so that its other holders are lanes.
    std::shared_ptr<const EndedOp> held{};
    Outcome ended{};
    uint64_t bytes_done = 0;
    uint64_t value = 0;
    uint64_t started_ns = 0;
    uint64_t finished_ns = 0;
    mutable bool asked = false; // true once somebody has waited for it, perhaps not to its end

    // Copies the result of an operation that has ended.
    void detach() {
        ended = {op->status(), op->reason()};
        bytes_done = op->bytes_done();
        value = op->value();
        started_ns = op->started_ns();
        finished_ns = op->finished_ns();
        op.reset();
        engine.reset();
    }
};

// A group of operations that end together.
struct PyGroup { // no engine, so that a Transport that has ended does not keep one alive
    std::shared_ptr<OperationGroup> group = std::make_shared<OperationGroup>();
};

// True if the operation has succeeded, or does so while this call spins (`patient`); its result is then copied.
[[nodiscard]] bool ended_well(PyOp& self, bool patient);

// Resets the pointer, without the GIL if it is the last owner: freeing a device's memory waits for its streams, and one
// of those may wait for something that only Python does.
template <class T> void reset_without_gil(std::shared_ptr<T>& held) {
    if (held.use_count() == 1 && PyGILState_Check() != 0) {
        const Released release;
        held.reset();
    } else {
        held.reset();
    }
}

struct PyRegion {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Region> region; // null once closed and dropped
    uint64_t address = 0;
    uint64_t nbytes = 0;
    int device = kHostDevice;

    static PyRegion of(const std::shared_ptr<Engine>& engine, const std::shared_ptr<Region>& region) {
        return {engine, region, region->address(), region->nbytes(), region->device()};
    }
    // Throws ValueError after close().
    const std::shared_ptr<Region>& get() const;
    // Throws ValueError if the range does not lie within the region.
    void check(uint64_t offset, uint64_t range_bytes) const;
    ~PyRegion() { reset_without_gil(region); }
};

// Returns one of the engine's devices by its number. Throws ValueError if there is none.
[[nodiscard]] const std::shared_ptr<accel::Device>& device_at(Engine& engine, int device);
// Returns our number of the device "sim:<number>". Throws ValueError if there is none.
[[nodiscard]] int sim_device(Engine& engine, int number);

struct PyMapping {
    std::shared_ptr<Mapping> mapping;
};

struct PyPeerMemory {
    std::shared_ptr<p2p::PeerMemory> memory; // null once closed and dropped
    uint64_t nbytes = 0;
    uint64_t release = 0; // the number of the IdleCalls call after which it is not mapped any more

    // Throws NativeError after close().
    const std::shared_ptr<p2p::PeerMemory>& get() const;
    ~PyPeerMemory() { reset_without_gil(memory); }
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
void register_grants(nb::module_& m);
void register_board(nb::module_& m);
void register_held_descriptor(nb::module_& m);
void register_storage(nb::module_& m);
void register_device_queue(nb::module_& m);
void register_transfers(nb::module_& m);
void register_messages(nb::module_& m);
void register_posters(nb::module_& m);

} // namespace zerohop::bind
