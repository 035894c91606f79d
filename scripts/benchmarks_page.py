"""Writes docs/benchmarks.md from the files in bench/results/, or checks that it agrees with them.

benchmarks_page.py write|check
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_tables import beside_table, files_table, markdown, read_report, rows_section, targets_section

from zerohop.cli.bench.session import FULL
from zerohop.cli.bench.storage_plan import SERVED_NAMES
from zerohop.cli.console import human_bytes, human_time

if TYPE_CHECKING:
    from zerohop.cli.bench.results import Report

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "bench.json"
STORAGE = ROOT / "bench" / "results" / "storage.json"
DEATHS = ROOT / "bench" / "results" / "peer_death.json"
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

This page is made from [bench/results/bench.json](../bench/results/bench.json),
[storage.json](../bench/results/storage.json) and [peer_death.json](../bench/results/peer_death.json): `make bench`
measures, and writes them all.

{facts}

Two processes, driven from Python as a user would. Each row is measured in rounds; in each round the floor goes first,
the payload is new, and the target's bytes are compared with the source's at the end. A time is the median of all
measurements of all rounds, from the call to the end of the operation; `write_notify` is one way, from the call in one
process to the notification in the other. The floor is what the same machine gave in the same run to plain C++, or to
plain asyncio, without anything of zerohop. CPU is the processor time of the initiating process, all its threads, for
each operation.

| floor | what it is |
|---|---|
| memcpy | `memcpy` between a buffer and a mapping that the other process shares |
| memcpy per page | the same, one call for each page of the same lists |
| C++ ring | a single-producer single-consumer ring in shared memory, both processes spinning |
| flag in shared memory | 8 bytes and a sequence number in one cache line, both processes spinning, half a round trip |
| TCP socket, spinning | a message of a 64-byte header and the payload, and its echo; both ends ask until it is there |
| TCP or Unix socket, blocking | a message and its echo, in calls that sleep; with sleeping targets after a pause |
| asyncio, TCP or Unix socket | a message from one asyncio loop to another after the same pause, one way |
| TCP socket stream | the bytes one way, then one byte of answer |
| TLS socket stream | the same through a session of TLS 1.3 of the same OpenSSL, which has chosen the cipher suite |

"target polling": a thread there waits for notifications and does not sleep. "target asleep" and "await-asleep": a
pause before each operation, in which the other process, or both, have gone to sleep. `staged`: between two simulated
GPUs, through host buffers.

"encrypted": both Contexts have a secret and `encryption="all"`.

"views": parts of one memory, each with a handle of its own. The time is that of sharing all of them in the process that
owns the memory, and of the first reads of all in a process that has just started, which connects with them.
"first_use": the first read through one more handle of a connected peer, of an array of its own. "raw": arrays that the
caller did not register.
"""

PLOT = "\n![Latencies, rates and page lists beside their floors](../bench/results/bench.png)\n"

BESIDE = """
## Beside another call

Beside each row what took turns with it, round by round: the Context's own call, as many single writes, or the same call
with Memories, and how many times that the row takes. RdmaTransport's column is what torchcomms' documentation gives
between two hosts with GPUs, **a different fabric**, and how many times faster the row is than that.

"""

FILES = """
## Files

`{command}`: {facts}

One process reads blocks of a file of {size} through a Ring into an Iov, `storage_read` in order and `storage_random` in
random order, as many at once as the row says, by `prepare_many`, `submit` and `wait_array` of Python. "disk" goes past
the page cache (`O_DIRECT`), in a folder of `--folder`; "tmpfs" is in /dev/shm, without `O_DIRECT`. The floor is fio
(`apt-get install fio`), which reads the same file with as many at once by io_uring, with fixed buffers and files
(`--fixedbufs=1 --registerfiles=1`) and, as an Iov has them, huge pages (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`). The
two take turns of {seconds:g} s, {turns} each; the ratio is the median of those of the turns, as disks are not steady.
The row into a simulated GPU takes turns with the same reads into host memory. Verified is the whole file, read once in
the same way, and after each turn all that the memory has then. CPU is the processor time of the process for 10^9 bytes,
with that of the floor or of the row beside it.

"""

SERVED = """
### Files of a server

The same reads of a file in /dev/shm that a server in another process serves, over the provider that the row names, with
the same Ring and the same check of every byte. Over shm they take turns with reads of the same file by the client
itself, without a server, and with fio; over tcp with a raw stream of as many bytes between two processes, over one
blocking socket; those into a simulated GPU with the same into host memory; and several client processes, whose bytes
are added, with one of them alone. The ratio is to what they take turns with, but for fio. CPU is the processor time of
all clients, and of the server, for 10^9 bytes. fio's, here and above, is that of its process with the kernel's threads
that read for it, less what a run of 10 ms takes; the stream's was not measured.

"""

DEATH = """
## A killed peer

After `kill -9` of the peer: when the last of the operations in flight had ended with `PeerLost`, by how much memory
the dead process had touched. "pidfd" is when the kernel said so by itself, which it does once that memory is given
back. The bound is {bound:g} ms.

"""


def page(report: Report, files: Report, deaths: list[dict[str, Any]]) -> str:
    return "".join(
        [
            HEAD.format(facts=facts(report)),
            PLOT,
            targets_section(report, "##"),
            rows_section(report, "##"),
            BESIDE if any(row.beside for row in report.rows) else "",
            beside_table(report.rows) if any(row.beside for row in report.rows) else "",
            FILES.format(
                command=" ".join(files.command[:3]),
                facts=facts(files),
                size=human_bytes(FULL.file_bytes),
                seconds=FULL.file_seconds,
                turns=FULL.file_turns,
            ),
            files_table(files, served=False),
            SERVED + files_table(files, served=True) if any(row.name in SERVED_NAMES for row in files.rows) else "",
            DEATH.format(bound=deaths[0]["bound_ms"]),
            markdown(
                ("path", "memory touched", "in flight", "median", "worst", "pidfd"),
                [
                    (
                        str(row["form"]),
                        human_bytes(row["touched_bytes"]),
                        str(row["pending"]),
                        f"{row['last_ms']:.2f} ms",
                        f"{row['last_ms_worst']:.2f} ms",
                        f"{row['pidfd_ms']:.0f} ms",
                    )
                    for row in deaths
                ],
            ),
        ]
    )


def facts(report: Report) -> str:
    cpu, kernel, memory = (report.machine[part] for part in ("cpu", "kernel", "memory"))
    virtual = " in a virtual machine" if kernel["virtual"] else ""
    others = report.other_processors
    noise = "" if others is None else f" Other processes kept {others:.2f} processors busy meanwhile."
    wrong = sum(not row.verified for row in report.rows)
    verified = "Every byte of every row was verified." if not wrong else f"**{wrong} rows had wrong bytes.**"
    return (
        f"zerohop {report.zerohop}, {report.measured[:10]}: {cpu['usable']} processors ({cpu['model']},"
        f" {cpu['architecture']}){virtual}, {human_bytes(memory['total'])} of memory, Linux {kernel['release']}."
        f" {len(report.rows)} rows in {human_time(report.seconds)}.{noise} {verified}"
    )


def main() -> int:
    text = page(read_report(RESULTS), read_report(STORAGE), json.loads(DEATHS.read_text(encoding="utf-8")))
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(
        "docs/benchmarks.md differs from bench/results/: python scripts/benchmarks_page.py write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
