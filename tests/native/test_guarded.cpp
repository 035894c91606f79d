// Tests guarded calls: they copy what is there, end at what is gone, and leave every other fault alone.
#include "base/guarded.hpp"
#include "bytes.hpp"
#include "gone_pages.hpp"
#include "memory/copy.hpp"

#include <array>
#include <csetjmp>
#include <csignal>
#include <functional>
#include <sys/wait.h>
#include <thread>

namespace test_guarded {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMostBytes = 300;

#if defined(__SANITIZE_THREAD__)
// There copies go forward only (payload.hpp).
constexpr std::array kDistances{size_t{0}, kMostBytes};
#else
constexpr std::array kDistances{size_t{0}, size_t{1}, size_t{7}, size_t{33}, kMostBytes};
#endif

uint64_t address_of(const void* at) {
    return reinterpret_cast<uint64_t>(at);
}

void handle(int signal, void (*handler)(int)) {
    struct sigaction action{};
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
}

// Returns how a child process ends that runs `body`; -N: by signal N.
int end_of(const std::function<void()>& body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        for (const int signal : {SIGSEGV, SIGBUS}) {
            handle(signal, SIG_DFL); // not the test framework's
        }
        body();
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Sanitizers report a fault, and end the process themselves.
bool died_of(int end, [[maybe_unused]] int signal) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return end != 0 && end != 42;
#else
    return end == -signal;
#endif
}

void touch(const volatile std::byte* at) {
    [[maybe_unused]] const std::byte read = *at;
}

void leave(int /*signal*/) {
    ::_exit(42);
}

} // namespace

TEST_CASE("guarded: copies of all sizes, also where the two overlap") {
    install_fault_handler();
    const Bytes bytes = pattern(3 * kMostBytes, 1);
    for (size_t nbytes = 0; nbytes <= kMostBytes; ++nbytes) {
        for (const size_t distance : kDistances) {
            for (const bool forward : {true, false}) {
                CAPTURE(nbytes);
                CAPTURE(distance);
                CAPTURE(forward);
                Bytes got = bytes;
                Bytes expected = bytes;
                const size_t from = forward ? 0 : distance;
                const size_t to = forward ? distance : 0;
                std::memmove(expected.data() + to, expected.data() + from, nbytes);
                REQUIRE(copy_guarded(got.data() + to, got.data() + from, nbytes) == Gone::nothing);
                REQUIRE(got == expected);
            }
        }
    }
}

TEST_CASE("guarded: what is gone ends a copy, and is named") {
    install_fault_handler();
    const GonePages file(2 * kPage);
    file.truncate(kPage); // a bus error
    const GonePages closed(2 * kPage);
    closed.unmap(); // a segmentation fault
    Bytes own(kMostBytes, 7);
    for (size_t nbytes = 1; nbytes <= kMostBytes; ++nbytes) {
        for (const size_t there : {size_t{0}, size_t{1}, nbytes / 2, nbytes - 1}) {
            CAPTURE(nbytes);
            CAPTURE(there);
            std::byte* const edge = file.data() + kPage - there;
            REQUIRE(copy_guarded(edge, own.data(), nbytes) == (there < nbytes ? Gone::first : Gone::nothing));
            REQUIRE(copy_guarded(own.data(), edge, nbytes) == (there < nbytes ? Gone::second : Gone::nothing));
        }
        REQUIRE(copy_guarded(own.data(), closed.data(), nbytes) == Gone::second);
        REQUIRE(copy_guarded(closed.data() + 100, own.data(), nbytes) == Gone::first);
        REQUIRE(copy_streaming(closed.data(), own.data(), nbytes) == Gone::first);
    }
    const Bytes large(64 * kPage);
    CHECK(copy_streaming(file.data(), large.data(), 2 * kPage) == Gone::first);
    CHECK_FALSE(may_write(address_of(closed.data())));
    CHECK(may_write(address_of(file.data() + kPage))); // there is no page, but no rule against it
    CHECK(may_write(address_of(file.data())));
    CHECK_FALSE(may_write(address_of(std::shared_ptr<void>(map_shared(file.fd(), kPage, PROT_READ, "it")).get())));
    file.restore();
    CHECK(copy_guarded(own.data(), file.data() + kPage, 64) == Gone::nothing); // the next one is as ever
}

TEST_CASE("guarded: threads and nested calls do not disturb each other") {
    install_fault_handler();
    const GonePages file(kPage);
    file.truncate();
    std::vector<std::jthread> threads;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            Bytes own(kMostBytes);
            Bytes other(kMostBytes);
            for (size_t round = 0; round < 2000; ++round) {
                const size_t nbytes = 1 + round % kMostBytes;
                wrong += copy_guarded(own.data(), file.data(), nbytes) != Gone::second;
                wrong += copy_guarded(own.data(), other.data(), nbytes) != Gone::nothing;
            }
        });
    }
    threads.clear();
    CHECK(wrong == 0);
    const Touched all{address_of(file.data()), kPage};
    Bytes own(kMostBytes);
    Gone inner = Gone::nothing;
    const Gone outer = guarded({}, all, [&] {
        inner = copy_guarded(own.data(), file.data(), kMostBytes);
        touch(file.data());
    });
    CHECK(inner == Gone::second);
    CHECK(outer == Gone::second);
}

TEST_CASE("guarded: any other fault ends the process as it would have") {
    const GonePages file(2 * kPage);
    const GonePages closed(kPage);
    file.truncate();
    closed.unmap();
    // Outside of a guarded call, and inside of one that was told of another memory.
    const std::vector<std::function<void()>> faults{
        [&] { touch(file.data()); },
        [&] { (void)guarded({address_of(file.data()), kPage}, {}, [&] { touch(file.data() + kPage); }); }};
    for (const auto& fault : faults) {
        CHECK(died_of(end_of([&] {
                          install_fault_handler();
                          fault();
                      }),
                      SIGBUS));
        CHECK(end_of([&] {
                  handle(SIGBUS, leave);
                  install_fault_handler();
                  fault();
              }) == 42);
        // A handler that came later gets everything.
        CHECK(end_of([&] {
                  install_fault_handler();
                  handle(SIGBUS, leave);
                  fault();
              }) == 42);
    }
    CHECK(died_of(end_of([&] {
                      install_fault_handler();
                      touch(closed.data());
                  }),
                  SIGSEGV));
    CHECK(died_of(end_of([] {
                      install_fault_handler();
                      ::raise(SIGSEGV);
                  }),
                  SIGSEGV));
    CHECK(end_of([] {
              handle(SIGBUS, SIG_IGN);
              install_fault_handler();
              ::raise(SIGBUS);
          }) == 0);
}

TEST_CASE("guarded: a handler that jumps out of every fault may do so for ever") {
    const GonePages file(kPage);
    file.truncate();
    static sigjmp_buf before;
    CHECK(end_of([&] {
              handle(SIGBUS, [](int) { siglongjmp(before, 1); });
              install_fault_handler();
              for (static int round = 0; round < 3; ++round) {
                  if (sigsetjmp(before, 1) == 0) {
                      touch(file.data());
                  }
              }
          }) == 0);
}

#if !defined(__SANITIZE_THREAD__) // which delivers a signal that a handler raises only after that handler
TEST_CASE("guarded: a handler that was installed later may call the one before it") {
    const GonePages file(kPage);
    file.truncate();
    static struct sigaction found;
    static std::atomic<int> seen;
    // Gives its place back and raises the signal again, as Python's faulthandler does.
    const auto again = [](int signal) {
        ++seen;
        sigaction(signal, &found, nullptr);
        ::raise(signal);
    };
    CHECK(end_of([&] {
              handle(SIGBUS, leave);
              install_fault_handler();
              struct sigaction action{};
              action.sa_handler = again;
              action.sa_flags = static_cast<int>(SA_NODEFER);
              sigaction(SIGBUS, &action, &found);
              install_fault_handler();
              Bytes own(kMostBytes);
              if (copy_guarded(own.data(), file.data(), 8) != Gone::second || seen != 0) {
                  ::_exit(1);
              }
              touch(file.data());
          }) == 42);
}
#endif

} // namespace test_guarded
