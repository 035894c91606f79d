"""Runs the cases of a benchmark, and hands the rows to the table, the JSON file and the plot."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.markup import escape

import zerohop
from zerohop.cli.bench import device, group, handles, local, notify, served, storage, transfers, transport
from zerohop.cli.bench.device_plan import DEVICE_NAMES
from zerohop.cli.bench.floors import FloorDescriptors, Floors
from zerohop.cli.bench.group_plan import GROUP_NAMES
from zerohop.cli.bench.plan import ALL_GPUS, Request, plan
from zerohop.cli.bench.plot import PlotUnavailable, draw, require_format
from zerohop.cli.bench.report import describe_case, print_rows, summarize
from zerohop.cli.bench.results import NOISY, Neighbours, Report, require_writable, write_report
from zerohop.cli.bench.rows import ENCRYPTED, Row, is_gpu
from zerohop.cli.bench.session import COMMAND_TIMEOUT, FULL, PEER, QUICK, Effort, Session, open_session
from zerohop.cli.bench.storage_plan import SERVED_NAMES
from zerohop.cli.console import human_bytes, human_time, make_console
from zerohop.cli.peer import PeerProcess
from zerohop.config.protection import why_not
from zerohop.core.face import check_device
from zerohop.errors import ZerohopError, named, out_of_memory
from zerohop.machine.host import read_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from zerohop.cli.bench.rows import Case

_SMALLER = "Ask for less with --bytes or --batch"


class _Setting(NamedTuple):
    """Holds the facts that decide which Contexts a case needs; cases with equal settings share them."""

    provider: str | None
    sim_devices: int
    polling: bool
    tls: bool
    flows: int


def run(request: Request, *, json_to: str | None, plot_to: Path | None) -> int:
    """Measure the rows of `request`.

    Args:
        request: the rows to measure.
        json_to: file for the rows, "-" for standard output, or None.
        plot_to: file for the plot, or None.

    Returns:
        0; 1 if a byte was wrong; 2 if something could not be measured; 130 if Ctrl-C ended it. In all cases, the rows
        measured so far are reported, and written to the files.
    """
    errors = make_console(stderr=True)
    try:
        cases = plan(request)
        require_gpus(cases)
        require_memory(cases)
        if json_to is not None and json_to != "-":
            require_writable(Path(json_to))
        if plot_to is not None:
            require_format(plot_to)
            require_writable(plot_to)
    except (ValueError, PlotUnavailable, OSError) as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    rows: dict[Case, Row] = {}
    failure: BaseException | None = None
    neighbours, started = Neighbours(), time.monotonic()
    try:
        effort = QUICK if request.quick else FULL
        effort = replace(effort, folder=request.folder or effort.folder)
        for case, row in measure(cases, effort, errors):
            rows[case] = row  # rows measured before a failure are kept
            if not errors.is_terminal:
                errors.print(escape(summarize(row)), soft_wrap=True)
    except (ZerohopError, MemoryError, OSError, RuntimeError, KeyboardInterrupt) as error:
        failure = error
    ordered = [rows[case] for case in cases if case in rows]
    others, seconds = neighbours.processors(), time.monotonic() - started
    print_rows(errors if json_to == "-" else make_console(), ordered)
    try:
        # An interrupted run without rows must not overwrite the results of an earlier run.
        if json_to is not None and (ordered or not isinstance(failure, KeyboardInterrupt)):
            write_report(json_to, Report.of_this_machine(ordered, seconds, others))
        if plot_to is not None and ordered:
            draw(ordered, plot_to)
    except OSError as error:
        if failure is not None:
            _print_failure(errors, error)
        failure = failure or error
    errors.print(f"{len(ordered)} of {len(cases)} rows in {human_time(seconds)}")
    if others is not None and others > NOISY:
        errors.print(f"[yellow]not a quiet machine:[/] others kept {others:.1f} processors busy meanwhile")
    return _verdict(errors, ordered, failure)


def _verdict(console: Console, rows: list[Row], failure: BaseException | None) -> int:
    if isinstance(failure, KeyboardInterrupt):
        console.print("[bold red]interrupted[/]")
        return 130
    if isinstance(failure, MemoryError):
        console.print(f"[bold red]failed:[/] {escape(f'{out_of_memory(failure)}. {_SMALLER}')}", soft_wrap=True)
        return 2
    if failure is not None:
        _print_failure(console, failure)
        return 2
    wrong = [row for row in rows if not row.verified]
    for row in wrong:
        console.print(f"[bold red]WRONG BYTES:[/] {escape(describe_case(row))}")
    return 1 if wrong else 0


def _print_failure(console: Console, error: BaseException) -> None:
    told = named(error)
    console.print(f"[bold red]failed:[/] {type(told).__name__}: {escape(str(told))}", soft_wrap=True)


def require_gpus(cases: list[Case]) -> None:
    """Raise ValueError, before anything is measured, for a case with a GPU that does not exist."""
    named = {place for case in cases for place in (case.src, case.dst) if is_gpu(place) and place != ALL_GPUS}
    if named:
        with zerohop.Context(listen=None) as context:
            for place in sorted(filter(None, named)):
                check_device(context, place)


def require_memory(cases: list[Case]) -> None:
    """Raise ValueError, before anything is measured, for a case that takes more memory than this machine has left."""
    available = read_memory(Path("/")).available
    for case in cases:
        needed = case.memory_bytes
        if available is not None and needed > available:
            raise ValueError(
                f"{describe_case(case)} takes {human_bytes(needed)} of memory at least, in both processes together, "
                f"and {human_bytes(available)} are available. {_SMALLER}"
            )


def measure(cases: list[Case], effort: Effort, console: Console) -> Iterator[tuple[Case, Row]]:
    """Measure all cases, one setting of Contexts after the other; yield each row as soon as it is measured."""
    with closing(FloorDescriptors()) as descriptors:
        fds = tuple(descriptors.for_peer().values())
        with PeerProcess(PEER, pass_fds=fds, timeout=COMMAND_TIMEOUT) as peer:
            floors = Floors(peer, descriptors)
            for setting, group in _grouped(cases).items():
                if setting is None:
                    for case in group:
                        _announce(console, case)
                        yield case, _measure_here(effort, case, floors)
                    continue
                with open_session(peer, floors, effort, **setting._asdict()) as session:
                    for case in group:
                        _announce(console, case)
                        yield case, _measure_one(session, case)


def _measure_here(effort: Effort, case: Case, floors: Floors) -> Row:
    """Return the row of a case that needs no Contexts of both processes."""
    if case.mode == ENCRYPTED:
        return replace(Row.of(case), verified=True, missing=why_not("all"))
    if case.name in SERVED_NAMES:
        return served.measure_served(effort, case, floors)
    if case.of_file:
        return storage.measure_storage(effort, case)
    return local.measure_import(effort, case) if case.name == "import" else local.weigh_wheel(case)


def _measure_one(session: Session, case: Case) -> Row:
    if case.name == "register" and is_gpu(case.src):
        return local.measure_tensors(session, case)
    if case.name in DEVICE_NAMES:
        return device.measure_device(session, case)
    if case.name in GROUP_NAMES:
        return group.measure_group(session, case)
    return _MEASURES[case.name](session, case)


_MEASURES: Final[Mapping[str, Callable[[Session, Case], Row]]] = {
    "write": transfers.measure_transfer,
    "read": transfers.measure_transfer,
    "write_notify": notify.measure_notify,
    "write_pages": transfers.measure_pages,
    "read_pages": transfers.measure_pages,
    "write_list": transfers.measure_list,
    "read_list": transfers.measure_list,
    "register": local.measure_register,
    "views": handles.measure_views,
    "first_use": handles.measure_first_use,
    "raw": handles.measure_raw,
    "idle": local.measure_idle,
    "stream_wait": local.measure_stream_wait,
    "all_pairs": local.measure_all_pairs,
    "transport_write": transport.measure_transport,
    "transport_read": transport.measure_transport,
    "transport_write_many": transport.measure_write_many,
    "transport_register": transport.measure_transport_register,
}


def _grouped(cases: list[Case]) -> dict[_Setting | None, list[Case]]:
    groups: dict[_Setting | None, list[Case]] = {}
    for case in cases:
        setting = None
        missing = case.mode == ENCRYPTED and why_not("all")
        if case.name not in ("import", "wheel") and not case.of_file and not missing:
            setting = _Setting(
                case.provider, case.sim_devices, case.target == "polling", case.mode == ENCRYPTED, case.flows
            )
        groups.setdefault(setting, []).append(case)
    return groups


def _announce(console: Console, case: Case) -> None:
    if console.is_terminal:
        console.print(f"[dim]measuring {escape(describe_case(case))}[/]")
