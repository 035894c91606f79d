"""Declares Explaining, which says how a group carries a collective out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop.group.collectives.nccl_library import check_type
from zerohop.group.collectives.operands import check_order, is_tensor, numbers_of
from zerohop.group.collectives.plan import KINDS, OF_PARTS, SHARED_MEMORY, algorithm_of, pieces_in
from zerohop.group.collectives.reducing import Reducing, check_operator
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.core.face import Local

_REDUCE: Final = ("reduce", "allreduce", "reduce_scatter")
_WITHOUT_BYTES: Final = ("barrier", "exchange", "split")
_SHOWN: Final = 8  # ranks in a text


class CollectiveExplanation(NamedTuple):
    """Explains how a collective is carried out.

    Attributes:
        kind: name of the method, such as ``"allreduce"``.
        backend: ``"zerohop"`` or ``"nccl"``.
        algorithm: the way of the bytes between the ranks, such as ``"ring"``; ``"shared memory"`` if all of them read
            it there; ``"copy"`` if there is one rank. Empty: NCCL chooses it.
        pieces: into how many pieces each block between two ranks is cut, so that transfer and reduction overlap; 0 if
            NCCL decides it.
        reduces: what computes: on the host ``"numpy"`` or ``"torch"``; on a GPU ``"torch on cuda:0"`` or
            ``"nccl on cuda:0"``; empty if nothing is computed.
        device: where ``x`` is; empty without one.
        nbytes: bytes of ``x``.
        over: each other rank, and the provider of the lane that messages to it take; empty if it is not connected yet.
            Messages connect ranks at their first use.
    """

    kind: str
    backend: str
    algorithm: str
    pieces: int
    reduces: str
    device: str
    nbytes: int
    over: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        how = self.algorithm or "NCCL chooses the algorithm"
        if self.pieces > 1:
            how += f" in {self.pieces} pieces a block"
        texts = [f"{self.kind} by {self.backend}: {how}"]
        if self.device:
            texts.append(f"{self.nbytes} bytes on {self.device}")
        if self.reduces:
            texts.append(f"{self.reduces} reduces")
        known = sorted({provider for _, provider in self.over if provider})
        messages = "its messages that agree" if self.backend == "nccl" else "messages"
        texts += [f"{messages} go over {provider} to {self._ranks(provider)}" for provider in known]
        if any(not provider for _, provider in self.over):
            texts.append(f"not connected yet: {self._ranks('')}")
        return ", ".join(texts)

    def _ranks(self, provider: str) -> str:
        ranks = [rank for rank, there in self.over if there == provider]
        more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_SHOWN]))}{more}"


class Explaining(Reducing):
    """Says how each collective would be carried out."""

    def explain(
        self, kind: str, x: Local | None = None, op: str = "sum", *, backend: str = "zerohop"
    ) -> CollectiveExplanation:
        """Say how a collective would be carried out, as text with ``str()``. Nothing is sent, and no rank is reached.

        The ranks of a group find out with its first collective whether they share memory. Before that the algorithm is
        the one without.

        Args:
            kind: name of the method, such as ``"allreduce"``.
            x: its array; of ``scatter`` that of the root. None: ``barrier``, ``exchange`` and ``split`` have none.
            op: the operator, of those that reduce.
            backend: ``"zerohop"`` or ``"nccl"``.

        Raises:
            ValueError: no such collective, or not with this backend; ``x`` is missing, or cannot be cut into parts.
            TypeError, Unsupported, Closed: as the collective itself.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is the name of a collective ({', '.join(KINDS)}), not {shown(str(kind))}")
        self._check()
        if kind in _WITHOUT_BYTES:
            if backend != "zerohop":
                raise ValueError(f"{kind} has no backend {shown(str(backend))}. Fix: leave backend out")
            return self._explained(kind, backend, self._algorithm(kind, 0), 1, "", "", 0)
        if x is None:
            raise ValueError(f"{kind} is explained for an array. Fix: pass the x that it will have")
        nccl = self._by_nccl(backend, x=x)
        reduces = ""
        if kind in _REDUCE:
            check_operator(op)
            numbers = numbers_of("x", x, op, self._view)
            view = numbers.view
            if nccl is not None:
                check_type("x", numbers.dtype)
            reduces = "numpy" if isinstance(numbers.flat, np.ndarray) else f"torch on {view.device}"
        else:
            check_order("x", x)
            view = self._view(x)
        each, rest = divmod(view.nbytes, self.size) if kind in OF_PARTS else (view.nbytes, 0)
        if rest:
            raise ValueError(f"x has {view.nbytes} bytes, which are no {self.size} parts of one length")
        if nccl is not None:
            return self._explained(kind, backend, "", 0, reduces and f"nccl on {x_device(x)}", x_device(x), view.nbytes)
        algorithm = self._algorithm(kind, each)
        pieces = pieces_in(kind, each, self.size, algorithm)
        if self.size == 1:
            reduces = ""
        elif reduces and algorithm == SHARED_MEMORY:
            reduces = reduces.partition(" on ")[0]  # the host does, for few elements of a GPU as well
        return self._explained(kind, backend, algorithm, pieces, reduces, view.device, view.nbytes)

    def _explained(
        self, kind: str, backend: str, algorithm: str, pieces: int, reduces: str, device: str, nbytes: int
    ) -> CollectiveExplanation:
        over = tuple((rank, self._provider_of(rank)) for rank in range(self.size) if rank != self.rank)
        return CollectiveExplanation(kind, backend, algorithm, pieces, reduces, device, nbytes, over)

    def _algorithm(self, kind: str, nbytes: int) -> str:
        return algorithm_of(kind, nbytes, self.size, shared=self._shared.meetings is not None)

    def _provider_of(self, rank: int) -> str:
        known = self._members.known(self._team.ranks[rank])
        return "" if known is None else known.provider


def x_device(x: Any) -> str:
    """Return the name of the device that an argument is on."""
    return str(x.device) if is_tensor(x) else "host"
