"""Names the rows about kernels that send, and plans them."""

from __future__ import annotations

from typing import Final

from zerohop.cli.bench.rows import Case, is_gpu

# Half a round trip of put and signal; the same with a wait that has no time, beside it.
PING: Final = "device_ping"
WAIT: Final = "device_wait"
# Puts of all programs together.
PUT: Final = "device_put"
# Entries that the host takes out of the FIFO; and a question of a kernel that the host answers.
FIFO: Final = "device_fifo"
TURN: Final = "device_turn"
DEVICE_NAMES: Final = (PING, WAIT, PUT, FIFO, TURN)
PEER: Final = "peer"
PROXY: Final = "proxy"
LANGUAGES: Final = ("triton", "c++")
FEW_BLOCKS: Final = 8
_BLOCKS: Final = f", {FEW_BLOCKS} blocks"
_KI, _MI = 1 << 10, 1 << 20
PING_BYTES: Final = (4, 8 * _KI, 64 * _KI)
_PUT_BYTES: Final = (1 * _MI, 256 * _MI)
# Most microseconds for one entry, by the bytes that it puts; 0 is a fence.
FIFO_TARGET_US: Final = {0: 0.05, 8: 0.2}


def language_of(case: Case) -> str:
    """Return the language of a case's kernels."""
    assert case.mode is not None
    return case.mode.removesuffix(_BLOCKS)


def has_few_blocks(case: Case) -> bool:
    """Tell whether a case's kernels have few blocks; otherwise they have one for each multiprocessor."""
    return case.mode is not None and case.mode.endswith(_BLOCKS)


def kernel_cases(name: str, src: str | None, dst: str | None, sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of a name, whose kernels run on a GPU and reach memory of another one, or of the host."""
    if src is None or dst is None or not (is_gpu(src) and is_gpu(dst)):
        return []
    cases = []
    for language in LANGUAGES:
        if name == PING:
            direct = [Case(name, "p2p", src, dst, nbytes, form=PEER, mode=language) for nbytes in sizes or PING_BYTES]
            small = [
                Case(name, each, src, dst, sizes[0] if sizes else 8, form=PROXY, mode=language)
                for each in ("p2p", "shm", "tcp")
            ]
            cases += [*direct, *small]
        elif name == WAIT:
            cases += [Case(name, "p2p", src, dst, nbytes, form=PEER, mode=language) for nbytes in sizes or (4,)]
        elif name == PUT:
            cases += [
                Case(name, "p2p", src, dst, nbytes, form=PEER, mode=mode)
                for nbytes in sizes or _PUT_BYTES
                for mode in (language, f"{language}{_BLOCKS}")
            ]
        elif name == FIFO:
            cases += [Case(name, "shm", src, "host", nbytes, form=PROXY, mode=language) for nbytes in FIFO_TARGET_US]
        else:
            cases.append(Case(name, "shm", src, "host", form=PROXY, mode=language))
    return cases
