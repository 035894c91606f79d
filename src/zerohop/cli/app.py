"""Declares the commands and their options. Each command imports its modules when it runs."""

# No `from __future__ import annotations`: typer reads these annotations at run time.
import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="zerohop",
    help="Moves bytes between the GPU memory, host memory and storage of any two processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Fault(str, enum.Enum):
    """Names the faults that the demo can inject, to prove that its verification fails when it should."""

    flip = "flip"
    flip_sweep = "flip-sweep"


def _version(wanted: bool) -> None:
    if wanted:
        from zerohop.machine.facts import package_version

        typer.echo(f"zerohop {package_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Moves bytes between the GPU memory, host memory and storage of any two processes."""


@app.command()
def info(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    sim_devices: Annotated[
        int | None, typer.Option(min=0, max=64, help="Simulated GPUs to open. [default: ZEROHOP_SIM_DEVICES or 0]")
    ] = None,
    topology: Annotated[
        bool, typer.Option("--topology", help="Draw instead where GPUs and RDMA NICs sit, and which serves which.")
    ] = False,
    nics: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", envvar="ZEROHOP_NICS", help="With --topology: only these; ^NAME,…: not these."),
    ] = None,
) -> None:
    """What this machine has: accelerators, NICs, providers; for each provider usable, or why not."""
    if topology:
        from zerohop.cli.topology import run as draw

        sys.exit(draw(as_json=json, nics=nics))
    from zerohop.cli.info import run

    sys.exit(run(as_json=json, sim_devices=sim_devices))


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this check; may be repeated.")] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only device, software, port, address, limits, gpu, pcie or storage; may be repeated."
        ),
    ] = None,
) -> None:
    """Whether RDMA, GPUs and files work well here: every check with OK, WARN or FAIL, and the command that fixes it.

    The exit status is 1 when a check FAILs and 0 otherwise, also when there are WARNs.
    """
    from zerohop.cli.doctor import run

    sys.exit(run(as_json=json, names=only or (), families=family or ()))


@app.command()
def demo(
    input: Annotated[  # noqa: A002 - the option's name is part of the interface
        Path | None, typer.Option(exists=True, dir_okay=False, metavar="FILE.safetensors", help="Move this model.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which the demo gives up.")] = 170.0,
    inject_fault: Annotated[Fault | None, typer.Option(hidden=True)] = None,
) -> None:
    """Two processes exchange GPU memory (simulated GPUs), verified on the receiving device; then a size sweep."""
    from zerohop.cli.demo import run

    in_steps, in_sweep = inject_fault is Fault.flip, inject_fault is Fault.flip_sweep
    sys.exit(run(model=input, timeout=timeout, flip_in_steps=in_steps, flip_in_sweep=in_sweep))


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="write, read, write_notify, transport, storage, device, group, …"),
    ] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only this provider; may be repeated.")] = None,
    src: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where the bytes come from: host, sim:0, or a GPU: cuda:0."),
    ] = None,
    dst: Annotated[str | None, typer.Option(metavar="PLACE", help="Where they go; host, sim:1, or cuda:1.")] = None,
    bytes: Annotated[  # noqa: A002
        str | None, typer.Option(metavar="N,N…", help="Sizes, as 8,64Ki,64Mi; of a page for the page lists.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Operations (or pages) of one measurement.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE|-", help="Write the rows as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(dir_okay=False, metavar="FILE.png", help="Draw the rows.")] = None,
    wheel: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, metavar="FILE.whl", help="Add a row with its size.")
    ] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where storage rows make their file. [default: /var/tmp]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds: a look, not a measurement.")] = False,
    filter: Annotated[  # noqa: A002
        str | None, typer.Option(metavar="REGEX", help="Only rows whose text, as the table has it, it is found in.")
    ] = None,
) -> None:
    """Measures transfers between two processes, every byte verified, against raw floors of the same run."""
    from zerohop.cli.bench.plan import Request
    from zerohop.cli.bench.runner import run

    request = Request(
        names=tuple(names or ()),
        providers=tuple(provider or ()),
        src=src,
        dst=dst,
        sizes=bytes,
        batch=batch,
        wheel=wheel,
        quick=quick,
        filter=filter,
        folder=folder,
    )
    sys.exit(run(request, json_to=json, plot_to=plot))


# These settings leave all arguments after the command's name to the command, also those that begin with a dash.
@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="A Python script, or any program, and its arguments.")
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, max=4096, help="How many processes.")],
) -> None:
    """Start a program several times on this host, as the ranks of a zerohop.Group: Group.from_env() finds the others.

    When one of them fails, the others are ended, and its exit status is returned.
    """
    from zerohop.cli.run import run as start

    sys.exit(start(command, ranks=ranks))


@app.command()
def serve(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder; no path of a client leads out of it.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", envvar="ZEROHOP_LISTEN", help="Where clients connect; a port of 0 is any that is free."
        ),
    ] = "127.0.0.1:0",
    read_only: Annotated[bool, typer.Option("--read-only", help="Let files be read only.")] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Threads that copy from and to the page cache. [default: 8 to 16]"),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="BYTES", help="Memory for data on its way to other hosts and GPUs, as 256Mi.")
    ] = "256Mi",
) -> None:
    """Serve the files of a folder to processes that call zerohop.storage.open_store(URL); Ctrl-C ends it.

    Clients on other hosts need the same secret on both sides: ZEROHOP_SECRET.
    """
    from zerohop.cli.serve import run

    sys.exit(run(folder, listen=listen, read_only=read_only, threads=threads, memory=memory))
