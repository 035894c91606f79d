"""torchcomms' names on torch's tensors of GPUs: any with any transport, and kept while they fly."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from support.buffers import OTHER_GPU
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.torchcomms_peer import other_process, own_shared_context
from zerohop.compat.torchcomms import COMM_INTERNAL_ERROR, COMM_SUCCESS, RdmaMemory, RdmaRemoteBuffer, RdmaTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch")
MIB = 1 << 20
PLACES = [("cuda:0", OTHER_GPU), ("cuda:0", "cuda:0"), ("cpu", OTHER_GPU), (OTHER_GPU, "cpu"), ("cpu", "cpu")]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def own_context() -> Iterator[None]:
    with own_shared_context():
        yield


def tensor_of(seed: int, nbytes: int, device: str) -> Any:
    tensor = torch.from_numpy(pattern(seed, nbytes).copy()).to(device)
    settle()
    return tensor


def settle() -> None:
    """torch only queues what fills a tensor, and transfers do not wait for that."""
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)


def pair() -> tuple[RdmaTransport, RdmaTransport]:
    here, there = (RdmaTransport(torch.device(name)) for name in ("cuda:0", OTHER_GPU))
    url, other_url = here.bind(), there.bind()
    assert (here.connect(other_url), there.connect(url)) == (0, 0)
    assert here.connected()
    assert there.connected()
    return here, there


@pytest.mark.parametrize(("device", "other_device"), PLACES)
@pytest.mark.parametrize("nbytes", [1, 1024, 4097, MIB, 5 * MIB + 3])
def test_write_and_read(device: str, other_device: str, nbytes: int) -> None:
    """Between GPUs, and between GPUs and the host, whichever GPUs the transports are of."""
    here, there = pair()
    source, target = tensor_of(1, nbytes, device), tensor_of(2, nbytes, other_device)
    memory, other = RdmaMemory(source), RdmaMemory(target)
    assert here.write(memory.to_view(), other.to_remote_buffer()) == COMM_SUCCESS
    assert torch.equal(source.cpu(), target.cpu())
    target.zero_()
    settle()
    assert there.read(other.to_mutable_view(), memory.to_remote_buffer()) == COMM_SUCCESS
    assert torch.equal(source.cpu(), target.cpu())


def test_slices() -> None:
    """Of a tensor at no alignment, of a view, and of a remote buffer: nothing beside them is touched."""
    here, _ = pair()
    source, target = tensor_of(1, 8192, "cuda:0"), torch.zeros(8192, dtype=torch.uint8, device=OTHER_GPU)
    settle()
    memory, other = RdmaMemory(source[17:1041]), RdmaMemory(target[4095:5119])
    whole = other.to_remote_buffer()
    assert (memory.to_view().size(), whole.len, whole.ptr) == (1024, 1024, target.data_ptr() + 4095)
    part = RdmaRemoteBuffer(whole.ptr + 100, 512, whole.access_key)
    assert here.write(memory.to_view(256, 512), part) == COMM_SUCCESS
    expected = torch.zeros(8192, dtype=torch.uint8)
    expected[4195:4707] = source[273:785].cpu()
    assert torch.equal(target.cpu(), expected)
    for ptr, length in ((whole.ptr - 1, 512), (whole.ptr + 513, 512)):
        with pytest.raises(ValueError, match="do not lie within"):
            here.write(memory.to_view(0, 512), RdmaRemoteBuffer(ptr, length, whole.access_key))


def test_reused_registration() -> None:
    """Of another part of the same allocation of the driver's; it is registered once."""
    tensor = tensor_of(1, 4096, "cuda:0")
    first = RdmaMemory(tensor[:100])  # noqa: F841 - kept, not used
    assert RdmaMemory(tensor[2000:]).reused_registration()


def test_a_tensor_deleted_while_its_writes_fly() -> None:
    """The view that is written from keeps it: its memory goes to no other tensor meanwhile, and then it goes."""
    here, _ = pair()
    nbytes, rounds = 256 * MIB, 20
    source = torch.full((nbytes,), 7, dtype=torch.uint8, device="cuda:0")
    target = torch.zeros(nbytes, dtype=torch.uint8, device=OTHER_GPU)
    settle()
    other = RdmaMemory(target)
    remote = other.to_remote_buffer()
    codes: list[int] = []
    first_done, deleted = threading.Event(), threading.Event()

    def write(view: Any) -> None:
        codes.append(here.write(view, remote))
        first_done.set()
        assert deleted.wait(PATIENCE_S)
        codes.extend(here.write(view, remote) for _ in range(rounds))

    address = source.data_ptr()
    writer = threading.Thread(target=write, args=(RdmaMemory(source).to_view(),), daemon=True)
    writer.start()
    assert first_done.wait(PATIENCE_S)
    target.zero_()
    settle()
    del source
    gc.collect()
    # What the allocator would give away next, were it free.
    next_one = torch.full((nbytes,), 9, dtype=torch.uint8, device="cuda:0")
    settle()
    assert next_one.data_ptr() != address
    deleted.set()
    while writer.is_alive():
        next_one.fill_(9)
        writer.join(0.001)
    assert codes == [COMM_SUCCESS] * (1 + rounds)
    assert bool((target == 7).all())


@pytest.mark.parametrize("pushes", [False, True], ids=["written here", "written there"])
def test_two_processes(pushes: bool) -> None:
    with other_process(MIB, pushes=pushes, device=OTHER_GPU, tensors=True) as far:
        transport, tensor = RdmaTransport(torch.device("cuda:0")), tensor_of(1, MIB, "cuda:0")
        memory = RdmaMemory(tensor)
        far.tell((transport.bind(), memory.to_remote_buffer()))
        url, remote = far.hear()
        assert transport.connect(url) == COMM_SUCCESS
        assert far.hear() == (COMM_SUCCESS, True)
        if not pushes:
            assert transport.write(memory.to_view(), remote) == COMM_SUCCESS
        far.tell("look")
        expected = pattern(2 if pushes else 1, MIB).tobytes()
        assert far.hear() == expected
        assert tensor.cpu().numpy().tobytes() == expected
        far.kill()
        assert transport.write(memory.to_view(), remote) == COMM_INTERNAL_ERROR
        assert not transport.connected()
