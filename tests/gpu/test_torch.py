"""torch's tensors on GPUs: in and out without a copy, from every allocator that torch has."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from gpu.others import EXPANDABLE, Other
from gpu.tensors import blank_tensor, bytes_of, options, random_tensor
from support.first_gpu import Still
from support.patience import PATIENCE_S
from support.sizes import MIB

if TYPE_CHECKING:
    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("environment", [{}, EXPANDABLE], ids=["cudaMalloc", "expandable segments"])
class TestBetweenProcesses:
    def test_there_and_back(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        context = open_context(options())
        with Other(70 * MIB, environment) as other:
            source, back = random_tensor(70 * MIB), blank_tensor(70 * MIB)
            operation = context.write(source, other.handle, notify=5)
            assert operation.result(PATIENCE_S) == 70 * MIB
            assert "direct" in str(operation.explain())
            assert str(operation.explain()).startswith("p2p")
            assert other.ask("notification") == {"value": 5, "nbytes": 70 * MIB}
            other.expect(0, bytes_of(source))
            context.read(other.handle, back).result(PATIENCE_S)
            assert torch.equal(source, back)

    def test_pages_of_every_size_and_alignment(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        context = open_context(options())
        rng = np.random.default_rng()
        with Other(66 * MIB, environment) as other:
            source = random_tensor(66 * MIB)
            memory = context.register(source)
            for page, offset in ((16384, 0), (1024, 0), (1000, 8), (1000, 4), (778, 2), (777, 3), (1, 0), (65536, 0)):
                count = min(1000, 64 * MIB // page)
                here, there = rng.permutation(count), rng.permutation(count)
                span = slice(offset, offset + count * page)
                other.ask("fill", 7)
                context.write_pages(memory[span], other.handle[span], here, there, page_bytes=page, notify=page).result(
                    PATIENCE_S
                )
                assert other.ask("notification") == {"value": page, "nbytes": count * page}
                expected = np.full(count * page + 2 * offset, 7, np.uint8)
                pages = source[span].cpu().numpy().reshape(count, page)
                expected[span].reshape(count, page)[there] = pages[here]
                other.expect(0, expected.tobytes())
                back = blank_tensor(count * page, 9)
                context.read_pages(other.handle[span], back, there, here, page_bytes=page).result(PATIENCE_S)
                assert np.array_equal(back.cpu().numpy().reshape(count, page), pages)

    def test_host_memory_at_one_end(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        context = open_context(options())
        with Other(5 * MIB, environment) as other:
            data = np.random.default_rng().integers(0, 256, 5 * MIB, dtype=np.uint8)
            operation = context.write(data, other.handle)
            operation.result(PATIENCE_S)
            assert str(operation.explain()).startswith("p2p (pcie) host→cuda:0 direct")
            other.expect(0, data.tobytes())
            pinned = torch.zeros(5 * MIB, dtype=torch.uint8).pin_memory()
            context.read(other.handle, pinned).result(PATIENCE_S)
            assert np.array_equal(pinned.numpy(), data)

    def test_the_peer_is_killed(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """In the middle of large writes and of a page list: each ends, by name, and the rest goes on."""
        context = open_context(options())
        with Other(256 * MIB, environment) as other:
            source = random_tensor(256 * MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            pages = np.arange(1 << 14)
            posted = [context.write(source, other.handle) for _ in range(200)]
            posted += [context.write_pages(source, other.handle, pages, pages, page_bytes=16384) for _ in range(20)]
            # However fast the GPU is, this one has not ended.
            still = Still(open_context(options()))
            held = context.write(source, other.handle, stream=still.number)
            try:
                other.kill()
                errors = [operation.exception(PATIENCE_S) for operation in posted]
                assert isinstance(held.exception(PATIENCE_S), zh.PeerLost)
            finally:
                still.close()
        assert all(error is None or isinstance(error, zh.PeerLost) for error in errors)
        with Other(MIB, environment) as again:
            context.write(source[:MIB], again.handle).result(PATIENCE_S)
            again.expect(0, bytes_of(source[:MIB]))

    def test_the_owner_drops_what_a_peer_has(self, open_context: OpenContext, environment: dict[str, str]) -> None:
        """The Memory keeps the tensor: what is written still goes there, and to no memory of anybody else."""
        context = open_context(options())
        with Other(30 * MIB, environment) as other:
            source = random_tensor(30 * MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            other.ask("drop")
            context.write(source, other.handle).result(PATIENCE_S)
            back = torch.empty_like(source)
            context.read(other.handle, back).result(PATIENCE_S)
            assert torch.equal(source, back)
            other.ask("close", 5)
            with pytest.raises(zh.AccessDenied):
                context.write(source, other.handle).result(PATIENCE_S)


class TestRegistration:
    def test_one_for_all_tensors_of_an_allocation(self, open_context: OpenContext) -> None:
        context = open_context(options())
        whole = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda:0")
        parts = [context.register(part) for part in whole.split(MIB)]
        assert context.statistics().registrations == 1
        assert [part.address for part in parts] == [whole.data_ptr() + i * MIB for i in range(20)]

    def test_a_list(self, open_context: OpenContext) -> None:
        context = open_context(options())
        whole = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda:0")
        host = np.zeros(10, np.uint8)
        memories = context.register([*whole.split(MIB), host, whole])
        assert [memory.nbytes for memory in memories] == [*[MIB] * 20, 10, 20 * MIB]
        assert memories[20].device == "host"
        assert memories[3].address == whole.data_ptr() + 3 * MIB

    def test_a_list_is_registered_whole_or_not_at_all(self, open_context: OpenContext) -> None:
        context = open_context(options())
        whole = torch.empty(MIB, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(TypeError):
            context.register([whole, whole, "no memory"])

    def test_freed_memory_is_never_taken_for_what_comes_after_it(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(40 * MIB) as other:
            first = random_tensor(40 * MIB)
            addresses = [first.data_ptr()]
            context.write(first, other.handle).result(PATIENCE_S)
            for _ in range(5):
                del first
                torch.cuda.empty_cache()
                first = random_tensor(40 * MIB)
                addresses.append(first.data_ptr())
                context.write(first, other.handle).result(PATIENCE_S)
                other.expect(0, bytes_of(first))
            assert len(set(addresses)) < len(addresses), "the test means nothing where no address ever comes back"

    def test_forms(self, open_context: OpenContext) -> None:
        """Of one tensor, its DLPack, its array interface and its raw pointer are the same memory."""
        cupy: Any = pytest.importorskip("cupy")
        context = open_context(options())
        tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda:0")
        array = cupy.from_dlpack(tensor)
        raw = (tensor.data_ptr(), MIB, "cuda:0")
        memories = [context.register(x) for x in (tensor, array, raw, tensor.view(torch.bfloat16))]
        assert {(memory.address, memory.nbytes, memory.device) for memory in memories} == {
            (tensor.data_ptr(), MIB, "cuda:0")
        }
        assert context.statistics().registrations == 1

    def test_managed_memory_is_refused(self, open_context: OpenContext) -> None:
        cupy: Any = pytest.importorskip("cupy")
        context = open_context(options())
        managed = cupy.cuda.malloc_managed(MIB)
        with pytest.raises(zh.Unsupported, match="managed") as caught:
            context.register((managed.ptr, MIB, "cuda:0"))
        assert caught.value.fix

    def test_another_device_than_it_is_on(self, open_context: OpenContext) -> None:
        context = open_context(
            options(),
        )
        tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(ValueError, match="cuda"):
            context.register((tensor.data_ptr(), MIB, "cuda:7"))

    @pytest.mark.parametrize("make", ["strided", "negative", "conjugate"])
    def test_what_is_not_one_range(self, open_context: OpenContext, make: str) -> None:
        context = open_context(options())
        context.register(torch.zeros(8, device="cuda:0")).close()
        tensor = {
            "strided": lambda: torch.zeros(8, 8, device="cuda:0")[:, :4],
            "negative": lambda: torch.zeros(8, dtype=torch.complex64, device="cuda:0").conj().imag,
            "conjugate": lambda: torch.zeros(8, dtype=torch.complex64, device="cuda:0").conj(),
        }[make]()
        with pytest.raises(ValueError, match=r"contiguous|resolve"):
            context.register(tensor)

    def test_more_than_there_is(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with pytest.raises(zh.RegistrationFailed):
            context.alloc(1 << 45, "cuda:0")
        context.alloc(MIB, "cuda:0").close()


class TestStreams:
    def test_after_what_is_queued(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(64 * MIB) as other:
            source = blank_tensor(64 * MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            stream = torch.cuda.Stream()
            for value in range(1, 20):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(2_000_000)
                    source.fill_(value)
                context.write(source, other.handle, stream=stream).result(PATIENCE_S)
                other.expect(0, bytes([value]) * (64 * MIB))

    def test_a_stream_waits(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(256 * MIB) as other:
            back = blank_tensor(256 * MIB)
            context.read(other.handle, back).result(PATIENCE_S)
            stream = torch.cuda.Stream()
            for value in range(1, 20):
                other.ask("fill", value)
                operation = context.read(other.handle, back, stream=stream)
                operation.wait_on(stream)
                with torch.cuda.stream(stream):
                    assert (back != value).sum().item() == 0
                operation.result(PATIENCE_S)

    def test_the_default_stream(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(MIB) as other:
            source = blank_tensor(MIB)
            for value in range(1, 10):
                source.fill_(value)
                operation = context.write(source, other.handle, stream=torch.cuda.current_stream())
                operation.wait_on(torch.cuda.current_stream())
                source.fill_(0)
                operation.result(PATIENCE_S)
                other.expect(0, bytes([value]) * MIB)

    def test_a_failure_lets_the_stream_go(self, open_context: OpenContext) -> None:
        context = open_context(options())
        stream = torch.cuda.Stream()
        with Other(MIB) as other:
            source = blank_tensor(MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            note = context.notification(timeout=math.inf)
            note.wait_on(stream)
            assert not stream.query()
            context.close()
            stream.synchronize()

    def test_under_capture(self, open_context: OpenContext) -> None:
        context = open_context(options())
        with Other(MIB) as other:
            source = blank_tensor(MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                source.fill_(1)
                with pytest.raises(zh.Unsupported, match="captured"):
                    context.write(source, other.handle, stream=torch.cuda.current_stream())
            context.write(source, other.handle).result(PATIENCE_S)

    def test_a_copy_stages_too(self, open_context: OpenContext) -> None:
        """Over tcp it is the control thread that waits for the stream, and a word that lets the other go."""
        context = open_context(options(providers=("tcp",)))
        with Other(8 * MIB) as other:
            source = blank_tensor(8 * MIB)
            stream = torch.cuda.Stream()
            for value in range(1, 6):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(2_000_000)
                    source.fill_(value)
                operation = context.write(source, other.handle, stream=stream)
                operation.wait_on(stream)
                with torch.cuda.stream(stream):
                    source.fill_(0)
                operation.result(PATIENCE_S)
                assert "tcp (stream)" in str(operation.explain())
                other.expect(0, bytes([value]) * (8 * MIB))


def test_awaited(open_context: OpenContext) -> None:
    context = open_context(options())

    async def transfer(other: Other) -> None:
        source = random_tensor(64 * MIB)
        await asyncio.gather(*(context.write(part, handle) for part, handle in halves(source, other.handle)))
        other.expect(0, bytes_of(source))

    def halves(source: Any, handle: zh.RemoteBuffer) -> list[tuple[Any, zh.RemoteBuffer]]:
        middle = 32 * MIB
        return [(source[:middle], handle[:middle]), (source[middle:], handle[middle:])]

    with Other(64 * MIB) as other:
        asyncio.run(transfer(other))


def test_on_the_same_gpu(open_context: OpenContext) -> None:
    context = open_context(options())
    with Other(32 * MIB, gpu=0) as other:
        source = random_tensor(32 * MIB)
        operation = context.write(source, other.handle)
        operation.result(PATIENCE_S)
        assert "same device" in str(operation.explain())
        other.expect(0, bytes_of(source))


def test_two_contexts_of_one_process_open_the_same_memory(open_context: OpenContext) -> None:
    contexts = [open_context(options()) for _ in range(2)]
    with Other(4 * MIB) as other:
        for context in contexts:
            source = random_tensor(4 * MIB)
            context.write(source, other.handle).result(PATIENCE_S)
            other.expect(0, bytes_of(source))
        contexts[0].close()
        source = random_tensor(4 * MIB)
        contexts[1].write(source, other.handle).result(PATIENCE_S)
        other.expect(0, bytes_of(source))


def test_torchs_own_contexts_are_left_alone(open_context: OpenContext) -> None:
    before = torch.cuda.current_device()
    context = open_context(options())
    with Other(MIB) as other:
        context.write(random_tensor(MIB), other.handle).result(PATIENCE_S)
    context.close()
    assert torch.cuda.current_device() == before
    assert torch.zeros(3, device="cuda:0").sum().item() == 0
