// Binds regions of memory, mappings of peers' memory, and the address of a Python buffer.
#include "base/guarded.hpp"
#include "base/sync.hpp"
#include "bind/common.hpp"
#include "memory/region.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <ctime>
#include <utility>

namespace zerohop::bind {

const std::shared_ptr<Region>& PyRegion::get() const {
    if (!region) {
        throw NativeError(Status::closed, Reason::none, "this memory was closed");
    }
    return region;
}

void PyRegion::check(uint64_t offset, uint64_t range_bytes) const {
    if (offset > nbytes || range_bytes > nbytes - offset) {
        throw nb::value_error("the range lies outside of this memory");
    }
}

namespace {

constexpr uint64_t kSpin = 50 * kMicrosecond;
constexpr timespec kNap{0, 50'000};
constexpr uint64_t kSignalCheckNs = 20 * kMillisecond;

// Copies synchronously on a stream of its own; for verification and tools, not for speed. Ends early if the Context is
// closed or a signal handler raises; dropping the stream then ends the copy, so that nothing is written any more.
void copy_now(const PyRegion& self, uint64_t dst, uint64_t src, uint64_t nbytes) {
    const auto& devices = self.engine->accelerators().devices();
    Outcome why;
    std::unique_ptr<accel::Stream> stream = devices[static_cast<size_t>(self.device)]->stream(why);
    if (!stream) {
        throw NativeError(why, "the device gives no stream");
    }
    const accel::CopySegment segment{dst, src, nbytes};
    const std::shared_ptr<accel::Event> event = stream->copy({&segment, 1});
    const uint64_t began = now_ns();
    uint64_t looked = began;
    while (event->query() == accel::EventState::pending) {
        const uint64_t now = now_ns();
        if (now - began < kSpin) {
            cpu_pause();
            continue;
        }
        nanosleep(&kNap, nullptr);
        if (self.engine->closed()) {
            stream.reset();
            throw NativeError(Status::closed, Reason::context_closed, "");
        }
        if (now - looked > kSignalCheckNs) {
            looked = now;
            const nb::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) {
                stream.reset();
                throw nb::python_error();
            }
        }
    }
    if (event->query() == accel::EventState::failed) {
        throw NativeError(event->outcome(), "the device's copy failed");
    }
}

// Copies to or from the region, whose other side is the host's.
void copy(const PyRegion& self, uint64_t dst, uint64_t src, uint64_t nbytes) {
    const Released release;
    if (nbytes != 0 && self.device != kHostDevice) {
        copy_now(self, dst, src, nbytes);
    } else if (nbytes != 0) {
        if (copy_guarded(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), nbytes) != Gone::nothing) {
            throw NativeError(kLocalMemoryGone, "");
        }
    }
}

nb::bytes read(const PyRegion& self, uint64_t offset, uint64_t nbytes) {
    const Pin<Region> pin = Pin<Region>::of(self.get());
    self.check(offset, nbytes);
    nb::bytes result = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
    if (!result.is_valid()) {
        throw nb::python_error();
    }
    copy(self, reinterpret_cast<uint64_t>(result.c_str()), self.address + offset, nbytes);
    return result;
}

void write(const PyRegion& self, uint64_t offset, const nb::bytes& data) {
    const Pin<Region> pin = Pin<Region>::of(self.get());
    self.check(offset, data.size());
    copy(self, self.address + offset, reinterpret_cast<uint64_t>(data.c_str()), data.size());
}

std::pair<uint64_t, bool> buffer_start(const nb::handle& x) {
    Py_buffer view;
    if (PyObject_GetBuffer(x.ptr(), &view, PyBUF_ANY_CONTIGUOUS) != 0) {
        throw nb::python_error();
    }
    const std::pair<uint64_t, bool> found{reinterpret_cast<uint64_t>(view.buf), view.readonly != 0};
    PyBuffer_Release(&view);
    return found;
}

} // namespace

void register_memory(nb::module_& m) {
    m.def("buffer_start", &buffer_start, nb::arg("x"),
          "Address of a contiguous buffer, and whether it is read-only. Raises what its exporter does.");
    m.def(
        "may_write", [](uint64_t address) { return may_write(address); }, nb::arg("address"),
        "Whether the mapping of a byte of this process lets it be written, even without a page. It is not changed.");
    nb::class_<PyRegion>(m, "Region", "A registered range of memory.")
        .def_ro("address", &PyRegion::address)
        .def_ro("nbytes", &PyRegion::nbytes)
        .def_ro("device", &PyRegion::device)
        .def_prop_ro("shareable", [](const PyRegion& self) { return self.region && self.region->fd() >= 0; })
        .def_prop_ro("fd", [](const PyRegion& self) { return self.region ? self.region->fd() : -1; })
        .def_prop_ro("fd_offset", [](const PyRegion& self) { return self.region ? self.region->fd_offset() : 0; })
        .def_prop_ro("known_to_devices",
                     [](const PyRegion& self) { return self.region && self.region->known_to_devices(); })
        .def_prop_ro("pins", [](const PyRegion& self) { return self.region ? self.region->pins() : 0; })
        .def(
            "close",
            [](PyRegion& self, bool wait) {
                std::shared_ptr<Region> region = self.region;
                if (!region) {
                    return true;
                }
                if (!region->close()) {
                    return false;
                }
                {
                    const Released release;
                    if (!region->deregister(wait)) {
                        return false;
                    }
                }
                self.region.reset();
                return true;
            },
            nb::arg("wait") = false,
            "No operation begins with it any more; True once none is left that did before, and no device or NIC knows "
            "it. Call again then; with wait, devices are waited for.")
        .def(
            "deregister",
            [](PyRegion& self, bool wait) {
                // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): kept while others may close it
                const std::shared_ptr<Region> region = self.region;
                const Released release;
                return !region || region->deregister(wait);
            },
            nb::arg("wait") = false,
            "No device or NIC knows it any more, while it stays for those who hold it; False where one still does; "
            "with wait, they are waited for.")
        .def("read", &read, nb::arg("offset"), nb::arg("nbytes"))
        .def("write", &write, nb::arg("offset"), nb::arg("data"));

    nb::class_<PyMapping>(m, "Mapping", "A peer's host memory, mapped here.")
        .def_prop_ro("nbytes", [](const PyMapping& self) { return self.mapping->nbytes(); })
        .def(
            "part",
            [](const PyMapping& self, uint64_t offset, uint64_t nbytes, bool writable) {
                return PyMapping{make_pinnable<Mapping>(self.mapping, offset, nbytes, writable)};
            },
            nb::arg("offset"), nb::arg("nbytes"), nb::arg("writable"),
            "A part, which is used and closed by itself; the whole cannot be closed before.")
        .def("close", [](const PyMapping& self) { return self.mapping->unmap(); });
}

} // namespace zerohop::bind
