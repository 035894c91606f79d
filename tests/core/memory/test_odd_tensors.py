"""Tensors of torch that are not plain memory: refused in words of the library, or registered as the bytes they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.gpu_tensor import GpuTensor
from zerohop.core.memory import sources, torch_tensors
from zerohop.core.memory.layouts import BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch")

OF_ANOTHER = r"this \w+ has no memory of its own that torch shows: .* Fix: pass the tensor behind it"


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """Keeps another tensor, and has no storage, as tensors of torch.distributed and torch.ao do."""

    @staticmethod
    def __new__(cls: type[Any], inner: Any) -> Any:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Refusing(torch.Tensor):  # type: ignore[misc]
    """Does not let anybody call torch with it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("not with this tensor")


def _functional() -> Any:
    return torch._to_functional_tensor(torch.ones(8))


def _functional_of_compile() -> Any:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(torch.ones(8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_masked() -> None:
    masked = torch.masked.masked_tensor(torch.ones(8), torch.ones(8) > 0)
    with pytest.raises(TypeError, match=OF_ANOTHER):
        sources.read(masked)


WITHOUT_MEMORY: dict[str, Callable[[], Any]] = {
    "functional": _functional,
    "functional, of torch.compile": _functional_of_compile,
    "wrapper": lambda: Wrapper(torch.ones(8)),
    "refusing": lambda: torch.ones(8).as_subclass(Refusing),
    "computed zeros": lambda: torch._efficientzerotensor(8),
}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_of_another_tensor(kind: str) -> None:
    with pytest.raises(TypeError, match=OF_ANOTHER):
        sources.read(WITHOUT_MEMORY[kind]())


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda read: torch.func.vmap(read)(torch.ones(3, 4)),
    "grad": lambda read: torch.func.grad(lambda x: read(x).sum())(torch.ones(4)),
    "jvp": lambda read: torch.func.jvp(read, (torch.ones(4),), (torch.ones(4),)),
    "functionalize": lambda read: torch.func.functionalize(read)(torch.ones(4)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_within_torch_func(transform: str) -> None:
    def read(x: Any) -> Any:
        with pytest.raises(TypeError, match=OF_ANOTHER):
            sources.read(x)
        return x * 1

    TRANSFORMS[transform](read)


def test_a_parameter_without_a_shape() -> None:
    with pytest.raises(ValueError, match=r"UninitializedParameter has neither shape nor memory yet\. Fix: call its"):
        sources.read(torch.nn.UninitializedParameter())


# Each with the methods that the error names for it.
OF_PARTS: dict[str, tuple[str, ...]] = {
    "to_sparse": ("indices", "values"),
    "to_sparse_csr": ("crow_indices", "col_indices", "values"),
    "to_sparse_csc": ("ccol_indices", "row_indices", "values"),
    "to_mkldnn": (),
}


@pytest.mark.parametrize("layout", OF_PARTS)
@pytest.mark.filterwarnings("ignore:Sparse C.. tensor support")
def test_of_several_parts(layout: str) -> None:
    tensor = getattr(torch.eye(4), layout)()
    with pytest.raises(
        TypeError, match=r"no memory of its own that is one range\. Fix: pass tensor.to_dense"
    ) as caught:
        sources.read(tensor)
    sources.read(tensor.to_dense())
    whole = tensor.coalesce() if layout == "to_sparse" else tensor
    for part in OF_PARTS[layout]:
        assert f"{part}()" in str(caught.value)
        sources.read(getattr(whole, part)())


def test_jagged() -> None:
    tensor = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(3, 3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"Fix: pass its values\(\) and offsets\(\)"):
        sources.read(tensor)
    for part in (tensor.values(), tensor.offsets()):
        sources.read(part)


def test_negated() -> None:
    negated = torch.ones(4, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    with pytest.raises(ValueError, match="Fix: "):
        sources.read(negated)


SHARING: dict[str, Callable[[], Any]] = {
    "expand": lambda: torch.ones(1).expand(8),
    "expand rows": lambda: torch.ones(4, 1).expand(4, 8),
    "unfold": lambda: torch.ones(16).unfold(0, 4, 1),
    "as_strided": lambda: torch.as_strided(torch.ones(16), (4, 8), (2, 1)),
}


@pytest.mark.parametrize("how", SHARING)
def test_elements_that_share_memory(how: str) -> None:
    """More elements than bytes: refused, and so is what numpy makes of it."""
    tensor = SHARING[how]()
    with pytest.raises(ValueError, match=r"elements share memory. Fix: pass tensor.contiguous\(\)"):
        sources.read(tensor)
    with pytest.raises(ValueError, match=r"elements share memory. Fix: pass numpy.ascontiguousarray\(x\)"):
        sources.read(tensor.numpy())


@pytest.mark.parametrize("how", SHARING)
def test_a_part_registers_nothing_beyond_the_memory(how: str) -> None:
    tensor = SHARING[how]()
    storage = tensor.untyped_storage()
    row = tensor if tensor.ndim == 1 else tensor[-1]
    for part in (row[-1:], row.numpy()[-1:]):
        source = sources.read(part)
        assert storage.data_ptr() <= source.base
        assert source.base + source.extent <= storage.data_ptr() + storage.nbytes()


OF_BYTES: dict[str, tuple[Callable[[], Any], int]] = {
    "parameter": (lambda: torch.nn.Parameter(torch.ones(8)), 32),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.quint8), 8),
    "inference": (torch.inference_mode()(lambda: torch.ones(8)), 32),
    "eight bits": (lambda: torch.ones(8).to(torch.float8_e4m3fn), 8),
}


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("kind", OF_BYTES)
def test_plain_bytes(kind: str) -> None:
    make, nbytes = OF_BYTES[kind]
    source = sources.read(make())
    assert (source.nbytes, source.layout) == (nbytes, BYTES)


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("dtype", ["quint4x2", "quint2x4"])
def test_elements_of_less_than_a_byte(dtype: str) -> None:
    """PyTorch counts a byte for each, so that a row would begin elsewhere, and be too long; the bytes can be had."""
    tensor = torch._empty_affine_quantized((4, 8), scale=1.0, zero_point=0, dtype=getattr(torch, dtype))
    for part in (tensor, tensor[0], tensor[1]):
        with pytest.raises(TypeError, match=rf"torch\.{dtype}.* share a byte\. Fix: pass its bytes, torch\.empty"):
            sources.read(part)
    packed = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    source = sources.read(packed)
    assert (source.address, source.nbytes) == (tensor.data_ptr(), tensor.untyped_storage().nbytes())


def test_elements_of_less_than_a_byte_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way that other tensors of the same type take does not take them."""
    tensor = GpuTensor(1 << 20, 64)
    monkeypatch.setitem(torch_tensors.tensors_on_gpus, GpuTensor, tensor.layout)
    assert torch_tensors.on_gpu(tensor) is not None
    tensor.is_quantized = True
    assert torch_tensors.on_gpu(tensor) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore:The PyTorch API of nested tensors")
def test_a_length_is_a_number_while_torch_traces() -> None:
    lengths = []

    def read(x: Any) -> Any:
        lengths.append(sources.read(x).nbytes)
        return x + 1

    torch.jit.trace(read, (torch.ones(8),), check_trace=False)
    assert [type(nbytes) for nbytes in lengths] == [int]
    assert lengths == [32]
