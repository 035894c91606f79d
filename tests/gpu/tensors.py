"""torch's tensors on the first GPU, for the tests in this folder: with their bytes there, and as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from support.options import Options

torch: Any = pytest.importorskip("torch")


def options(**changes: Any) -> Options:
    return Options(sim_devices=0, **changes)


def random_tensor(nbytes: int) -> Any:
    tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return tensor


def blank_tensor(nbytes: int, value: int = 0) -> Any:
    """Whose bytes are there: torch only queues what fills a tensor, and transfers that name no stream do not wait."""
    tensor = torch.full((nbytes,), value, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return tensor


def bytes_of(tensor: Any) -> bytes:
    torch.cuda.synchronize()
    data: bytes = tensor.cpu().numpy().tobytes()
    return data
