"""torchcomms' names on ours: signatures, codes, pickling, and what upstream gets wrong."""

from __future__ import annotations

import contextlib
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.forking import in_child
from support.patience import PATIENCE_S, times
from support.pattern import pattern, poison
from support.torchcomms_peer import other_process, own_shared_context
from zerohop.compat.process import shared_context
from zerohop.compat.torchcomms import (
    COMM_INTERNAL_ERROR,
    COMM_SUCCESS,
    COMM_TIMEOUT,
    COMM_USER_ABORT,
    RdmaMemory,
    RdmaMemoryMutableView,
    RdmaMemoryView,
    RdmaRemoteBuffer,
    RdmaTransport,
    attach_rdma_memory_hook,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NBYTES = 8192


@pytest.fixture(autouse=True)
def own_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has the Context as a process finds it, and leaves none."""
    monkeypatch.setenv("ZEROHOP_SIM_DEVICES", "2")
    with own_shared_context():
        yield


def _pair(device: Any = "cpu", other: Any = "cpu") -> tuple[RdmaTransport, RdmaTransport]:
    here, there = RdmaTransport(device), RdmaTransport(other)
    url, other_url = here.bind(), there.bind()
    assert (here.connect(other_url), there.connect(url)) == (0, 0)
    assert here.connected()
    assert there.connected()
    return here, there


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
        here, there = _pair()
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
        here, _ = _pair(device, other)
        context = shared_context()
        source, target = (context.alloc(NBYTES, zh.Transport(name, ctx=context).device) for name in (device, other))
        source.write_bytes(0, pattern(3, NBYTES).tobytes())
        views = [RdmaMemory((each.address, NBYTES, each.device)) for each in (source, target)]
        assert here.write(views[0].to_view(), views[1].to_remote_buffer()) == COMM_SUCCESS
        assert target.read_bytes() == pattern(3, NBYTES).tobytes()

    def test_parts(self) -> None:
        here, _ = _pair()
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
        here, _ = _pair()
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
        here, _ = _pair()
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
        here, _ = _pair()

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
        here, there = _pair(torch.device("cpu"), torch.device("cpu"))
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
        here, _ = _pair()
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


class TestRemoteBuffers:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, protocol: int) -> None:
        here, _ = _pair()
        target = np.zeros(64, np.uint8)
        memory, source = RdmaMemory(target), RdmaMemory(pattern(1, 64))
        remote = pickle.loads(pickle.dumps(memory.to_remote_buffer(), protocol=protocol))
        assert remote == memory.to_remote_buffer()
        assert here.write(source.to_view(), remote) == COMM_SUCCESS
        assert np.array_equal(target, pattern(1, 64))

    def test_is_a_value(self) -> None:
        memory = RdmaMemory(np.zeros(64, np.uint8))
        remote = memory.to_remote_buffer()
        assert (remote.len, hash(remote)) == (64, hash(memory.to_remote_buffer()))
        assert remote.access_key not in repr(remote), "logs do not give the memory away"
        assert remote == RdmaRemoteBuffer(ptr=remote.ptr, len=remote.len, access_key=remote.access_key)

    def test_end_with_the_memory(self) -> None:
        here, _ = _pair()
        target = np.zeros(64, np.uint8)
        memory = RdmaMemory(target)
        remote, view = memory.to_remote_buffer(), memory.to_view()
        del memory
        gc.collect()
        source = RdmaMemory(pattern(1, 64))
        assert here.write(source.to_view(), remote) == COMM_SUCCESS, "its view keeps it"
        del view
        gc.collect()
        target[:] = before = poison(64)
        assert here.write(source.to_view(), remote) == COMM_INTERNAL_ERROR
        assert np.array_equal(target, before)


class TestMemory:
    def test_keeps_the_tensor(self) -> None:
        here, _ = _pair()
        array = pattern(1, NBYTES).copy()
        gone = weakref.ref(array)
        view = RdmaMemory(array).to_view()
        del array
        gc.collect()
        assert gone() is not None
        target = np.zeros(NBYTES, np.uint8)
        other = RdmaMemory(target)
        assert here.write(view, other.to_remote_buffer()) == COMM_SUCCESS
        assert np.array_equal(target, pattern(1, NBYTES))
        del view
        gc.collect()
        assert gone() is None

    def test_reused_registration(self) -> None:
        array = np.zeros(64, np.uint8)
        first = RdmaMemory(array)
        assert not first.reused_registration()
        assert RdmaMemory(array[8:], cache_reg=True).reused_registration()

    def test_hook(self) -> None:
        attach_rdma_memory_hook(None, None)
        attach_rdma_memory_hook(reg=object(), dereg=object())


class TestCodes:
    def test_of_what_has_no_peer(self) -> None:
        transport, memory = RdmaTransport("cpu"), RdmaMemory(np.zeros(8, np.uint8))
        assert not transport.connected()
        assert transport.write(memory.to_view(), memory.to_remote_buffer()) == COMM_INTERNAL_ERROR

    def test_of_what_takes_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "tcp")
        with _standing_still(lambda: monkeypatch.setenv("ZEROHOP_TIMEOUT", "0.05")) as (transport, remote):
            memory = RdmaMemory(np.zeros(NBYTES, np.uint8))
            assert transport.write(memory.to_view(), remote) == COMM_TIMEOUT

    def test_of_one_that_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And while it waits, other threads run."""
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "tcp")
        with _standing_still() as (transport, remote):
            memory, codes = RdmaMemory(np.zeros(NBYTES, np.uint8)), []
            started = threading.Event()

            def write() -> None:
                started.set()
                codes.append(transport.write(memory.to_view(), remote))

            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            assert started.wait(PATIENCE_S)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                assert not codes
            transport._transport.abort()
            writer.join(PATIENCE_S)
            assert codes == [COMM_USER_ABORT]


class TestConnecting:
    @pytest.mark.parametrize("url", [b"", b"garbage", b"\xff\xfe", b"zerohop://127.0.0.1:1/00", bytes(300)])
    def test_to_garbage(self, url: bytes) -> None:
        with pytest.raises(ValueError, match=r"URL|utf-8|zerohop:|names no"):
            RdmaTransport("cpu").connect(url)

    def test_to_text(self) -> None:
        text: Any = RdmaTransport("cpu").bind().decode()
        with pytest.raises(TypeError, match="bytes, not str"):
            RdmaTransport("cpu").connect(text)

    def test_to_what_is_gone(self) -> None:
        other = RdmaTransport("cpu")
        url = other.bind()
        del other
        gc.collect()
        with pytest.raises(zh.PeerLost):
            RdmaTransport("cpu").connect(url)


class TestSupported:
    def test_always_the_same(self) -> None:
        assert all(RdmaTransport.supported() for _ in range(100))

    def test_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "verbs")
        monkeypatch.setenv("ZEROHOP_NICS", "none_of_that_name")
        assert not RdmaTransport.supported()

    def test_of_a_device_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match="sim:7"):
            RdmaTransport("sim:7")


def test_a_forked_child_has_its_own() -> None:
    ours = shared_context()

    def work() -> str:
        here, _ = _pair()
        target = np.zeros(8, np.uint8)
        memory, source = RdmaMemory(target), RdmaMemory(pattern(1, 8))
        code = here.write(source.to_view(), memory.to_remote_buffer())
        return f"{code} {np.array_equal(target, pattern(1, 8))} {shared_context() is ours}"

    assert in_child(work) == "0 True False"


def test_at_exit() -> None:
    """A program that closes nothing ends, and says nothing."""
    program = """
import numpy as np
from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport
a, b = RdmaTransport("cpu"), RdmaTransport("cpu")
a.connect(b.bind())
m, n = RdmaMemory(np.ones(8)), RdmaMemory(np.zeros(8))
print(a.write(m.to_view(), n.to_remote_buffer()))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("0\n", "", 0)


@contextlib.contextmanager
def _standing_still(
    before_ours: Callable[[], object] = lambda: None,
) -> Iterator[tuple[RdmaTransport, RdmaRemoteBuffer]]:
    """A transport whose peer has stopped, and its memory.

    What is done before ours is made does not concern the other process. That connects, in its own time.
    """
    with other_process(NBYTES) as far:
        before_ours()
        transport = RdmaTransport("cpu")
        far.tell((transport.bind(), None))
        url, remote = far.hear()
        assert far.hear() == (COMM_SUCCESS, True)
        assert transport.connect(url) == COMM_SUCCESS
        far.stop()
        yield transport, remote


@pytest.mark.parametrize("many", [[], [np.zeros(8), np.zeros(8)]], ids=["none", "two"])
def test_a_list_is_no_memory(many: list[Any]) -> None:
    with pytest.raises(TypeError, match="make an RdmaMemory of each"):
        RdmaMemory(many)


@pytest.mark.parametrize(
    ("ptr", "length", "kind", "words"),
    [
        ("x", 8, TypeError, "ptr must be an int, not str"),
        (None, 8, TypeError, "ptr must be an int, not NoneType"),
        (0.5, 8, TypeError, "ptr must be an int, not float"),
        (0, None, TypeError, "len must be an int, not NoneType"),
        (0, 8.0, TypeError, "len must be an int, not float"),
        (0, -1, ValueError, "len must be at least 0"),
        (0, 10**5000, ValueError, "do not lie within"),
        (10**5000, 8, ValueError, "do not lie within"),
    ],
    ids=range(8),  # Python refuses to write some of the numbers
)
def test_a_remote_buffer_of_odd_numbers(ptr: Any, length: Any, kind: type[Exception], words: str) -> None:
    memory = RdmaMemory(np.zeros(64, np.uint8))
    whole = memory.to_remote_buffer()
    at = ptr if ptr != 0 else whole.ptr
    with pytest.raises(kind, match=words):
        RdmaTransport("host").write(memory.to_view(0, 8), RdmaRemoteBuffer(at, length, whole.access_key))


def test_a_url_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="no zerohop URL"):
        RdmaTransport("host").connect(b"\xff\xfe")


def test_a_remote_buffer_of_numbers_of_numpy() -> None:
    """They are integers, as offsets that a program has computed are."""
    memory = RdmaMemory(np.arange(64, dtype=np.uint8))
    whole = memory.to_remote_buffer()
    part = RdmaRemoteBuffer(np.int64(whole.ptr + 8), np.int64(8), whole.access_key)
    with pytest.raises(ValueError, match="do not lie within"):
        RdmaTransport("host").write(
            memory.to_view(0, 8),
            RdmaRemoteBuffer(part.ptr, np.int64(64), part.access_key),
        )
