// Binds Status and Reason, and turns NativeError into the Python exception of that name.
#include "base/status.hpp"

#include "bind/common.hpp"

#include <nanobind/stl/string.h>

#include <system_error>

namespace zerohop::bind {

void register_status(nb::module_& m) {
    nb::enum_<Status>(m, "Status", nb::is_arithmetic(), "How an operation ended.")
        .value("OK", Status::ok)
        .value("PENDING", Status::pending)
        .value("CLOSED", Status::closed)
        .value("PEER_LOST", Status::peer_lost)
        .value("DEADLINE", Status::deadline)
        .value("ACCESS_DENIED", Status::access_denied)
        .value("CANCELLED", Status::cancelled)
        .value("UNSUPPORTED", Status::unsupported)
        .value("PROTOCOL", Status::protocol)
        .value("NO_MEMORY", Status::no_memory)
        .value("DEVICE_ERROR", Status::device_error)
        .value("WOULD_BLOCK", Status::would_block)
        .value("FILE_ERROR", Status::file_error);

    nb::enum_<Reason>(m, "Reason", nb::is_arithmetic(), "Why an operation ended so.")
        .value("NONE", Reason::none)
        .value("BOUNDS", Reason::bounds)
        .value("RIGHTS", Reason::rights)
        .value("GENERATION", Reason::generation)
        .value("REVOKED", Reason::revoked)
        .value("CAPABILITY", Reason::capability)
        .value("UNKNOWN_SHARE", Reason::unknown_share)
        .value("PROCESS_DIED", Reason::process_died)
        .value("HEARTBEAT", Reason::heartbeat)
        .value("STREAM_CLOSED", Reason::stream_closed)
        .value("LANE_CLOSED", Reason::lane_closed)
        .value("WINDOW_FULL", Reason::window_full)
        .value("NO_CREDIT", Reason::no_credit)
        .value("TRUNCATED", Reason::truncated)
        .value("COPY_FAILED", Reason::copy_failed)
        .value("DEVICE_LOST", Reason::device_lost)
        .value("ALLOC_FAILED", Reason::alloc_failed)
        .value("MALFORMED", Reason::malformed)
        .value("OUT_OF_DESCRIPTORS", Reason::out_of_descriptors)
        .value("OUT_OF_SHARED_MEMORY", Reason::out_of_shared_memory)
        .value("CONTEXT_CLOSED", Reason::context_closed)
        .value("USER", Reason::user)
        .value("MISALIGNED", Reason::misaligned)
        .value("TOO_MANY_PAGES", Reason::too_many_pages)
        .value("LANE_RESET", Reason::lane_reset)
        .value("REMOTE_ACCESS", Reason::remote_access)
        .value("NO_ANSWER", Reason::no_answer)
        .value("NOT_READY", Reason::not_ready)
        .value("LOCAL_ACCESS", Reason::local_access)
        .value("REMOTE_ERROR", Reason::remote_error)
        .value("PORT_DOWN", Reason::port_down)
        .value("MEMLOCK", Reason::memlock)
        .value("NIC_FULL", Reason::nic_full)
        .value("NO_PEER_LINK", Reason::no_peer_link)
        .value("CAPTURING", Reason::capturing)
        .value("HOST_REGISTERED", Reason::host_registered)
        .value("OWNER_CLOSED", Reason::owner_closed)
        .value("PEER_CLOSED", Reason::peer_closed)
        .value("MEMORY_GONE", Reason::memory_gone)
        .value("LOCAL_MEMORY_GONE", Reason::local_memory_gone)
        .value("OUT_OF_MEMORY", Reason::out_of_memory)
        .value("MOVED", Reason::moved)
        .value("NOT_ALLOWED", Reason::not_allowed)
        .value("NO_STAGING", Reason::no_staging)
        .value("LOCAL_NO_STAGING", Reason::local_no_staging)
        .value("GIVEN_UP", Reason::given_up)
        .value("OUT_OF_WATCHES", Reason::out_of_watches)
        .value("NOT_DIRECT", Reason::not_direct);

    // args: (status, reason, text), the two numbers as plain ints.
    static nb::object error_type = nb::steal(PyErr_NewExceptionWithDoc(
        "zerohop._native.NativeError", "An error known at once; args are (status, reason, text).", PyExc_Exception,
        nullptr));
    m.attr("NativeError") = error_type;
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const NativeError& error) {
            const nb::tuple args = nb::make_tuple(static_cast<int>(error.outcome().status),
                                                  static_cast<int>(error.outcome().reason), error.what());
            PyErr_SetObject(error_type.ptr(), args.ptr());
        } catch (const std::system_error& error) { // such as a thread that cannot be started
            const nb::tuple args = nb::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, args.ptr());
        }
    });
}

} // namespace zerohop::bind
