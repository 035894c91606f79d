// Floor: a flag and 8 bytes of payload in shared memory, two processes spinning on each other.
#include "common.hpp"

#include <atomic>

namespace floors {

namespace {

// Both words of a direction share a line, so that the payload costs no second transfer between the cores.
struct alignas(kCacheLine) Line {
    std::atomic<uint64_t> sequence;
    uint64_t payload;
};
struct Board {
    Line ping;
    Line pong;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

uint64_t mix(uint64_t x) { // splitmix64: both sides can make the payload of any round
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

class Flag {
public:
    explicit Flag(int fd) : mapping_(fd, sizeof(Board)), board_(reinterpret_cast<Board*>(mapping_.data())) {}

    void reset() {
        board_->ping.sequence.store(0);
        board_->pong.sequence.store(0);
    }

    Samples ping(size_t rounds, uint64_t seed, double timeout) {
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        const int64_t deadline = deadline_after(timeout);
        for (size_t i = 0; i < rounds; ++i) {
            const int64_t start = now_ns();
            send(board_->ping, i + 1, mix(seed + i));
            receive(board_->pong, i + 1, mix(~seed + i), deadline);
            samples[i] = now_ns() - start;
        }
        return samples;
    }

    void pong(size_t rounds, uint64_t seed, double timeout) {
        const nb::gil_scoped_release released;
        const int64_t deadline = deadline_after(timeout);
        for (size_t i = 0; i < rounds; ++i) {
            receive(board_->ping, i + 1, mix(seed + i), deadline);
            send(board_->pong, i + 1, mix(~seed + i));
        }
    }

private:
    static void send(Line& line, uint64_t sequence, uint64_t payload) {
        line.payload = payload;
        line.sequence.store(sequence, std::memory_order_release);
    }

    static void receive(Line& line, uint64_t sequence, uint64_t payload, int64_t deadline) {
        spin_until([&] { return line.sequence.load(std::memory_order_acquire) == sequence; }, deadline,
                   "the other process did not answer");
        if (line.payload != payload)
            throw std::runtime_error("wrong payload in a flag round");
    }

    Mapping mapping_;
    Board* board_;
};

// Answers another processor, such as a GPU, which counts in one word, by the same number in another word.
void echo_words(uint64_t asked, uint64_t answered, uint64_t rounds, double timeout) {
    const nb::gil_scoped_release released;
    const int64_t deadline = deadline_after(timeout);
    auto* question = reinterpret_cast<uint64_t*>(asked);
    auto* answer = reinterpret_cast<uint64_t*>(answered);
    for (uint64_t i = 1; i <= rounds; ++i) {
        spin_until([&] { return __atomic_load_n(question, __ATOMIC_ACQUIRE) >= i; }, deadline, "nobody has counted on");
        __atomic_store_n(answer, i, __ATOMIC_RELEASE);
    }
}

} // namespace

void bind_flag(nb::module_& m) {
    m.def("echo_words", &echo_words, nb::arg("asked"), nb::arg("answered"), nb::arg("rounds"), nb::arg("timeout"),
          "Answers each number in the word at one address by the same number in the word at another.");
    nb::class_<Flag>(m, "Flag", "A flag in shared memory that two processes send to and fro, both spinning.")
        .def(nb::init<int>(), nb::arg("fd"))
        .def("reset", &Flag::reset, "Clears both flags. Call before either side starts.")
        .def("ping", &Flag::ping, nb::arg("rounds"), nb::arg("seed"), nb::arg("timeout"),
             "Returns the nanoseconds of each round trip. RuntimeError on a wrong payload or after `timeout` seconds.")
        .def("pong", &Flag::pong, nb::arg("rounds"), nb::arg("seed"), nb::arg("timeout"),
             "The answering side of ping.");
    m.attr("FLAG_BYTES") = sizeof(Board);
}

} // namespace floors
