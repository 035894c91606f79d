"""Resource limits of a peer process, its sim devices' faults, and what calls come to under them."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from support.calls import CALLS, open_world
from support.native import engine_of
from support.outcomes import Outcome, attempt

if TYPE_CHECKING:
    import zerohop as zh
    from support.options import Options


class Limits:
    """Mixed into Service."""

    context: zh.Context

    def leave_descriptors(self, free: int) -> None:
        """Let the process open no more than `free` descriptors beyond those it has."""
        limit = 0
        while free or _is_open(limit):
            free -= not _is_open(limit)
            limit += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def limit_file_bytes(self, nbytes: int) -> None:
        """No file, a memfd included, may become larger (ftruncate and fallocate give EFBIG)."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def limit_address_space(self, extra: int) -> None:
        """Let the process map no more than `extra` bytes beyond what it has (mmap gives ENOMEM)."""
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def lift_limits(self) -> None:
        """Back to the hard limits, which nobody lowers."""
        for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
            hard = resource.getrlimit(which)[1]
            resource.setrlimit(which, (hard, hard))

    def try_alloc(self, nbytes: int, device: str = "host") -> Outcome:
        """Allocate and give back."""
        return attempt(lambda: self.context.alloc(nbytes, device=device).close())

    def try_open(self, options: Options) -> Outcome:
        """Open a further Context and close it."""
        return attempt(lambda: options.open().close())

    def try_call(self, name: str, free: int, options: Options) -> Outcome:
        """Make one of the public calls with no more than `free` descriptors left to open."""
        world = open_world(options.open(), options.open())
        self.leave_descriptors(free)
        try:
            return attempt(lambda: CALLS[name](world))
        finally:
            self.lift_limits()
            world.close()

    def inject(self, device: int, what: Literal["alloc", "copy", "lost"], count: int) -> None:
        """The next `count` allocations or copies of the sim device fail; a lost device stays lost."""
        engine_of(self.context).sim_inject(device, what, count)

    def delay(self, device: int, ns_per_copy: int, bytes_per_us: int) -> None:
        engine_of(self.context).sim_delay(device, ns_per_copy, bytes_per_us)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
