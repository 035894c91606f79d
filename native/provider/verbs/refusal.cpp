#include "provider/verbs/refusal.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zerohop::verbs {

bool locking_is_limited() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return false;
    }
    // Root in a container often lacks the capability, so its name says nothing; and that of root in a namespace of its
    // own does not count.
    std::ifstream map("/proc/self/uid_map");
    uint64_t inside = 1;
    uint64_t outside = 1;
    uint64_t count = 0;
    if (!(map >> inside >> outside >> count) || inside != 0 || outside != 0 || count != UINT32_MAX) {
        return true;
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
    const bool known = syscall(SYS_capget, &header, data) == 0;
    return !known || (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) == 0;
}

Outcome refusal_of(int error, bool limited) {
    switch (error) {
    case ENOMEM:
        return {Status::no_memory, limited ? Reason::memlock : Reason::nic_full};
    case EMFILE:
    case ENFILE:
        return {Status::no_memory, Reason::out_of_descriptors};
    case EAGAIN:
    case EBUSY:
    case EINTR:
    case EIO:
    case ENODEV:
    case ETIMEDOUT:
        return {Status::device_error, Reason::none};
    default:
        return {Status::unsupported, Reason::none};
    }
}

void raise(const std::string& what, int error) {
    throw NativeError(refusal_of(error), what + ": " + std::strerror(error));
}

} // namespace zerohop::verbs
