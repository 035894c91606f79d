"""Memory that is given by its address, and whose kind the driver tells."""

from __future__ import annotations

import numpy as np
import pytest

import zerohop as zh
from support.options import Options


@pytest.mark.parametrize("place", ["host", "sim:0"])
def test_raw_memory_whose_device_the_driver_tells(place: str) -> None:
    with Options(sim_devices=1).open() as ctx:
        memory = ctx.alloc(1000, place)
        found = ctx.register((memory.address + 100, 200, "auto"))
        assert (found.device, found.nbytes, found.address) == (place, 200, memory.address + 100)
        if place == "host":
            alone = np.zeros(1000, np.uint8)
            assert ctx.register((alone.ctypes.data, 1000, "auto")).device == "host"
            with pytest.raises(zh.Unsupported, match="not all allocated"):
                ctx.register((alone.ctypes.data, 1000, "device"))
        else:
            assert ctx.register((memory.address, 1000, "device")).device == place
            with pytest.raises(ValueError, match="not on host"):
                ctx.register((memory.address, 1000, "host"))


def test_a_device_has_no_memory_of_no_bytes() -> None:
    """An empty tensor of a GPU lies at address 0."""
    with Options().open() as ctx:
        assert ctx.register((0, 0, "device")).nbytes == 0
        assert ctx.register((0, 0, "auto")).nbytes == 0
