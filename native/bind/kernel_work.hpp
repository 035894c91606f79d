// Binds what the queues that kernels write to have in common: this process looks for requests while it is asked to.
#pragma once

#include "bind/files.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop::bind {

// Refers weakly to both: the engine owns the work until that is closed.
template <class Work> struct PyKernelWork {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<Work> work;
    std::vector<Place> kept; // memory that kernels read and write, also after the queue or its Context was closed

    void close() {
        const std::shared_ptr<Engine> held_engine = engine.lock();
        const std::shared_ptr<Work> held = work.lock();
        work.reset();
        if (held_engine && held) {
            const Released release;
            held_engine->close_work(held, {Status::closed, Reason::owner_closed});
        }
    }
};

inline std::vector<Target> targets_of(const std::vector<nb::object>& memory) {
    std::vector<Target> targets;
    targets.reserve(memory.size());
    for (const nb::object& each : memory) {
        targets.push_back(Target::of(each));
    }
    return targets;
}

// Pins all of them, without the GIL.
inline std::vector<Place> pinned(const std::vector<Target>& targets) {
    std::vector<Place> places;
    for (const Target& target : targets) {
        places.emplace_back();
        if (const Outcome outcome = target.pin(places.back()); !outcome.ok()) {
            throw NativeError(outcome, "");
        }
    }
    return places;
}

template <class Work> void def_kernel_work(nb::class_<PyKernelWork<Work>>& bound) {
    using Self = PyKernelWork<Work>;
    bound
        .def(
            "look",
            [](const Self& self) {
                const std::shared_ptr<Engine> engine = self.engine.lock();
                const std::shared_ptr<Work> work = self.work.lock();
                if (engine && work) {
                    work->begin_looking();
                    engine->kick();
                }
            },
            "Looks for requests until stop_looking() was called as often.")
        .def("stop_looking",
             [](const Self& self) {
                 if (const std::shared_ptr<Work> work = self.work.lock()) {
                     work->end_looking();
                 }
             })
        .def(
            "settle",
            [](const Self& self, uint64_t deadline_ns) {
                const std::shared_ptr<Engine> engine = self.engine.lock();
                const std::shared_ptr<Work> work = self.work.lock();
                if (!engine || !work) {
                    return true;
                }
                engine->kick();
                const uint64_t limit_ns = std::min(deadline_ns, now_ns() + kLongestSpin);
                const Released release;
                return engine->wait([&] { return work->settled(); }, limit_ns, engine->options().spin_ns);
            },
            nb::arg("deadline_ns"),
            "Waits until everything that was taken has ended, but not for long, so that Ctrl-C is heard; returns "
            "whether it has.")
        .def("close", &Self::close);
}

} // namespace zerohop::bind
