#include "base/guarded.hpp"

#include "base/payload.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <mutex>
#include <ucontext.h>

namespace zerohop {

namespace {

// A guarded call that runs on this thread.
struct Call {
    // Leaves `before` as it is: clearing it takes longer than filling it in.
    Call(const Touched& one, const Touched& other, Call* around) : first(one), second(other), outer(around) {}

    const Touched first;
    const Touched second;
    volatile Gone gone = Gone::nothing;
    volatile int signal = 0;
    Call* const outer;
    sigjmp_buf before;
};

// The handler reads it, so that it may not be allocated at first use.
[[gnu::tls_model("initial-exec")]] thread_local Call* volatile running = nullptr;

constexpr std::array kSignals{SIGSEGV, SIGBUS};
// One entry for each handler that ours was put before. Each has a function of its own, because the other handler may
// keep the function that it found, to call it or to install it again.
constexpr size_t kMostEntries = 4;

struct Entries {
    size_t count = 0;
    std::array<struct sigaction, kMostEntries> before{};
};
std::array<Entries, kSignals.size()> entries;
std::mutex entries_mutex;
// For each entry the frame in which it calls the handler before it on this thread just now. A handler may never return,
// but jump: then later frames lie no deeper in the stack.
[[gnu::tls_model("initial-exec")]] thread_local std::array<volatile uintptr_t, kMostEntries> passing{};

Gone side_of(uint64_t address, const Touched& first, const Touched& second) {
    return first.holds(address) ? Gone::first : second.holds(address) ? Gone::second : Gone::nothing;
}

} // namespace

namespace guard {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// The linker names the bounds of the section. Its functions keep their arguments in their registers, use no stack, and
// return Gone::nothing; the handler lets them return something else through land().
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker makes up these names.
extern "C" {
extern const char __start_zerohop_guarded[] [[gnu::visibility("hidden")]];
extern const char __stop_zerohop_guarded[] [[gnu::visibility("hidden")]];
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

// All is loaded before anything is stored, so that the two may overlap.
[[gnu::naked, gnu::used, gnu::section("zerohop_guarded")]] Gone copy_small(void* /*dst*/, const void* /*src*/,
                                                                           size_t /*nbytes*/) {
    asm(R"(
        xorl %eax, %eax
        cmpl $16, %edx
        jae 16f
        cmpl $8, %edx
        jae 8f
        cmpl $4, %edx
        jae 4f
        cmpl $1, %edx
        jb 0f
        je 1f
        movzwl (%rsi), %ecx
        movzwl -2(%rsi,%rdx), %r8d
        movw %cx, (%rdi)
        movw %r8w, -2(%rdi,%rdx)
    0:  ret
    1:  movzbl (%rsi), %ecx
        movb %cl, (%rdi)
        ret
    4:  movl (%rsi), %ecx
        movl -4(%rsi,%rdx), %r8d
        movl %ecx, (%rdi)
        movl %r8d, -4(%rdi,%rdx)
        ret
    8:  movq (%rsi), %rcx
        movq -8(%rsi,%rdx), %r8
        movq %rcx, (%rdi)
        movq %r8, -8(%rdi,%rdx)
        ret
    16: movups (%rsi), %xmm0
        movups -16(%rsi,%rdx), %xmm1
        cmpl $32, %edx
        ja 32f
        movups %xmm0, (%rdi)
        movups %xmm1, -16(%rdi,%rdx)
        ret
    32: movups 16(%rsi), %xmm2
        movups -32(%rsi,%rdx), %xmm3
        cmpl $64, %edx
        ja 64f
        movups %xmm0, (%rdi)
        movups %xmm2, 16(%rdi)
        movups %xmm3, -32(%rdi,%rdx)
        movups %xmm1, -16(%rdi,%rdx)
        ret
    64: movups 32(%rsi), %xmm4
        movups 48(%rsi), %xmm5
        movups -64(%rsi,%rdx), %xmm6
        movups -48(%rsi,%rdx), %xmm7
        movups %xmm0, (%rdi)
        movups %xmm2, 16(%rdi)
        movups %xmm4, 32(%rdi)
        movups %xmm5, 48(%rdi)
        movups %xmm6, -64(%rdi,%rdx)
        movups %xmm7, -48(%rdi,%rdx)
        movups %xmm3, -32(%rdi,%rdx)
        movups %xmm1, -16(%rdi,%rdx)
        ret
    )");
}

namespace {

[[gnu::naked, gnu::used, gnu::section("zerohop_guarded")]] void land() {
    asm("ret");
}

// True if the fault came from a small copy, which then returns what was gone.
bool end_small_copy(uint64_t address, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto at = static_cast<uint64_t>(registers[REG_RIP]);
    if (at < reinterpret_cast<uint64_t>(__start_zerohop_guarded) ||
        at >= reinterpret_cast<uint64_t>(__stop_zerohop_guarded)) {
        return false;
    }
    const auto nbytes = static_cast<uint64_t>(registers[REG_RDX]);
    const Gone gone = side_of(address, {static_cast<uint64_t>(registers[REG_RDI]), nbytes},
                              {static_cast<uint64_t>(registers[REG_RSI]), nbytes});
    if (gone == Gone::nothing) {
        return false;
    }
    registers[REG_RAX] = static_cast<greg_t>(gone);
    registers[REG_RIP] = reinterpret_cast<greg_t>(&land);
    return true;
}

} // namespace

#else

namespace {

bool end_small_copy(uint64_t /*address*/, void* /*context*/) {
    return false;
}

} // namespace

#endif

namespace {

// Not inlined: a value that the caller keeps in a register would be the one from before.
[[gnu::noinline]] void contain_faults(Call& here, void (*call)(void*), void* of) {
    // Without the signal mask, which would be a system call: the handler blocks nothing.
    if (sigsetjmp(here.before, 0) == 0) {
        running = &here;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        call(of);
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    running = here.outer;
}

} // namespace

Gone run(const Touched& first, const Touched& second, void (*call)(void*), void* of) {
    Call here(first, second, running);
    contain_faults(here, call, of);
    return here.gone;
}

Gone copy_large(void* dst, const void* src, size_t nbytes) {
    const Touched to{reinterpret_cast<uint64_t>(dst), nbytes};
    const Touched from{reinterpret_cast<uint64_t>(src), nbytes};
    return guarded(to, from, [=] { copy_payload(dst, src, nbytes); });
}

} // namespace guard

namespace {

// Returns if the thread goes on behind the fault; false if the fault is none of ours.
bool contain(int signal, const siginfo_t& info, void* context) {
    if (info.si_code <= 0) { // sent by a program: there is no address
        return false;
    }
    const auto address = reinterpret_cast<uint64_t>(info.si_addr);
    if (guard::end_small_copy(address, context)) {
        return true;
    }
    Call* const call = running;
    if (call == nullptr) {
        return false;
    }
    const Gone gone = side_of(address, call->first, call->second);
    if (gone == Gone::nothing) {
        return false;
    }
    call->gone = gone;
    call->signal = signal;
    // The handler may run with signals blocked, by ThreadSanitizer for one, and the jump would leave them so.
    pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(call->before, 1);
}

// Lets the default action happen, which ends the process by this signal: the instruction faults again, and a signal
// that was sent is sent again.
void take_default(int signal, const siginfo_t& info) {
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    if (info.si_code <= 0) {
        raise(signal);
    }
}

// Does what would have happened without the handler.
void pass_on(int signal, siginfo_t* info, void* context, struct sigaction& next) {
    const bool sent = info->si_code <= 0;
    if ((next.sa_flags & SA_SIGINFO) == 0 && next.sa_handler == SIG_IGN && sent) {
        return;
    }
    if ((next.sa_flags & SA_SIGINFO) == 0 && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN)) {
        return take_default(signal, *info);
    }
    sigset_t blocked = next.sa_mask;
    if ((next.sa_flags & SA_NODEFER) == 0) {
        sigaddset(&blocked, signal);
    }
    const struct sigaction handler = next;
    if ((next.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
        next.sa_flags = 0;
        next.sa_handler = SIG_DFL;
    }
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    if ((handler.sa_flags & SA_SIGINFO) != 0) {
        handler.sa_sigaction(signal, info, context);
    } else {
        handler.sa_handler(signal);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

template <size_t kEntry> void on_fault(int signal, siginfo_t* info, void* context) {
    if (contain(signal, *info, context)) {
        return;
    }
    Entries& of = entries[signal == SIGSEGV ? 0 : 1];
    const uintptr_t outer = passing[kEntry];
    const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    // A handler before an entry that has been used again may come back to it; then the first one of all is next.
    const bool again = frame < outer;
    passing[kEntry] = frame;
    if (again && kEntry == 0) {
        take_default(signal, *info);
    } else {
        pass_on(signal, info, context, of.before[again ? 0 : kEntry]);
    }
    passing[kEntry] = outer;
}

using Handler = void (*)(int, siginfo_t*, void*);
constexpr std::array<Handler, kMostEntries> kHandlers{on_fault<0>, on_fault<1>, on_fault<2>, on_fault<3>};

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 &&
           std::find(kHandlers.begin(), kHandlers.end(), action.sa_sigaction) != kHandlers.end();
}

// Returns the entry for a handler that is to be called after ours; kMostEntries: there is none left.
size_t entry_for(Entries& of, const struct sigaction& before) {
    if (of.count < kMostEntries) {
        of.before[of.count] = before; // before a fault can ask for it
        return of.count++;
    }
    const auto same = [&](const struct sigaction& each) {
        return each.sa_flags == before.sa_flags && each.sa_sigaction == before.sa_sigaction;
    };
    return static_cast<size_t>(std::find_if(of.before.begin(), of.before.end(), same) - of.before.begin());
}

} // namespace

void install_fault_handler() {
    const std::lock_guard lock(entries_mutex);
    for (size_t i = 0; i < kSignals.size(); ++i) {
        struct sigaction found{};
        if (sigaction(kSignals[i], nullptr, &found) != 0 || is_ours(found)) {
            continue;
        }
        const size_t entry = entry_for(entries[i], found);
        if (entry == kMostEntries) {
            continue;
        }
        struct sigaction action{};
        action.sa_sigaction = kHandlers[entry];
        // On the other stack, if the thread has one: a handler before ours may be there for overflows of this one.
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        sigaction(kSignals[i], &action, nullptr);
    }
}

// Atomic, because others may write there. ThreadSanitizer's own atomics hold a lock of its while they touch the memory.
void touch_for_writing(uint64_t address) {
#if defined(__x86_64__)
    asm volatile("lock orb $0, (%0)" : : "r"(address) : "memory", "cc");
#else
    std::atomic_ref<uint8_t>(*reinterpret_cast<uint8_t*>(address)).fetch_or(0);
#endif
}

bool may_write(uint64_t address) {
    [[maybe_unused]] static const bool installed = (install_fault_handler(), true);
    Call here({address, 1}, {}, running);
    guard::contain_faults(here, [](void* of) { touch_for_writing(*static_cast<uint64_t*>(of)); }, &address);
    return here.gone == Gone::nothing || here.signal == SIGBUS;
}

} // namespace zerohop
