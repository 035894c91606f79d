"""Declares Explanation, which says which path a transfer takes, and why."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Explains why a transfer takes its path.

    Attributes:
        provider: name of the provider that was chosen, such as ``"shm"``.
        form: how it is used: ``"mapped"``, ``"ring"``, ``"peer"``, ``"rdma"`` or ``"stream"``.
        direct: whether the fabric reads and writes both memories itself; otherwise the bytes are staged in host
            buffers. Of files of this machine: whether all bytes moved between disk and memory, without the page cache.
            Of a server's: whether it moved them between its file and the memory without a lane.
        local_device: where this side's memory is.
        remote_device: where the peer's memory is.
        rejected: each other path and why it was not taken.
        registered: how NICs have registered the memories, once they have: ``"here"`` or ``"there"``, and the way of
            registration with the ways that failed before it.
        rails: the pairs of NIC ports that share a lane, once there is one: the port here and the port there that it is
            connected to, such as ``("mlx5_0 port 1", "mlx5_0 port 1")``.
        link: the link between two devices, once it is known: ``"nvlink"``, ``"pcie"``, ``"same device"``, ``"sim"``.
        no_kernels: why devices copy each page of a list by itself, which takes ten times as long and more; empty if one
            kernel copies all pages.
        protection: what is encrypted of that which goes to the peer on this path, and what is not; empty if nothing
            leaves the host.
        flows: number of flows over which large transfers go at once; 0 if the provider has none.
        kind: name of the Operation, such as ``"write_pages"``.
        outcome: bytes, time and rate of an Operation that has ended well; otherwise ``"in flight"``, ``"cancelled"``
            or ``"failed: ..."``.
        others: the paths of the other parts of an Operation that was split.
        way: the way of the bytes in words, where "direct" and "staged" do not say enough.
    """

    provider: str
    form: str
    direct: bool
    local_device: str
    remote_device: str
    rejected: tuple[tuple[str, str], ...]
    registered: tuple[tuple[str, str], ...] = ()
    rails: tuple[tuple[str, str], ...] = ()
    link: str = ""
    no_kernels: str = ""
    protection: str = ""
    flows: int = 0
    kind: str = ""
    outcome: str = ""
    others: tuple[str, ...] = ()
    way: str = ""

    def __str__(self) -> str:
        ways = ", and ".join(dict.fromkeys([self._way(), *self.others]))
        return f"{ways}, {self.outcome}" if self.outcome else ways

    def _way(self) -> str:
        if not self.provider:
            return self.kind
        how = self.way or ("direct" if self.direct else "staged")
        each = " page by page" if self.no_kernels and self.kind.endswith("_pages") else ""
        return f"{self.provider} ({self.link or self.form}) {self.local_device}→{self.remote_device} {how}{each}"

    def details(self) -> str:
        """Return several lines: the choice and how it works, and for every other path why it was not taken."""
        over = [f"  over {here} here and {there} there" for here, there in self.rails]
        known = [f"  the memory {where} is registered by {how}" for where, how in self.registered]
        slowly = [f"  each page of a list is copied by itself: {self.no_kernels}"] if self.no_kernels else []
        covered = [f"  {self.protection}"] if self.protection else []
        return "\n".join(
            [
                *(str(self), *over, *known, *slowly, *self._flows_in_words(), *covered),
                *(f"  not {name}: {why}" for name, why in self.rejected),
            ]
        )

    def _flows_in_words(self) -> list[str]:
        if self.flows == 1:
            return [
                "  large transfers go over one socket, as fast as one core copies; tcp_flows= on both sides adds more"
            ]
        return [f"  large transfers go over {self.flows} sockets at once"] if self.flows else []


def of_no_path(kind: str, outcome: str) -> Explanation:
    """Return the explanation of an Operation whose path is not known."""
    return Explanation("", "", False, "", "", (), kind=kind, outcome=outcome)
