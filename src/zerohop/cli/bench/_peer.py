"""Runs the second process of the benchmark: ``python -m zerohop.cli.bench._peer``, driven by `zerohop.cli.peer`."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from contextlib import ExitStack, closing

import numpy as np

import zerohop
from zerohop._floors import (
    Flag,
    GpuMemory,
    Ring,
    socket_pong,
    socket_pong_spinning,
    socket_receive,
    sockets_receive,
    tls_receive,
)
from zerohop.cli.bench import floors, notify
from zerohop.cli.bench.certificates import self_signed
from zerohop.cli.bench.device_side import KernelSide
from zerohop.cli.bench.group_side import GroupSide
from zerohop.cli.bench.session import TIMEOUT, LocalMemory, cut, protected
from zerohop.cli.bench.tensors import gpu_array
from zerohop.cli.payload import Octets, digest, random_bytes
from zerohop.cli.peer import Answer, accept, commands_of, serve
from zerohop.config.settings import UNSET


class BenchPeer:
    """Holds one Context and one memory that the first process reaches; each method is a command.

    Attributes:
        context: the Context, once `open` has made it.
    """

    context: zerohop.Context

    def __init__(self) -> None:
        """Open nothing yet."""
        self._opened = ExitStack()
        self._memories: list[LocalMemory] = []
        # The Transport that was requested last; the one before is dropped, and so closed.
        self._transport: zerohop.Transport | None = None

    @property
    def memory(self) -> LocalMemory:
        """Return the memory that the first process reaches; of several memories, the last."""
        assert self._memories, "allocate comes first"
        return self._memories[-1]

    def open(
        self,
        providers: list[str] | None,
        sim_devices: int,
        spin_us: float | None,
        secret: str | None = None,
        flows: int = 1,
    ) -> Answer:
        """Open a Context; spin_us None keeps the default; with a secret everything is encrypted."""
        spin = UNSET if spin_us is None else spin_us
        context = zerohop.Context(
            providers=providers, sim_devices=sim_devices, spin_us=spin, tcp_flows=flows, **protected(secret)
        )
        self.context = self._opened.enter_context(context)
        return {"url": context.url}

    def transport(self) -> Answer:
        """Make a Transport for the first process to join."""
        self._transport = zerohop.Transport(ctx=self.context)
        return {"url": self._transport.bind()}

    def close(self) -> None:
        """Close the Context and the memory that is still open."""
        self.release()
        self._transport = None
        self._opened.close()

    def allocate(self, kind: str, nbytes: int) -> Answer:
        """Make one more memory, and share all of it."""
        self._memories.append(LocalMemory(self.context, kind, nbytes))
        return {"handle": bytes(self.memory.memory.share("rw")).hex()}

    def share_views(self, count: int, nbytes: int) -> Answer:
        """Share the first `count` parts of the memory by handles of their own; return these and the nanoseconds."""
        memory = self.memory.memory
        start = time.perf_counter_ns()
        handles = [memory[at : at + nbytes].share("r") for at in range(0, count * nbytes, nbytes)]
        took = time.perf_counter_ns() - start
        return {"ns": took, "handles": [bytes(handle).hex() for handle in handles]}

    def share_arrays(self, kind: str, count: int, nbytes: int, filled: int, seed: int) -> Answer:
        """Make arrays of `nbytes`, fill the first bytes of each, and share each; "parts" and a GPU: of one allocation.

        The filled bytes of all, one after the other, are the random bytes of `seed`.
        """
        how, _, device = kind.partition(" ")
        whole = gpu_array(count * nbytes, device) if how == "parts" else None
        payload = random_bytes(seed, count * filled)
        handles = []
        for number in range(count):
            part = None if whole is None else whole[number * nbytes : (number + 1) * nbytes]
            self._memories.append(LocalMemory(self.context, kind, nbytes, what=part))
            self.memory.put(payload[number * filled : (number + 1) * filled])
            handles.append(bytes(self.memory.memory.share("r")).hex())
        return {"handles": handles}

    def read_views(self, handles: list[str], nbytes: int) -> Answer:
        """Read through all handles at once into one memory, part by part; return the time that it took."""
        memory, remotes = self.memory.memory, list(map(accept, handles))
        cpu, start = time.process_time_ns(), time.perf_counter_ns()
        reads = [self.context.read(each, memory[at * nbytes : (at + 1) * nbytes]) for at, each in enumerate(remotes)]
        zerohop.wait_all(reads, TIMEOUT)
        return {"ns": time.perf_counter_ns() - start, "cpu_ns": time.process_time_ns() - cpu}

    def release(self) -> None:
        """Close all memory."""
        while self._memories:
            self._memories.pop().close()

    def fill(self, seed: int, nbytes: int) -> None:
        """Fill the memory with random bytes."""
        self.memory.put(random_bytes(seed, nbytes))

    def flip(self, mask: int) -> None:
        """Change every byte of the memory."""
        self.memory.flip(mask)

    def clear(self) -> None:
        """Fill the memory with zeros."""
        self.memory.put(np.zeros(self.memory.memory.nbytes, np.uint8))

    def digest(self, nbytes: int, number: int = -1) -> Answer:
        """Digest the first `nbytes` of the memory, or of the memory of that number."""
        return {"digest": self._memories[number].digest(nbytes)}

    def notify(self, handle: str, value: int) -> None:
        """Notify the owner of a handle."""
        self.context.notify(accept(handle), value).result(TIMEOUT)

    def poll(self, stop: int) -> None:
        """Wait in Python until the notification `stop` comes; the Context's settings decide how it waits."""
        while self.context.notification(timeout=TIMEOUT).result().value != stop:
            pass

    def pong(self, mode: str, rounds: int, message_bytes: int, seed: int, handle: str, total: int, kind: str) -> Answer:
        """Answer a ping-pong, from memory of `kind`."""
        remote = accept(handle)
        with closing(LocalMemory(self.context, kind, total)) as source:
            source.put(random_bytes(seed, total))
            outlets = cut(source.memory, remote, message_bytes, rounds)
            if mode in notify.BLOCKING:
                notify.pong(self.context, outlets)
                return {"times": []}
            return {"times": asyncio.run(notify.pong_async(self.context, outlets, asleep=mode == "await-asleep"))}

    def read_digest(self, handle: str) -> Answer:
        """Read all of a handle and digest it."""
        remote = accept(handle)
        target = np.zeros(remote.nbytes, np.uint8)
        self.context.read(remote, target).result(TIMEOUT)
        return {"digest": digest(target)}

    def cpu_seconds(self) -> Answer:
        """Return the processor time of this process."""
        return {"seconds": time.process_time()}


class KernelPeer:
    """Runs the other side of the rows about kernels; each method is a command."""

    def __init__(self, peer: BenchPeer) -> None:
        """Open nothing yet."""
        self._peer = peer

    def kernels_open(self, device: str, nbytes: int, *, on_host: bool) -> Answer:
        """Make memory for kernels, and share the inbox."""
        self._side = KernelSide(self._peer.context, device, nbytes, on_host=on_host)
        return {"handle": bytes(self._side.inbox.share("rw")).hex()}

    def kernels_queue(self, handle: str, mode: str) -> None:
        """Open a Queue to the first process's inbox."""
        self._side.open(accept(handle), mode)

    def kernels_fill(self, seed: int, nbytes: int) -> None:
        """Fill the memory that kernels send from with random bytes."""
        self._side.put(random_bytes(seed, nbytes))

    def kernels_run(
        self, language: str, name: str, arguments: list[int], blocks: int, warps: int, how: int, block: int
    ) -> None:
        """Run a kernel, and wait for it."""
        self._side.run(language, name, *arguments, blocks=blocks, warps=warps, how=how, block=block)

    def kernels_digest(self, nbytes: int) -> Answer:
        """Digest what kernels of the first process have put here."""
        return {"digest": self._side.digest(nbytes)}

    def kernels_clear(self) -> None:
        """Poison the inbox, and make its signal zero."""
        self._side.clear()

    def kernels_close(self) -> None:
        """Close the Queue and the memory."""
        self._side.close()


class GroupPeer:
    """Runs the second rank of the rows about ranks; each method is a command."""

    def __init__(self, peer: BenchPeer) -> None:
        """Open nothing yet."""
        self._peer = peer

    def group_open(self, folder: str, nbytes: int, device: str) -> None:
        """Take the second rank's place."""
        self._side = GroupSide(self._peer.context, 1, folder, nbytes, device)

    def group_exchange(self, seed: int, mode: str, rounds: int) -> Answer:
        """Receive and send in turn; return what was received at last, and the processor time."""
        self._side.fill(seed)
        cpu = time.process_time()
        self._side.exchange(mode, rounds, first=False)
        return {"digest": self._side.received(), "cpu_s": time.process_time() - cpu}

    def group_count(self, count: int, mode: str) -> Answer:
        """Wait for active messages."""
        return {"count": self._side.count(count, mode)}

    def group_meet(self, rounds: int) -> None:
        """Wait for the first rank in each round."""
        self._side.meet(rounds)

    def group_reduce(self, rounds: int, seed: int) -> Answer:
        """Add arrays."""
        return {"right": self._side.reduce(rounds, seed)[1]}

    def group_close(self) -> None:
        """Leave the group."""
        self._side.close()


class FloorPeer:
    """Runs the other side of the floors; uses no zerohop code."""

    def __init__(self) -> None:
        """Prepare; `floor_open` brings the descriptors."""
        self._fds: dict[str, int] = {}
        self._ring_bytes = 0
        self._target: Octets = np.zeros(0, np.uint8)
        self._allocations: list[GpuMemory] = []

    def floor_open(self, descriptors: dict[str, int], ring_bytes: int) -> None:
        """Take the inherited descriptors by name."""
        self._fds, self._ring_bytes = descriptors, ring_bytes

    def _room(self, nbytes: int) -> Octets:
        if self._target.size != nbytes:
            self._target = np.zeros(nbytes, np.uint8)
        self._target.fill(0)
        return self._target

    def floor_shared_digest(self, nbytes: int) -> Answer:
        """Digest the shared memory as this process sees it."""
        with mmap.mmap(self._fds["shared"], os.fstat(self._fds["shared"]).st_size) as view:
            return {"digest": digest(view[:nbytes])}

    def floor_target_digest(self, nbytes: int) -> Answer:
        """Digest the bytes that the last ring or stream brought."""
        return {"digest": digest(self._target[:nbytes])}

    def floor_ring(self, target_bytes: int, nbytes: int) -> None:
        """Receive from the ring."""
        target = self._room(target_bytes)
        Ring(self._fds["ring"], self._ring_bytes).receive(target, nbytes, TIMEOUT)

    def floor_flag(self, rounds: int, seed: int) -> None:
        """Answer the flag."""
        Flag(self._fds["flag"]).pong(rounds, seed, TIMEOUT)

    def floor_pong(self, which: str, nbytes: int, rounds: int, *, spinning: bool = False) -> None:
        """Echo over a socket."""
        pong = socket_pong_spinning if spinning else socket_pong
        pong(self._fds[which], nbytes, rounds, TIMEOUT)

    def floor_pong_asyncio(self, which: str, nbytes: int, rounds: int, pause: float) -> Answer:
        """Answer over a socket from an event loop."""
        return {"times": asyncio.run(floors.asyncio_pong(self._fds[which], bytes(nbytes), rounds, pause))}

    def floor_receive(self, nbytes: int, rounds: int) -> None:
        """Receive a stream over TCP."""
        socket_receive(self._fds["tcp"], self._room(nbytes), rounds, TIMEOUT)

    def floor_receive_flows(self, nbytes: int, flows: int, rounds: int) -> None:
        """Receive parts of a stream over several sockets at once."""
        fds = [self._fds[f"flow{number}"] for number in range(flows)]
        sockets_receive(fds, self._room(nbytes), rounds, TIMEOUT)

    def floor_receive_tls(self, nbytes: int, rounds: int) -> None:
        """Receive a stream over TCP, through TLS."""
        tls_receive(self._fds["tcp"], self._room(nbytes), rounds, *self_signed(), TIMEOUT)

    def floor_allocate(self, device: int, count: int, nbytes: int, filled: int, seed: int) -> Answer:
        """Allocate memory of a GPU, fill the first bytes of each allocation, and return the driver's handles."""
        payload = random_bytes(seed, count * filled)
        for number in range(count):
            self._allocations.append(GpuMemory(device, nbytes))
            self._allocations[-1].fill(payload[number * filled : (number + 1) * filled])
        return {"handles": [each.handle().hex() for each in self._allocations]}

    def floor_free(self) -> None:
        """Free what `floor_allocate` has allocated."""
        self._allocations.clear()


if __name__ == "__main__":
    with closing(BenchPeer()) as peer:
        serve(commands_of(peer, KernelPeer(peer), GroupPeer(peer), FloorPeer()))
