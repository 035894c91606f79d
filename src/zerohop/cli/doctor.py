"""Runs ``zerohop doctor``: the checks of `zerohop.machine.doctor`, for people or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from zerohop.cli.console import make_console, print_table
from zerohop.machine.doctor import State, diagnose, read_system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from zerohop.machine.doctor import Check, System

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.NOT_HERE: "dim"}


def run(*, as_json: bool, names: Sequence[str] = (), families: Sequence[str] = (), system: System | None = None) -> int:
    """Run the checks and print them; return 1 if one of them FAILs, 2 for an unknown name, else 0."""
    try:
        checks = diagnose(system or read_system(), names, families)
    except ValueError as error:
        make_console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    if as_json:
        print(json.dumps(to_json(checks), indent=2))
    else:
        show(checks, make_console())
    return 1 if any(check.state is State.FAIL for check in checks) else 0


def to_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return every check, and the number of checks per state."""
    counts = {state.value: sum(check.state is state for check in checks) for state in State}
    return {"checks": [check.to_json() for check in checks], "counts": counts}


def show(checks: Sequence[Check], console: Console) -> None:
    """Print `checks` for people: a table for each family, then the commands to type for those that FAIL."""
    width = max(len(check.name) for check in checks)
    for family in dict.fromkeys(check.family for check in checks):
        console.print(f"[bold]{escape(family)}[/]")
        print_table(console, _table([check for check in checks if check.family == family], width))
        console.print()
    failed = [check for check in checks if check.state is State.FAIL]
    if failed:
        console.print(f"[bold red]FAIL[/]: {len(failed)} of {len(checks)} checks; to be typed as root:")
        for check in failed:
            console.print(f"  [bold]{check.name}[/]: {escape(check.found)}", soft_wrap=True)
            for line in check.fix:
                console.print(f"    {escape(line)}", soft_wrap=True)
        console.print()
    console.print(_summary(checks))


def _table(checks: Sequence[Check], width: int) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
    table.add_column(no_wrap=True, min_width=4)
    table.add_column(style="bold", no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for check in checks:
        if check.state is not State.NOT_HERE:
            table.add_row(_state(check.state), check.name, _describe(check))
    # A reason why checks do not apply is printed once for all checks that share it.
    for reason in dict.fromkeys(check.found for check in checks if check.state is State.NOT_HERE):
        alike = [check for check in checks if check.state is State.NOT_HERE and check.found == reason]
        fixes = dict.fromkeys(line for check in alike for line in check.fix)
        names = ", ".join(check.name for check in alike)
        one = len(alike) == 1
        text = "\n".join([escape(reason if one else f"{names}: {reason}"), *_fix_lines(fixes)])
        table.add_row(_state(State.NOT_HERE), names if one else "", f"[dim]{text}[/]")
    return table


def _describe(check: Check) -> str:
    if check.state is State.OK:
        return escape(check.found)
    return "\n".join([escape(check.found), f"[dim]why:[/] {escape(check.why)}", *_fix_lines(check.fix)])


def _fix_lines(lines: Sequence[str] | dict[str, None]) -> list[str]:
    # The "# " before text that is no command matters only where lines are copied from: in the list of FAILs.
    heads = ["[bold]fix:[/] ", *["     "] * len(lines)]
    return [head + escape(line.removeprefix("# ")) for head, line in zip(heads, lines, strict=False)]


def _state(state: State) -> str:
    return f"[{_STYLES[state]}]{state.value}[/]"


def _summary(checks: Sequence[Check]) -> str:
    counts = to_json(checks)["counts"]
    told = [f"[{_STYLES[state]}]{counts[state.value]} {state.value}[/]" for state in State if counts[state.value]]
    return ", ".join(told)
