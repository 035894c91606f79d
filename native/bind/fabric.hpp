// Declares the objects of the explicit verbs API that Python holds.
#pragma once

#include "bind/common.hpp"

#ifdef ZEROHOP_VERBS
#include "fabric/endpoint.hpp"
#include "provider/verbs/memory_region.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace zerohop::bind {

// An object that Python holds; empty after close() or abandon().
template <class T> struct Owned {
    std::shared_ptr<T> object;

    // Returns a reference of the caller's own: once the GIL is released, another thread may close the object.
    std::shared_ptr<T> get() const {
        if (!object) {
            throw NativeError(Status::closed, Reason::none, "");
        }
        return object;
    }
    void close() {
        std::shared_ptr<T> last = std::move(object);
        const Released release;
        last.reset();
    }
    // For a forked child, which shares the parent's descriptors: destroying the object would destroy the parent's
    // resources.
    void abandon() {
        static auto* kept = new std::vector<std::shared_ptr<T>>;
        kept->push_back(std::move(object));
        object.reset();
    }
};

struct PyFabricDevice : Owned<verbs::Device> {};
struct PyFabricRegion : Owned<verbs::MemoryRegion> {};
struct PyFabricEndpoint : Owned<fabric::Endpoint> {};

void register_kernel_queues(nb::module_& m);

} // namespace zerohop::bind
#endif
