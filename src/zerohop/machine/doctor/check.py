"""Declares checks and their results."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zerohop.machine.doctor.system import System

    Look: TypeAlias = Callable[[System], "Verdict"]


class State(enum.Enum):
    """Names the outcome of a check.

    FAIL: something that exists cannot be used. WARN: it works, but slower than it could, or not in every case.
    NOT_HERE: the check does not apply to this machine, or its facts cannot be read; the reason says which.
    """

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_HERE = "n/a"

    @property
    def rank(self) -> int:
        """Return the rank of the state; higher is worse."""
        return _RANKS[self]


_MOST_NAMES = 3
_RANKS = {State.NOT_HERE: 0, State.OK: 1, State.WARN: 2, State.FAIL: 3}


@dataclass(frozen=True, slots=True)
class Check:
    """Holds the result of one check.

    Attributes:
        name: name for ``--only``.
        family: name for ``--family``.
        state: outcome of the check.
        found: the facts that decided; for NOT_HERE the reason why nothing was checked.
        why: the reason why it matters.
        fix: commands to type, one each. A line that begins with "# " describes something that no command does.
    """

    name: str
    family: str
    state: State
    found: str
    why: str
    fix: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain strings and lists."""
        return {**asdict(self), "state": self.state.value, "fix": list(self.fix)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Holds a check's judgement of the system, or of one device: the part of a Check that is not known beforehand."""

    state: State
    found: str
    fix: tuple[str, ...] = ()


def ok(found: str) -> Verdict:
    """Return the verdict that all is well."""
    return Verdict(State.OK, found)


def warn(found: str, *fix: str) -> Verdict:
    """Return the verdict that it works, but not as it should."""
    return Verdict(State.WARN, found, fix)


def fail(found: str, *fix: str) -> Verdict:
    """Return the verdict that it cannot be used."""
    return Verdict(State.FAIL, found, fix)


def not_here(reason: str, *fix: str) -> Verdict:
    """Return the verdict that there is nothing to check, or that it is unreadable; `fix` would make it readable."""
    return Verdict(State.NOT_HERE, reason, fix)


def combined(verdicts: Iterable[tuple[str, Verdict]], *, one_is_enough: bool = False) -> Verdict:
    """Combine the verdicts on several devices: the worst state, each problem with its devices, and every fix.

    Args:
        verdicts: name of the device or port, and its verdict; at least one.
        one_is_enough: if one of them is usable, the failures of the others become warnings.
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
    # Equal verdicts share one sentence. Only problems name every device, so that eight good ports need few words.
    names: dict[str, list[str]] = {}
    for name, verdict in shown:
        names.setdefault(verdict.found, []).append(name)
    listed = ", ".join if worst in (State.WARN, State.FAIL) else shortened
    found = "; ".join(f"{listed(alike)}: {text}" for text, alike in names.items())
    others = f"; the other {fine} {'are' if fine > 1 else 'is'} fine" if fine else ""
    fixes = dict.fromkeys(line for _, verdict in shown for line in verdict.fix)
    return Verdict(worst, found + others, tuple(fixes))


def shortened(names: list[str]) -> str:
    """Return "mlx5_0, mlx5_1", or for many names "mlx5_0 … mlx5_7 (8)"."""
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} … {names[-1]} ({len(names)})"


@dataclass(frozen=True, slots=True)
class Checker:
    """Runs one check: called with the system's facts, it returns the result; `needs` may say why it does not apply."""

    name: str
    family: str
    why: str
    look: Look
    needs: Callable[[System], str] | None

    def __call__(self, system: System) -> Check:
        """Judge `system` by the facts that were read before; read nothing."""
        missing = self.needs(system) if self.needs is not None else ""
        verdict = not_here(missing) if missing else self.look(system)
        return Check(self.name, self.family, verdict.state, verdict.found, self.why, verdict.fix)


def checks_of(
    family: str, *, needs: Callable[[System], str] | None = None
) -> Callable[[str, str], Callable[[Look], Checker]]:
    """Return a family's decorator, which makes a check of a function, with a name and the reason why it matters.

    Args:
        family: name for ``--family``.
        needs: returns the reason why such a check has nothing to judge on a system, or "".
    """

    def check(name: str, why: str) -> Callable[[Look], Checker]:
        return lambda look: Checker(name, family, why, look, needs)

    return check
