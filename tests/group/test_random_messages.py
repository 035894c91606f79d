"""Random programs of sends and receives, whose every outcome a model has to explain."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.message_model import MailboxModel, WrongError
from support.message_programs import (
    LENGTHS,
    MOST_RANKS,
    ROOMS,
    SPACES,
    TAGS,
    Action,
    Cancel,
    Claim,
    Drop,
    Look,
    Program,
    Recv,
    Send,
    Tell,
)
from support.options import Options
from support.patience import patience

if TYPE_CHECKING:
    from pathlib import Path

_ranks = st.integers(0, MOST_RANKS - 1)
_tags = st.integers(0, len(TAGS) - 1)
# Most of a program is in the group of all ranks, and to few of them: or else nothing meets.
_spaces = st.sampled_from([0, 0, 0, *range(SPACES)])
_targets = st.sampled_from([0, 0, 0, 1, 2, 3])
_kinds = st.integers(0, len(LENGTHS) - 1)
_which = st.integers(0, 9)
_sends = st.builds(Send, _spaces, _ranks, _targets, _tags, _kinds)
_rooms = st.sampled_from([0, 0, 0, 0, *range(len(ROOMS)), None, None])
_receives = st.builds(Recv, _spaces, _targets, st.none() | _ranks, st.none() | _tags, _rooms)
_others = st.one_of(
    st.builds(Claim, _which),
    st.builds(Drop, _which),
    st.builds(Cancel, _which),
    st.builds(Tell, _ranks, _ranks, _kinds),
    st.builds(Look),
)
_action: st.SearchStrategy[Action] = st.one_of(_sends, _sends, _receives, _receives, _others)
_actions = st.integers(0, 60).flatmap(lambda length: st.lists(_action, min_size=length, max_size=length))


def run_programs(folder: Path, provider: str, examples: int) -> None:
    """Run programs of 2 to 4 ranks, each in groups of its own over the same Contexts."""
    names = count()
    with ExitStack() as opened:
        contexts = [opened.enter_context(Options(providers=(provider,)).open()) for _ in range(MOST_RANKS)]

        # Nothing is shrunk: a program that hangs takes seconds each time, and a race does not come twice.
        @settings(
            max_examples=examples,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(size=st.integers(2, MOST_RANKS), actions=_actions, leaves=st.booleans())
        def run(size: int, actions: list[Action], leaves: bool) -> None:
            program = Program(folder, contexts[:size], str(next(names)))
            try:
                program.run(actions, leaves=leaves)
            finally:
                program.close()

        run()


@pytest.mark.timeout(patience(60))
@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_some_programs(tmp_path: Path, provider: str) -> None:
    run_programs(tmp_path, provider, 90)


@pytest.mark.slow
@pytest.mark.timeout(patience(300))
@pytest.mark.parametrize("provider", ["shm", "tcp", "p2p"])
def test_many_programs(tmp_path: Path, provider: str) -> None:
    run_programs(tmp_path, provider, 600)


class TestTheModel:
    """It refuses what a Group must not do, and accepts what it may."""

    def test_messages_of_one_rank_do_not_overtake(self) -> None:
        model = MailboxModel()
        model.send(0, 1, 10, at=1)
        model.send(0, 1, 11, at=2)
        first, second = model.ask(None, None, 99, at=3), model.ask(None, None, 99, at=4)
        model.take(first, 0, 1, 11, at=5)
        model.take(second, 0, 1, 10, at=6)
        with pytest.raises(WrongError, match="no order of arrivals"):
            model.check(set())

    def test_messages_of_two_ranks_may(self) -> None:
        model = MailboxModel()
        model.send(0, 1, 10, at=1)
        model.send(1, 1, 11, at=2)
        first, second = model.ask(None, None, 99, at=3), model.ask(None, None, 99, at=4)
        model.take(first, 1, 1, 11, at=5)
        model.take(second, 0, 1, 10, at=6)
        model.check(set())

    def test_but_not_one_that_was_sent_after_the_other_was_there(self) -> None:
        model = MailboxModel()
        model.send(0, 1, 10, at=1)
        probe, first = model.ask(None, None, 99, at=2), model.ask(0, 1, 99, at=3)
        model.take(probe, 0, 1, 10, at=4)
        model.release(probe, at=5)
        model.send(1, 1, 11, at=6)
        second = model.ask(None, 1, 99, at=7)
        model.cancel(first, at=8)
        third = model.ask(None, 1, 99, at=9)
        model.take(second, 1, 1, 11, at=10)
        model.take(third, 0, 1, 10, at=11)
        with pytest.raises(WrongError, match="no order of arrivals"):
            model.check(set())

    def test_the_oldest_receive_comes_first(self) -> None:
        model = MailboxModel()
        first, second = model.ask(0, None, 99, at=1), model.ask(None, 1, 99, at=2)
        model.send(0, 1, 10, at=3)
        model.take(second, 0, 1, 10, at=4)
        with pytest.raises(WrongError, match="and waits"):
            model.check(set())
        model.cancel(first, at=5)
        with pytest.raises(WrongError, match="and waits"):
            model.check(set())

    @pytest.mark.parametrize(("source", "tag", "nbytes"), [(1, 1, 10), (0, 2, 10), (0, 1, 11)])
    def test_what_a_receive_does_not_admit_or_nobody_has_sent(self, source: int, tag: int, nbytes: int) -> None:
        model = MailboxModel()
        for each in ((0, 1), (1, 1), (0, 2)):
            model.send(*each, 10, at=1)
        with pytest.raises(WrongError, match="has"):
            model.take(model.ask(0, 1, 99, at=2), source, tag, nbytes, at=3)

    def test_a_message_goes_to_one_receive(self) -> None:
        model = MailboxModel()
        model.send(0, 1, 10, at=1)
        model.take(model.ask(None, None, 99, at=2), 0, 1, 10, at=3)
        with pytest.raises(WrongError, match="has"):
            model.take(model.ask(None, None, 99, at=4), 0, 1, 10, at=5)

    def test_a_message_that_nobody_has(self) -> None:
        model = MailboxModel()
        sent = model.send(0, 1, 10_000, at=1)
        with pytest.raises(WrongError, match="nobody has"):
            model.check(set())
        receive = model.ask(0, 1, 99, at=2)
        model.truncate(receive, "rank 0: truncated")
        model.check({sent})
        assert receive.took is not None
