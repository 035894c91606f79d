"""torchcomms' names on ours: signatures, transfers and tensors."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.patience import PATIENCE_S, times
from support.pattern import pattern, poison
from support.torchcomms_peer import other_process, pair
from zerohop.compat.process import shared_context
from zerohop.compat.torchcomms import (
    COMM_INTERNAL_ERROR,
    COMM_SUCCESS,
    RdmaMemory,
    RdmaMemoryMutableView,
    RdmaMemoryView,
    RdmaRemoteBuffer,
    RdmaTransport,
    attach_rdma_memory_hook,
)

NBYTES = 8192

pytestmark = pytest.mark.usefixtures("own_context")


def test_signatures() -> None:
    """As in torchcomms' _transport.pyi."""
    names: dict[Any, list[str]] = {
        RdmaTransport: ["device"],
        RdmaTransport.supported: [],
        RdmaTransport.bind: ["self"],
        RdmaTransport.connect: ["self", "peer_url"],
        RdmaTransport.connected: ["self"],
        RdmaTransport.write: ["self", "local_buffer", "remote_buffer"],
        RdmaTransport.read: ["self", "local_buffer", "remote_buffer"],
        RdmaMemory: ["tensor", "cache_reg"],
        RdmaMemory.to_view: ["self", "offset", "length"],
        RdmaMemory.to_mutable_view: ["self", "offset", "length"],
        RdmaMemory.to_remote_buffer: ["self"],
        RdmaMemory.reused_registration: ["self"],
        RdmaMemoryView.size: ["self"],
        RdmaMemoryMutableView.size: ["self"],
        RdmaRemoteBuffer: ["ptr", "len", "access_key"],
        attach_rdma_memory_hook: ["reg", "dereg"],
    }
    for what, expected in names.items():
        assert list(inspect.signature(what).parameters) == expected, what


class TestTransfers:
    @pytest.mark.parametrize("nbytes", [0, 1, 64, 4097, NBYTES, 1 << 20])
    def test_write_and_read(self, nbytes: int) -> None:
        here, there = pair()
        source, target = pattern(1, nbytes), np.zeros(nbytes, np.uint8)
        memory, other = RdmaMemory(source), RdmaMemory(target)
        assert memory.to_view().size() == memory.to_mutable_view().size() == nbytes
        assert here.write(memory.to_view(), other.to_remote_buffer()) == COMM_SUCCESS
        assert np.array_equal(target, source)
        target[:] = poison(nbytes)
        assert there.read(other.to_mutable_view(), memory.to_remote_buffer()) == COMM_SUCCESS
        assert np.array_equal(target, source)

    @pytest.mark.parametrize(
        ("device", "other"),
        [
            *(("sim:0", "sim:1"), ("sim:0", "cpu"), ("cpu", "sim:1")),
            *(
                pytest.param(*devices, marks=pytest.mark.cuda)
                for devices in (("cuda:0", OTHER_GPU), ("cpu", OTHER_GPU), (OTHER_GPU, "cpu"))
            ),
        ],
    )
    def test_devices(self, device: str, other: str) -> None:
        """Memory of GPUs, and the host's on either side: nobody aborts."""
        here, _ = pair(device, other)
        context = shared_context()
        source, target = (context.alloc(NBYTES, zh.Transport(name, ctx=context).device) for name in (device, other))
        source.write_bytes(0, pattern(3, NBYTES).tobytes())
        views = [RdmaMemory((each.address, NBYTES, each.device)) for each in (source, target)]
        assert here.write(views[0].to_view(), views[1].to_remote_buffer()) == COMM_SUCCESS
        assert target.read_bytes() == pattern(3, NBYTES).tobytes()

    def test_parts(self) -> None:
        here, _ = pair()
        source, target = pattern(1, 1024), np.zeros(1024, np.uint8)
        memory, other = RdmaMemory(source), RdmaMemory(target)
        for make in (memory.to_view, memory.to_mutable_view):
            assert [make(offset=256).size(), make(length=512).size(), make(256, 512).size()] == [768, 512, 512]
            assert make(1024).size() == make(offset=1024, length=0).size() == 0
            for wrong in ((1025, None), (0, 1025), (512, 513), (-1, 4), (0, -1)):
                with pytest.raises(ValueError, match="do not lie within"):
                    make(*wrong)
        whole = other.to_remote_buffer()
        part = RdmaRemoteBuffer(whole.ptr + 100, 512, whole.access_key)
        assert here.write(memory.to_view(256, 512), part) == COMM_SUCCESS
        assert np.array_equal(target[100:612], source[256:768])
        assert not target[:100].any()
        assert not target[612:].any()

    @pytest.mark.parametrize("of", ["write", "read"])
    def test_what_does_not_fit(self, of: str) -> None:
        """Neither a longer view, nor a remote buffer that was made to reach beyond, gets anywhere."""
        here, _ = pair()
        memory, target = RdmaMemory(pattern(1, 64)), np.zeros(64, np.uint8)
        other = RdmaMemory(target)
        whole = other.to_remote_buffer()

        def post(remote: RdmaRemoteBuffer) -> int:
            if of == "write":
                return here.write(memory.to_view(), remote)
            return here.read(memory.to_mutable_view(), remote)

        for ptr, length in ((0, 63), (1, 64), (-1, 64), (65, 0), (0, -1), (0, 1 << 63)):
            with pytest.raises(ValueError, match=r"bytes|must be at least 0"):
                post(RdmaRemoteBuffer(whole.ptr + ptr, length, whole.access_key))
        for key in ("", "12", "xyz:", whole.access_key[:-8], whole.access_key + "A", "0:" + whole.access_key[-40:]):
            with pytest.raises(ValueError, match="access key"):
                post(RdmaRemoteBuffer(whole.ptr, 64, key))
        assert not target.any()

    def test_what_is_of_the_wrong_type(self) -> None:
        here, _ = pair()
        memory = RdmaMemory(np.zeros(8, np.uint8))
        anything: Any = np.zeros(8, np.uint8)
        with pytest.raises(TypeError, match="RdmaMemoryView, not ndarray"):
            here.write(anything, memory.to_remote_buffer())
        with pytest.raises(TypeError, match="RdmaRemoteBuffer, not ndarray"):
            here.write(memory.to_view(), anything)
        immutable: Any = memory.to_view()
        with pytest.raises(TypeError, match="RdmaMemoryMutableView, not RdmaMemoryView"):
            here.read(immutable, memory.to_remote_buffer())
        with pytest.raises(TypeError, match="memory is"):
            RdmaMemory("no tensor")

    @pytest.mark.parametrize("pushes", [False, True], ids=["written here", "written there"])
    def test_two_processes(self, pushes: bool) -> None:
        """Ping and pong: each side's bytes end in the other's memory; and codes, at once, when one is gone."""
        with other_process(NBYTES, pushes=pushes) as far:
            transport, array = RdmaTransport("cpu"), pattern(1, NBYTES).copy()
            memory = RdmaMemory(array)
            far.tell((transport.bind(), memory.to_remote_buffer()))
            url, remote = far.hear()
            assert transport.connect(url) == COMM_SUCCESS
            assert far.hear() == (COMM_SUCCESS, True)
            if not pushes:
                assert transport.write(memory.to_view(), remote) == COMM_SUCCESS
            far.tell("look")
            expected = pattern(2 if pushes else 1, NBYTES)
            assert far.hear() == expected.tobytes()
            assert array.tobytes() == expected.tobytes()
            array[:] = poison(NBYTES)
            part = RdmaRemoteBuffer(remote.ptr + 64, 1000, remote.access_key)
            assert transport.read(memory.to_mutable_view(8, 1000), part) == COMM_SUCCESS
            assert np.array_equal(array[8:1008], expected[64:1064])
            assert np.array_equal(array[:8], poison(8))
            far.kill()
            # Whether or not it was noticed yet.
            assert transport.write(memory.to_view(), remote) == COMM_INTERNAL_ERROR
            assert not transport.connected()
            assert transport.read(memory.to_mutable_view(), remote) == COMM_INTERNAL_ERROR
            with pytest.raises(zh.PeerLost):
                transport.connect(url)
            with pytest.raises(zh.PeerLost):
                transport.bind()

    def test_many_threads(self) -> None:
        """That find the process's Context together, and share a transport: every byte is right."""
        begin, seen, wrong = threading.Barrier(8), set(), []
        here, _ = pair()

        def work(seed: int) -> None:
            begin.wait(PATIENCE_S)
            seen.add(id(shared_context()))
            source, target = pattern(seed, 4099), np.zeros(4099, np.uint8)
            memory, other = RdmaMemory(source), RdmaMemory(target)
            for _ in range(times(100)):
                target[:] = 0
                code = here.write(memory.to_view(), other.to_remote_buffer())
                if code or not np.array_equal(target, source):
                    wrong.append((seed, code))

        threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert (wrong, len(seen)) == ([], 1)


class TestTensors:
    """Of torch, on the CPU; those on GPUs are in tests/gpu."""

    @pytest.mark.parametrize("kind", ["uint8", "bfloat16", "float32 with gradients", "a slice"])
    def test_write_and_read(self, kind: str) -> None:
        torch = pytest.importorskip("torch")
        dtype = {"bfloat16": torch.bfloat16, "float32 with gradients": torch.float32}.get(kind, torch.uint8)
        source, target = (torch.arange(n, 200 + n).to(dtype) for n in (1, 0))
        if kind == "a slice":
            source, target = source[17:101], target[3:87]
        elif kind == "float32 with gradients":
            source.requires_grad_()
        here, there = pair(torch.device("cpu"), torch.device("cpu"))
        memory, other = RdmaMemory(source), RdmaMemory(target)
        assert memory.to_view().size() == source.nbytes
        assert here.write(memory.to_view(), other.to_remote_buffer()) == COMM_SUCCESS
        assert torch.equal(source, target)
        target.zero_()
        assert there.read(other.to_mutable_view(), memory.to_remote_buffer()) == COMM_SUCCESS
        assert torch.equal(source, target)

    def test_is_kept(self) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.arange(100, dtype=torch.uint8)
        gone, view = weakref.ref(tensor.untyped_storage()), RdmaMemory(tensor).to_view()
        del tensor
        gc.collect()
        assert gone() is not None
        here, _ = pair()
        target = torch.zeros(100, dtype=torch.uint8)
        other = RdmaMemory(target)
        assert here.write(view, other.to_remote_buffer()) == COMM_SUCCESS
        assert torch.equal(target, torch.arange(100, dtype=torch.uint8))

    def test_two_processes(self) -> None:
        torch = pytest.importorskip("torch")
        with other_process(NBYTES, tensors=True) as far:
            transport = RdmaTransport(torch.device("cpu"))
            tensor = torch.from_numpy(pattern(1, NBYTES).copy())
            memory = RdmaMemory(tensor)
            far.tell((transport.bind(), memory.to_remote_buffer()))
            url, remote = far.hear()
            assert transport.connect(url) == COMM_SUCCESS
            assert far.hear() == (COMM_SUCCESS, True)
            assert transport.write(memory.to_view(), remote) == COMM_SUCCESS
            far.tell("look")
            assert far.hear() == pattern(1, NBYTES).tobytes()

    def test_that_are_not_one_range(self) -> None:
        torch = pytest.importorskip("torch")
        for wrong in (torch.zeros(8, 8)[:, ::2], torch.zeros(8, 4).t()):
            with pytest.raises(ValueError, match=r"not contiguous. Fix: pass tensor.contiguous\(\)$"):
                RdmaMemory(wrong)

    @pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc", "to_mkldnn"])
    @pytest.mark.filterwarnings("ignore:Sparse C.. tensor support")
    def test_of_several_parts(self, layout: str) -> None:
        """Refused in the words of ``Context.register``, whether torch knows if they are contiguous or not."""
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match=r"that is one range\. Fix: pass tensor.to_dense\(\)"):
            RdmaMemory(getattr(torch.eye(4), layout)())
