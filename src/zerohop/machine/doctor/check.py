"""What a check is, and what it comes to."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zerohop.machine.doctor.system import System


class State(enum.Enum):
    """How a check ended.

    FAIL: something that is there cannot be used. WARN: it works, but slower than it could, or not in every case.
    NOT_HERE: the check does not apply to this machine, or what it looks at cannot be read; the reason says which.
    """

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_HERE = "n/a"

    @property
    def rank(self) -> int:
        """Higher is worse."""
        return _RANKS[self]


_MOST_NAMES = 3
_RANKS = {State.NOT_HERE: 0, State.OK: 1, State.WARN: 2, State.FAIL: 3}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: what ``--only`` takes.
        family: what ``--family`` takes.
        state: how it ended.
        found: what was found; for NOT_HERE why nothing was looked at.
        why: why it matters.
        fix: what to type, one command each. A line that begins with "# " is something that no command does.
    """

    name: str
    family: str
    state: State
    found: str
    why: str
    fix: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns plain strings and lists."""
        return {
            "name": self.name,
            "family": self.family,
            "state": self.state.value,
            "found": self.found,
            "why": self.why,
            "fix": list(self.fix),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check says of the system, or of one device: the part of a Check that is not known beforehand."""

    state: State
    found: str
    fix: tuple[str, ...] = ()


def ok(found: str) -> Verdict:
    """All is well."""
    return Verdict(State.OK, found)


def warn(found: str, *fix: str) -> Verdict:
    """It works, but not as it should."""
    return Verdict(State.WARN, found, fix)


def fail(found: str, *fix: str) -> Verdict:
    """It cannot be used."""
    return Verdict(State.FAIL, found, fix)


def not_here(reason: str, *fix: str) -> Verdict:
    """There is nothing to look at, or it cannot be read; `fix` says what would make it readable."""
    return Verdict(State.NOT_HERE, reason, fix)


def combined(verdicts: Iterable[tuple[str, Verdict]], *, one_is_enough: bool = False) -> Verdict:
    """Makes one verdict of those on several devices: the worst state, what is wrong with which, and every fix.

    Args:
        verdicts: name of the device or port, and what was found; at least one.
        one_is_enough: where one of them is usable the others are no failure: they are turned into warnings.
    """
    pairs = list(verdicts)
    assert pairs, "a check that looks at nothing is not_here"
    usable = any(verdict.state in (State.OK, State.WARN) for _, verdict in pairs)
    if one_is_enough and usable:
        pairs = [
            (name, warn(verdict.found, *verdict.fix) if verdict.state is State.FAIL else verdict)
            for name, verdict in pairs
        ]
    worst = max((verdict.state for _, verdict in pairs), key=lambda state: state.rank)
    shown = [pair for pair in pairs if pair[1].state is not State.NOT_HERE] or pairs
    fine = 0
    if worst in (State.WARN, State.FAIL):
        wrong = [pair for pair in shown if pair[1].state in (State.WARN, State.FAIL)]
        fine = len(shown) - len(wrong)
        shown = sorted(wrong, key=lambda pair: -pair[1].state.rank)
    # Eight ports that are alike are told in one sentence, and by name only where something is wrong with them.
    names: dict[str, list[str]] = {}
    for name, verdict in shown:
        names.setdefault(verdict.found, []).append(name)
    listed = ", ".join if worst in (State.WARN, State.FAIL) else shortened
    found = "; ".join(f"{listed(alike)}: {text}" for text, alike in names.items())
    others = f"; the other {fine} {'are' if fine > 1 else 'is'} fine" if fine else ""
    fixes = dict.fromkeys(line for _, verdict in shown for line in verdict.fix)
    return Verdict(worst, found + others, tuple(fixes))


def shortened(names: list[str]) -> str:
    """Returns "mlx5_0, mlx5_1", or of many "mlx5_0 … mlx5_7 (8)"."""
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} … {names[-1]} ({len(names)})"


@dataclass(frozen=True, slots=True)
class Checker:
    """One check: called with the system's facts, it returns its result."""

    name: str
    family: str
    why: str
    look: Callable[[System], Verdict]

    def __call__(self, system: System) -> Check:
        """Looks at `system`, which was read before; touches nothing itself."""
        verdict = self.look(system)
        return Check(self.name, self.family, verdict.state, verdict.found, self.why, verdict.fix)


def checks_of(family: str) -> Callable[[str, str], Callable[[Callable[[System], Verdict]], Checker]]:
    """Returns the decorator with which a family's module declares its checks: a name, and why it matters."""

    def check(name: str, why: str) -> Callable[[Callable[[System], Verdict]], Checker]:
        return lambda look: Checker(name, family, why, look)

    return check
