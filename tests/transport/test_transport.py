"""A Transport by itself: devices and their names, settings, whether it is supported or why not, and its end.

What it does with a peer is in conformance/test_transport.py and failure/test_transport_*.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import GPUS
from support.options import Options
from support.patience import PATIENCE_S
from zerohop import _native
from zerohop.transport.setup import device_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext


@dataclass(frozen=True)
class Device:
    """As torch.device: a kind, and a number that may be missing."""

    type: str
    index: int | None = None


class TestDeviceNames:
    @pytest.mark.parametrize(
        ("device", "name"),
        [
            ("host", "host"),
            ("cpu", "host"),
            ("cuda:0", "cuda:0"),
            ("cuda:17", "cuda:17"),
            ("hip:1", "hip:1"),
            ("sim:9999", "sim:9999"),
            (0, "cuda:0"),
            (3, "cuda:3"),
            (Device("cpu"), "host"),
            (Device("cpu", 0), "host"),
            (Device("cuda"), "cuda:0"),
            (Device("cuda", 0), "cuda:0"),
            (Device("cuda", 2), "cuda:2"),
            (Device("hip", 1), "hip:1"),
        ],
    )
    def test_good(self, device: object, name: str) -> None:
        assert device_name(device) == name

    @pytest.mark.parametrize(
        "device",
        [
            "",
            "cuda",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:00000",
            "cuda:0 ",
            " cuda:0",
            "cuda:0\n",
            "CUDA:0",
            "cuda:٣",
            "host:0",
            "cpu:0",
            "tpu:0",
            -1,
            10_000,
            Device("mps", 0),
            Device("meta"),
            Device("cuda", -1),
            Device(""),
        ],
        ids=repr,
    )
    def test_no_device(self, device: object) -> None:
        """ValueError, that names it and says which there are; the question whether it is supported has an answer."""
        with pytest.raises(ValueError, match=r'is no device; those are "host", "cuda:0"'):
            zh.Transport(device)
        assert not zh.Transport.supported(device)
        assert "is no device" in zh.Transport.why_unsupported(device)

    @pytest.mark.parametrize("device", [None, True, False, 1.0, b"host", ["host"], object(), Device, np.zeros(2)])
    def test_other_types(self, device: object) -> None:
        for call in (zh.Transport, zh.Transport.supported, zh.Transport.why_unsupported, device_name):
            with pytest.raises(TypeError, match=r"a device is a name, a number or a torch.device, not "):
                call(device)

    def test_a_real_torch_device(self) -> None:
        torch = pytest.importorskip("torch")
        assert device_name(torch.device("cpu")) == "host"
        assert device_name(torch.device("cuda")) == "cuda:0"
        assert device_name(torch.device("cuda", 3)) == "cuda:3"


class TestSupported:
    def test_on_the_host(self, runtime_directory: None) -> None:
        """Which needs no GPU: nor does a Transport say that one is missing."""
        for device in ("host", "cpu", Device("cpu")):
            assert zh.Transport.supported(device)
            assert zh.Transport.why_unsupported(device) == ""
        assert zh.Transport.supported()
        with zh.Transport() as transport:
            assert transport.device == "host"

    def test_on_simulated_devices(self, runtime_directory: None) -> None:
        """As many as it takes come with it, unless it is said how many there are."""
        assert zh.Transport.supported("sim:2")
        with zh.Transport("sim:2", providers=("shm",)) as transport:
            assert transport.device == "sim:2"
            assert transport.context.alloc(64, "sim:2").device == "sim:2"
        why = zh.Transport.why_unsupported("sim:2", sim_devices=2)
        assert "no device is called 'sim:2'" in why
        assert "Fix: sim_devices=N" in why
        assert not zh.Transport.supported("sim:2", sim_devices=2)
        with pytest.raises(ValueError, match="sim:2"):
            zh.Transport("sim:2", sim_devices=2)

    @pytest.mark.skipif(bool(GPUS), reason="this machine has a GPU")
    @pytest.mark.parametrize("device", ["cuda:0", 0, Device("cuda"), "hip:0"])
    def test_on_gpus_that_there_are_not(self, runtime_directory: None, device: object) -> None:
        assert not zh.Transport.supported(device)
        why = zh.Transport.why_unsupported(device)
        assert device_name(device) in why
        assert "Fix: zerohop doctor" in why
        # As opening one says it.
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
            zh.Transport(device)
        assert str(caught.value) == why

    def test_with_settings(self, runtime_directory: None) -> None:
        """What a Context cannot be opened with: providers, as they say themselves, and what makes no sense."""
        assert zh.Transport.supported("host", providers=("tcp",))
        unusable = [name for name, usable, _, _ in _native.providers() if not usable]
        for name in unusable:
            with pytest.raises(zh.Unsupported) as caught:
                zh.Transport(providers=(name,))
            why = zh.Transport.why_unsupported("host", providers=(name,))
            assert why == str(caught.value)
            assert "Fix: " in why
            assert not zh.Transport.supported("host", providers=(name,))
        assert "no provider is called 'quic'" in zh.Transport.why_unsupported("host", providers=("quic",))
        with pytest.raises(ValueError, match="no provider is called 'quic'"):
            zh.Transport(providers=("quic",))
        # Of a listener for all the world, that nothing protects.
        why = zh.Transport.why_unsupported("host", listen="0.0.0.0:0")
        assert "secret" in why

    @pytest.mark.parametrize("call", [zh.Transport, zh.Transport.supported, zh.Transport.why_unsupported])
    def test_settings_that_there_are_not(self, call: Callable[..., object]) -> None:
        with pytest.raises(TypeError, match="colour"):
            call("host", colour="red")

    def test_nothing_is_left_open(self, no_leaks: None) -> None:
        for _ in range(3):
            assert zh.Transport.supported("sim:0")
            assert not zh.Transport.supported("sim:1", sim_devices=1)
            with pytest.raises(ValueError, match="sim:1"):
                zh.Transport("sim:1", sim_devices=1)
            with pytest.raises(ValueError, match="negative"):
                zh.Transport(timeout=-1)


class TestOpening:
    def test_settings_are_those_of_a_context(self, runtime_directory: None) -> None:
        with zh.Transport("sim:0", providers=("tcp",), name="mine", timeout=3) as transport:
            assert transport.context.name == "mine"
            assert transport.context._core.providers == ("tcp",)

    def test_beside_a_context(self, open_context: OpenContext) -> None:
        """Settings are of one that is opened, not of one that is open; that one stays open."""
        context = open_context(Options())
        with pytest.raises(ValueError, match=r"providers, secret: settings of a Context"):
            zh.Transport(ctx=context, providers=("tcp",), secret="x")
        with zh.Transport("sim:1", ctx=context, timeout=math.inf) as transport:
            assert transport.context is context
        context.alloc(64).close()

    def test_a_device_that_the_context_has_not(self, open_context: OpenContext) -> None:
        context = open_context(Options(sim_devices=1))
        for _ in range(3):
            with pytest.raises(ValueError, match="sim:1"):
                zh.Transport("sim:1", ctx=context)
        assert not context._core.watchers

    def test_a_context_that_is_closed(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        context.close()
        with pytest.raises(zh.Closed, match="this Context is closed"):
            zh.Transport(ctx=context)

    @pytest.mark.parametrize(("timeout", "kind"), [(-1, ValueError), (math.nan, ValueError), ("1", TypeError)])
    def test_a_timeout_that_is_none(self, open_context: OpenContext, timeout: object, kind: type[Exception]) -> None:
        context = open_context(Options())
        with pytest.raises(kind):
            zh.Transport(ctx=context, timeout=timeout)  # type: ignore[arg-type]
        assert not context._core.watchers

    def test_more_than_there_are_queues_for(self, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """The limit has a name, and one that is closed makes room."""
        context = open_context(Options(providers=("shm",)))
        with zh.Transport(ctx=context) as first:
            numbers = [
                context._core.engine.open_queue() for _ in range((1 << 16) - 3)
            ]  # the Context has two of its own
            with pytest.raises(zh.RegistrationFailed, match="65535 queues"):
                zh.Transport(ctx=context)
            context._core.engine.close_queue(numbers[5])
            with zh.Transport(ctx=context) as second:
                first.connect(second.bind()).result(PATIENCE_S)


class TestItself:
    def test_closed_by_its_block(self, runtime_directory: None) -> None:
        with zh.Transport() as transport:
            assert transport.bind().startswith("zerohop://")
        with pytest.raises(zh.Closed, match="this Transport is closed"):
            transport.bind()
        assert transport.context._core.closed
        transport.close()

    def test_closed_by_an_error_in_its_block(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        with pytest.raises(KeyError), zh.Transport(ctx=context) as transport:
            raise KeyError
        with pytest.raises(zh.Closed, match="this Transport is closed"):
            transport.flush()
        # It is not the Transport's.
        assert not context._core.closed

    def test_what_it_says_of_itself(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        with zh.Transport("sim:1", ctx=context) as one, zh.Transport("cpu", ctx=context) as other:
            assert repr(one) == "<Transport on sim:1, not connected>"
            one.connect(other.bind()).result(PATIENCE_S)
            assert repr(one) == "<Transport on sim:1, connected>"
            assert repr(other) == "<Transport on host, connected>"
            one.abort()
            assert repr(one) == "<Transport on sim:1, this Transport was aborted>"
        assert repr(other).startswith("<Transport on host, ")
        assert "connected" not in repr(other)

    def test_its_url(self, open_context: OpenContext) -> None:
        """Always the same, of this one alone, and the Context's with one part more."""
        context = open_context(Options())
        with zh.Transport(ctx=context) as one, zh.Transport(ctx=context) as other:
            assert one.bind() == one.bind() != other.bind()
            assert one.bind().startswith(context.url)

    def test_its_memory(self, open_context: OpenContext) -> None:
        """Is the Context's, whatever its device is called, and stays when it goes."""
        context = open_context(Options())
        with zh.Transport("sim:0", ctx=context) as transport:
            memory = transport.register(np.zeros(64, np.uint8))
            assert memory.device == "host"
        assert memory.read_bytes() == bytes(64)
        memory.close()
