// Floor: the driver opens allocations of another process, by the handles that it made of them there.
#include "gpu.hpp"

#include <cstring>

namespace floors {

namespace {

// Peers reach each other's memory from the first access on.
constexpr unsigned kLazyPeerAccess = 1;

// An allocation of cuMemAlloc.
class GpuMemory {
public:
    GpuMemory(int device, size_t nbytes) : nbytes_(nbytes), gpu_(device, nbytes) {}

    [[nodiscard]] Address address() const { return gpu_.memory(); }

    void fill(const ConstBytes& source) const {
        if (source.size() > nbytes_)
            throw nb::value_error("more bytes than there is memory");
        const Current current = gpu_.enter();
        gpu_.copy(gpu_.memory(), reinterpret_cast<Address>(source.data()), source.size());
        gpu_.synchronize();
    }

    [[nodiscard]] nb::bytes handle() const {
        AllocationHandle made{};
        const Current current = gpu_.enter();
        check(driver().ipc_get(&made, gpu_.memory()), "cuIpcGetMemHandle");
        return nb::bytes(made.bytes.data(), made.bytes.size());
    }

private:
    size_t nbytes_;
    Gpu gpu_;
};

AllocationHandle handle_of(const nb::bytes& bytes) {
    AllocationHandle handle{};
    if (bytes.size() != handle.bytes.size())
        throw nb::value_error("a handle of an allocation has 64 bytes");
    std::memcpy(handle.bytes.data(), bytes.c_str(), handle.bytes.size());
    return handle;
}

// Allocations of another process, closed when this goes.
class Opened {
public:
    explicit Opened(const Gpu& gpu) : gpu_(gpu) {}
    ~Opened() {
        void* popped = nullptr;
        api_.context_push(gpu_.context());
        for (const Address each : addresses_)
            api_.ipc_close(each);
        api_.context_pop(&popped);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    int64_t open(const AllocationHandle& handle) {
        const Current current = gpu_.enter();
        Address address = 0;
        const int64_t start = now_ns();
        check(driver().ipc_open(&address, handle, kLazyPeerAccess), "cuIpcOpenMemHandle");
        const int64_t took = now_ns() - start;
        addresses_.push_back(address);
        return took;
    }

    void take(uint8_t* target, size_t each) const {
        const Current current = gpu_.enter();
        for (const Address address : addresses_) {
            gpu_.copy(reinterpret_cast<Address>(target), address, each);
            target += each;
        }
        gpu_.synchronize();
    }

private:
    const Driver& api_ = driver();
    const Gpu& gpu_;
    std::vector<Address> addresses_;
};

// All stay open until the last one is, so that none is known already.
Samples open_allocations(int device, const std::vector<nb::bytes>& handles, const Bytes& target) {
    if (handles.empty() || target.size() % handles.size() != 0)
        throw nb::value_error("as many bytes from each allocation are needed");
    const Gpu gpu(device, 1);
    Opened opened(gpu);
    Samples samples;
    for (const nb::bytes& each : handles)
        samples.push_back(opened.open(handle_of(each)));
    opened.take(target.data(), target.size() / handles.size());
    return samples;
}

} // namespace

void bind_gpu_memory(nb::module_& m) {
    nb::class_<GpuMemory>(m, "GpuMemory", "An allocation of cuMemAlloc on a device.")
        .def(nb::init<int, size_t>(), nb::arg("device"), nb::arg("nbytes"))
        .def_prop_ro("address", &GpuMemory::address, "Where it begins.")
        .def("fill", &GpuMemory::fill, nb::arg("source"), "Copies `source` to its start.")
        .def("handle", &GpuMemory::handle, "The driver's handle, by which another process opens it.");
    m.def(
        "open_allocations", &open_allocations, nb::arg("device"), nb::arg("handles"), nb::arg("target"),
        "Opens allocations of another process on a device; nanoseconds of each. `target` gets the first bytes of all, "
        "as many of each.");
}

} // namespace floors
