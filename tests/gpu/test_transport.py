"""Transports and torch's tensors on GPUs: there, back, heard of, in the order of streams, and kept while they fly."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from gpu.others import EXPANDABLE, Other
from gpu.tensors import blank_tensor, bytes_of, options, random_tensor
from support.first_gpu import Still
from support.leaks import SETTLE_S
from support.patience import PATIENCE_S
from support.sizes import MIB

if TYPE_CHECKING:
    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
# Cycles for which a kernel waits: milliseconds on every GPU.
CYCLES = 2_000_000
pytestmark = pytest.mark.timeout(60)


def joined(context: zh.Context, other: Other, device: object = "cuda:0") -> zh.Transport:
    """A Transport here, connected to one of the other process."""
    transport = zh.Transport(device, ctx=context)
    transport.connect(other.ask("bind")["url"]).result(PATIENCE_S)
    return transport


class TestDevices:
    @pytest.mark.parametrize("device", ["cuda:0", 0, torch.device("cuda", 0), torch.device("cuda")], ids=repr)
    def test_names(self, device: object) -> None:
        """Of its own Context, which has the GPU; it is found out with no peer."""
        assert zh.Transport.supported(device), zh.Transport.why_unsupported(device)
        with zh.Transport(device) as transport:
            assert transport.device == "cuda:0"
            assert transport.register(blank_tensor(64)).device == "cuda:0"

    def test_that_there_are_not(self) -> None:
        device = torch.device("cuda", 63)
        why = zh.Transport.why_unsupported(device)
        assert "no device is called 'cuda:63'" in why
        assert "cuda:0" in why
        with pytest.raises(ValueError, match="cuda:63"):
            zh.Transport(device)

    def test_of_a_tensor(self, open_context: OpenContext) -> None:
        """Whose device is given as it is; a CPU tensor's, too, and both kinds go through either."""
        context = open_context(options())
        with Other(MIB) as other:
            for tensor in (random_tensor(MIB), torch.randint(0, 256, (MIB,), dtype=torch.uint8)):
                with joined(context, other, tensor.device) as transport:
                    assert transport.device == ("cuda:0" if tensor.is_cuda else "host")
                    for data in (tensor, tensor.cpu(), tensor.cuda()):
                        torch.cuda.synchronize()
                        assert transport.write(data, other.handle).result(PATIENCE_S) == MIB
                        other.expect(0, bytes_of(tensor))
                        other.ask("fill", 3)


@pytest.mark.parametrize("environment", [{}, EXPANDABLE], ids=["cudaMalloc", "expandable segments"])
class TestBetweenProcesses:
    def test_there_and_back(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        context = open_context(options())
        with Other(70 * MIB, environment) as other, joined(context, other) as transport:
            source, back = random_tensor(70 * MIB), blank_tensor(70 * MIB)
            write = transport.write(source, other.handle, notify=5)
            assert write.result(PATIENCE_S) == 70 * MIB
            assert str(write.explain()).startswith("p2p")
            assert "direct" in str(write.explain())
            assert other.ask("arrived") == {"value": 5, "nbytes": 70 * MIB}
            other.expect(0, bytes_of(source))
            assert transport.read(back, other.handle).result(PATIENCE_S) == 70 * MIB
            assert torch.equal(source, back)

    def test_from_the_other_side(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """Of the one that was connected to; the bytes are there when the notification is."""
        context = open_context(options())
        with Other(40 * MIB, environment) as other, joined(context, other) as transport:
            into = blank_tensor(40 * MIB)
            handle = bytes(transport.register(into).share("rw")).hex()
            for value in range(1, 10):
                other.ask("fill", value)
                waiting = transport.wait_for_write(PATIENCE_S)
                assert other.ask("push", handle, value)["moved"] == 40 * MIB
                assert waiting.result()[:2] == (value, 40 * MIB)
                assert torch.all(into == value).item()

    def test_views_of_a_tensor(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """At every alignment, into ranges that are longer: nothing beside them is touched."""
        context = open_context(options())
        with Other(MIB, environment) as other, joined(context, other) as transport:
            source = random_tensor(MIB)
            memory = transport.register(source)
            for offset, nbytes, to in ((0, 1, 0), (1, 63, 7), (4095, 4097, 4096), (3, 262_145, 65_537)):
                other.ask("fill", 9)
                assert (
                    transport.write(memory.view(offset, nbytes), other.handle[to:], notify=to).result(PATIENCE_S)
                    == nbytes
                )
                assert other.ask("arrived") == {"value": to, "nbytes": nbytes}
                expected = np.full(MIB, 9, np.uint8)
                expected[to : to + nbytes] = source[offset : offset + nbytes].cpu().numpy()
                other.expect(0, expected.tobytes())

    def test_many_as_one(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """Small and large ones in one Operation, which by a kernel and by the copy engine, and one notification."""
        context = open_context(options())
        with Other(16 * MIB, environment) as other, joined(context, other) as transport:
            source = random_tensor(16 * MIB)
            memory = transport.register(source)
            lengths = [1, 64, 4097, 256 * 1024, 256 * 1024 + 1, 2 * MIB] + [100 + i for i in range(1000)]
            edges = np.cumsum([0, *lengths])
            pairs = [
                (memory[int(begin) : int(end)], other.handle[int(begin) : int(end)])
                for begin, end in itertools.pairwise(edges)
            ]
            for value in range(1, 4):
                other.ask("fill", value)
                write = transport.write_many(pairs[::-1], notify=value)
                assert write.result(PATIENCE_S) == sum(lengths)
                assert other.ask("arrived") == {"value": value, "nbytes": sum(lengths)}
                expected = np.full(16 * MIB, value, np.uint8)
                expected[: edges[-1]] = source[: int(edges[-1])].cpu().numpy()
                other.expect(0, expected.tobytes())

    def test_the_peer_is_killed(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """Every write ends, and the Transport says why from then on; another one goes on."""
        context = open_context(options())
        with Other(256 * MIB, environment) as other, joined(context, other) as transport:
            source = random_tensor(256 * MIB)
            transport.write(source, other.handle).result(PATIENCE_S)
            posted = [transport.write(source, other.handle, notify=1) for _ in range(200)]
            waiting = transport.wait_for_write()
            other.kill()
            errors = [operation.exception(PATIENCE_S) for operation in posted]
            assert isinstance(waiting.exception(PATIENCE_S), zh.PeerLost)
            assert all(error is None or isinstance(error, zh.PeerLost) for error in errors)
            with pytest.raises(zh.PeerLost):
                transport.write(source, other.handle)
        with Other(MIB) as again, joined(context, again) as transport:
            transport.write(source[:MIB], again.handle, notify=2).result(PATIENCE_S)
            assert again.ask("arrived") == {"value": 2, "nbytes": MIB}
            again.expect(0, bytes_of(source[:MIB]))


class TestLifetime:
    @pytest.mark.parametrize("how", ["the tensor is deleted", "and the Transport too"])
    def test_a_tensor_deleted_while_its_write_flies(self, open_context: OpenContext, how: str) -> None:
        """It lives until nothing can touch it, and its memory goes to no other tensor; then it goes."""
        context = open_context(options())
        with Other(256 * MIB) as other, joined(context, other) as transport:
            warm = random_tensor(MIB)
            transport.write(warm, other.handle).result(PATIENCE_S)
            source = blank_tensor(256 * MIB, 7)
            address, held = source.data_ptr(), torch.cuda.memory_allocated()
            still = Still(open_context(options()))
            operation = transport.write(source, other.handle, stream=still.number)
            assert not operation.done()
            del source
            gc.collect()
            assert torch.cuda.memory_allocated() == held
            # What the allocator would give away next, were it free.
            next_one = torch.full((256 * MIB,), 9, dtype=torch.uint8, device="cuda:0")
            assert next_one.data_ptr() != address
            del next_one
            if how == "and the Transport too":
                transport.abort()
                assert isinstance(operation.exception(PATIENCE_S), zh.Closed)
                still.close()
            else:
                still.close()
                assert operation.result(PATIENCE_S) == 256 * MIB
                other.expect(0, b"\7" * (256 * MIB))
            del operation
            deadline = time.monotonic() + SETTLE_S
            while torch.cuda.memory_allocated() > held - 256 * MIB:
                more = torch.cuda.memory_allocated() - (held - 256 * MIB)
                assert time.monotonic() < deadline, f"{more} bytes are still kept: {context.statistics()}"
                context.flush().result(PATIENCE_S)
                gc.collect()

    def test_a_tensor_read_into_and_deleted(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(64 * MIB) as other, joined(context, other) as transport:
            reads = [transport.read(blank_tensor(64 * MIB), other.handle) for _ in range(10)]
            gc.collect()
            for read in reads:
                assert read.result(PATIENCE_S) == 64 * MIB


class TestStreams:
    def test_after_what_is_queued(self, open_context: OpenContext) -> None:
        """Nobody hears of it, either, before the stream has got there."""
        context = open_context(options())
        with Other(64 * MIB) as other, joined(context, other) as transport:
            source = blank_tensor(64 * MIB)
            transport.write(source, other.handle).result(PATIENCE_S)
            stream = torch.cuda.Stream()
            for value in range(1, 20):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(CYCLES)
                    source.fill_(value)
                write = transport.write(source, other.handle, notify=value, stream=stream)
                assert other.ask("arrived") == {"value": value, "nbytes": 64 * MIB}
                other.expect(0, bytes([value]) * (64 * MIB))
                write.result(PATIENCE_S)

    def test_a_stream_waits(self, open_context: OpenContext) -> None:
        """For a read's bytes, and for the notification of a write from the other side."""
        context = open_context(options())
        with Other(64 * MIB) as other, joined(context, other) as transport:
            back = blank_tensor(64 * MIB)
            handle = bytes(transport.register(back).share("rw")).hex()
            transport.read(back, other.handle).result(PATIENCE_S)
            stream = torch.cuda.Stream()
            for value in range(1, 20, 2):
                other.ask("fill", value)
                read = transport.read(back, other.handle, stream=stream)
                read.wait_on(stream)
                with torch.cuda.stream(stream):
                    assert (back != value).sum().item() == 0
                read.result(PATIENCE_S)
                other.ask("fill", value + 1)
                waiting = transport.wait_for_write(PATIENCE_S)
                waiting.wait_on(stream)
                with torch.cuda.stream(stream):
                    wrong = (back != value + 1).sum()
                other.ask("push", handle, value)
                assert waiting.result()[:2] == (value, 64 * MIB)
                with torch.cuda.stream(stream):
                    assert wrong.item() == 0

    def test_the_end_lets_the_stream_go(self, open_context: OpenContext) -> None:
        context = open_context(options())
        stream = torch.cuda.Stream()
        with Other(MIB) as other, joined(context, other) as transport:
            transport.write(blank_tensor(MIB), other.handle).result(PATIENCE_S)
            waiting = transport.wait_for_write()
            waiting.wait_on(stream)
            assert not stream.query()
            transport.abort()
            stream.synchronize()
            assert isinstance(waiting.exception(PATIENCE_S), zh.Closed)


def test_awaited(open_context: OpenContext) -> None:
    """Writes of several Transports, and what is heard of them, on one event loop."""
    context = open_context(options())

    async def use(other: Other, value: int) -> None:
        async with zh.Transport("cuda:0", ctx=context) as transport:
            await transport.connect(other.ask("bind")["url"])
            source, back = blank_tensor(MIB, value), blank_tensor(MIB)
            assert await transport.write(source, other.handle, notify=value) == MIB
            assert other.ask("arrived") == {"value": value, "nbytes": MIB}
            assert await transport.read(back, other.handle) == MIB
            assert torch.equal(source, back)

    async def main(others: list[Other]) -> None:
        await asyncio.gather(*(use(other, value) for value, other in enumerate(others, 1)))

    with Other(MIB) as first, Other(MIB) as second:
        asyncio.run(main([first, second]))
