// Binds the memory in which ranks of one host meet.
#include "memory/board.hpp"

#include "bind/files.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <utility>

namespace zerohop::bind {

namespace {

nb::list listed(Board::Ranks ranks) {
    nb::list list;
    for (int rank = 0; ranks >> rank != 0; ++rank) {
        if ((ranks >> rank & 1U) != 0) {
            list.append(rank);
        }
    }
    return list;
}

class PyBoard {
public:
    PyBoard(nb::handle memory, size_t ranks, size_t rank) : target_(Target::of(memory)), board_(ranks, rank) {
        if (ranks == 0 || ranks > Board::kMostRanks || rank >= ranks) {
            throw nb::value_error("ranks are 1 to 16, and rank is one of them");
        }
        Place place;
        if (!target_.pin(place).ok() || place.host == nullptr || place.nbytes < Board::bytes_for(ranks)) {
            throw nb::value_error("a board needs memory of the host, with room for all ranks");
        }
    }

    uint64_t begin() {
        if (held_.host == nullptr && !target_.pin(held_).ok()) {
            return 0;
        }
        board_.begin();
        return reinterpret_cast<uint64_t>(board_.slot(held_.host, 0));
    }

    // Returns None if there is nothing else to do.
    nb::object arrive(uint32_t tag, uint64_t detail, uint64_t spin_ns) const {
        std::byte* memory = here();
        const Board::Ranks owed = board_.arrive(memory, tag, detail);
        bool all = board_.await_all(memory, 0);
        if (!all && spin_ns != 0 && owed == 0) { // those that wait are told first
            const Released release;
            all = board_.await_all(memory, spin_ns);
        }
        if (all && owed == 0 && !board_.differing(memory)) {
            return nb::none();
        }
        return nb::make_tuple(listed(owed), all);
    }

    nb::list leave_word() const { return listed(board_.leave_word(here())); }
    std::optional<std::pair<size_t, uint32_t>> differing() const { return board_.differing(here()); }
    void end() { held_ = Place(); }

private:
    std::byte* here() const {
        if (held_.host == nullptr) {
            throw nb::value_error("no round has begun");
        }
        return held_.host;
    }

    Target target_;
    Board board_;
    Place held_; // from the beginning of a round to its end: others may read and write until then
};

} // namespace

void register_board(nb::module_& m) {
    m.attr("BOARD_RANKS") = Board::kMostRanks;
    m.attr("BOARD_SLOT_BYTES") = Board::kSlotBytes;
    nb::class_<PyBoard>(m, "Board", "Memory of one host in which the ranks of a group meet, one round after the other.")
        .def(nb::init<nb::handle, size_t, size_t>(), nb::arg("memory"), nb::arg("ranks"), nb::arg("rank"),
             nb::sig("def __init__(self, memory: Region | Reached, ranks: int, rank: int) -> None"))
        .def_static("bytes_for", &Board::bytes_for, nb::arg("ranks"))
        .def(
            "begin", &PyBoard::begin,
            "Begin a round, and keep the memory mapped until end(). Return where the slot of rank 0 is, which those of "
            "the others follow; 0 if the memory was taken back.")
        .def(
            "arrive", &PyBoard::arrive, nb::arg("tag"), nb::arg("detail"), nb::arg("spin_ns"),
            nb::sig("def arrive(self, tag: int, detail: int, spin_ns: int) -> tuple[list[int], bool] | None"),
            "Say that this rank has come, and filled its slot. None: all have, with the same. Else the ranks that have "
            "left word for this one, and whether all have come.")
        .def("leave_word", &PyBoard::leave_word, nb::sig("def leave_word(self) -> list[int]"),
             "Return the ranks that have not come, and will send a message when they do.")
        .def(
            "differing", &PyBoard::differing,
            "Return a rank that has come with another tag or detail, and its tag; None if there is none. All must have "
            "come.")
        .def("end", &PyBoard::end, "End the round. No slot may be read any more.");
}

} // namespace zerohop::bind
