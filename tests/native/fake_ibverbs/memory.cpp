// Implements protection domains and memory regions.
#include "state.hpp"

#include <cerrno>
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace zerohop::fake {

namespace {

// The lock must be held.
ibv_mr* add(Memory* memory, ibv_pd* pd, void* address, size_t nbytes, uint64_t iova, int access) {
    World& all = world();
    constexpr int kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        ++all.open.misuses;
    }
    memory->context = pd->context;
    memory->pd = pd;
    memory->of = static_cast<Domain*>(pd);
    memory->addr = address;
    memory->length = nbytes;
    memory->iova = iova;
    memory->access = access;
    memory->lkey = memory->rkey = all.next_key;
    all.next_key += 0x101;
    all.memory[memory->rkey] = memory;
    ++memory->of->users;
    ++all.open.memory_regions;
    return memory;
}

} // namespace

} // namespace zerohop::fake

using namespace zerohop::fake;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::alloc_pd, context)) {
        return nullptr;
    }
    auto* domain = new Domain;
    domain->context = context;
    ++static_cast<Context*>(context)->users;
    ++world().open.protection_domains;
    return domain;
}

int ibv_dealloc_pd(ibv_pd* pd) {
    const std::lock_guard lock(world().mutex);
    auto* domain = static_cast<Domain*>(pd);
    if (domain->users != 0) {
        ++world().open.misuses;
        return EBUSY;
    }
    --static_cast<Context*>(pd->context)->users;
    --world().open.protection_domains;
    delete domain;
    return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t nbytes, uint64_t iova, unsigned int access) {
    const std::lock_guard lock(world().mutex);
    return fails(Call::reg_mr, pd->context) ? nullptr
                                            : add(new Memory, pd, address, nbytes, iova, static_cast<int>(access));
}

#undef ibv_reg_mr
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t nbytes, int access) {
    return ibv_reg_mr_iova2(pd, address, nbytes, reinterpret_cast<uint64_t>(address), static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t nbytes, uint64_t iova, int fd, int access) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::reg_mr, pd->context)) {
        return nullptr;
    }
    const uint64_t within = offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    void* mapped =
        mmap(nullptr, nbytes + within, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - within));
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    auto* memory = new Memory;
    memory->mapped = mapped;
    memory->mapped_bytes = nbytes + within;
    return add(memory, pd, static_cast<std::byte*>(mapped) + within, nbytes, iova, access);
}

int ibv_dereg_mr(ibv_mr* mr) {
    const std::lock_guard lock(world().mutex);
    auto* memory = static_cast<Memory*>(mr);
    world().memory.erase(memory->rkey);
    --memory->of->users;
    --world().open.memory_regions;
    if (memory->mapped != nullptr) {
        munmap(memory->mapped, memory->mapped_bytes);
    }
    delete memory;
    return 0;
}

} // extern "C"
