"""What peers are told about a listener that is bound to a wildcard, or by the user's wish."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

import zerohop as zh
from zerohop.core.control import address, advertised
from zerohop.core.control.advertised import Interface, advertised_host

LO = Interface("lo", True, False, ("127.0.0.1",))
BRIDGE = Interface("docker0", True, False, ("172.17.0.1",))
DOWN = Interface("eth0", False, True, ("10.0.0.1",))
CARD = Interface("eth1", True, True, ("10.0.0.2", "2001:db8::2"))
BARE = Interface("eth2", True, True, ())


@pytest.fixture
def unrouted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host without a default route."""
    monkeypatch.setattr(advertised, "_routed", lambda bound: "")
    monkeypatch.setattr(advertised, "interfaces", lambda: [LO, BRIDGE, DOWN, CARD, BARE])
    return monkeypatch


def test_a_bound_address_is_advertised() -> None:
    assert advertised_host("10.1.2.3") == "10.1.2.3"


def test_a_wildcard_is_not_advertised() -> None:
    assert advertised_host("0.0.0.0") not in ("0.0.0.0", "")


@pytest.mark.usefixtures("unrouted")
@pytest.mark.parametrize(("bound", "expected"), [("0.0.0.0", "10.0.0.2"), ("::", "2001:db8::2")])
def test_without_a_route_a_card_that_is_up(bound: str, expected: str) -> None:
    assert advertised_host(bound) == expected


def test_a_bridge_is_better_than_loopback(unrouted: pytest.MonkeyPatch) -> None:
    unrouted.setattr(advertised, "interfaces", lambda: [LO, DOWN, BRIDGE, BARE])
    assert advertised_host("0.0.0.0") == "172.17.0.1"
    assert advertised_host("::", both=True) == "172.17.0.1"
    assert advertised_host("::") == "::1"


def test_a_route_over_loopback_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(contextlib.nullcontext[Any]):
        def __init__(self, *_: object) -> None:
            super().__init__(self)

        def connect(self, where: object) -> None: ...
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 9

    monkeypatch.setattr(advertised, "interfaces", lambda: [LO, CARD])
    monkeypatch.setattr(socket, "socket", Probe)
    assert advertised_host("0.0.0.0") == "10.0.0.2"


@pytest.mark.usefixtures("unrouted")
@pytest.mark.parametrize(
    ("bound", "wish", "expected"),
    [
        ("0.0.0.0", "eth1", "10.0.0.2"),
        ("::", "eth1", "2001:db8::2"),
        ("::", "docker0", "172.17.0.1"),
        ("10.0.0.2", "eth1", "10.0.0.2"),
        ("0.0.0.0", "192.0.2.77", "192.0.2.77"),
        ("127.0.0.1", "192.0.2.77", "192.0.2.77"),
    ],
)
def test_a_wish(bound: str, wish: str, expected: str) -> None:
    assert advertised_host(bound, wish, both=True) == expected


def test_the_name_of_a_host(unrouted: pytest.MonkeyPatch) -> None:
    """As it is; a bare system knows no name at all, not even localhost."""
    asked: list[object] = []
    unrouted.setattr(socket, "getaddrinfo", lambda *arguments: asked.append(arguments))
    assert advertised_host("0.0.0.0", "gpu-7.example") == "gpu-7.example"
    assert asked == [("gpu-7.example", None)]


@pytest.mark.usefixtures("unrouted")
@pytest.mark.parametrize(
    ("bound", "wish", "said"),
    [
        ("0.0.0.0", "eth2", r"'eth2': the interface has no IPv4 address.*eth1 \(10.0.0.2, 2001:db8::2\)"),
        ("::", "docker0", r"'docker0': the interface has no IPv6 address"),
        ("0.0.0.0", "eth9.invalid", r"neither an address, nor an interface.*lo \(127.0.0.1\).*eth2 \(no address\)"),
        ("0.0.0.0", "0.0.0.0", "no address that a peer could connect to"),
        ("0.0.0.0", "0", "no address that a peer could connect to"),
        ("0.0.0.0", "0.0", "no address that a peer could connect to"),
        ("0.0.0.0", "0x0", "no address that a peer could connect to"),
        ("0.0.0.0", "00.0.0.0", "no address that a peer could connect to"),
        ("::", "::", "no address that a peer could connect to"),
        ("::", "0:0:0:0:0:0:0:0", "no address that a peer could connect to"),
        ("::", "::%lo", "no address that a peer could connect to"),
        ("::", "::ffff:0.0.0.0", "no address that a peer could connect to"),
        ("127.0.0.1", "eth1", r'listens on 127.0.0.1 only.*listen="0.0.0.0:0"'),
    ],
)
def test_a_wish_that_makes_no_sense(bound: str, wish: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        advertised_host(bound, wish)


def test_the_interfaces_of_this_host() -> None:
    found = {each.name: each for each in advertised.interfaces()}
    assert found["lo"].up
    assert "127.0.0.1" in found["lo"].addresses


def test_a_context_tells_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with zh.Context(advertise="lo", listen="127.0.0.1:0") as context:
        assert address.parse(context.url).host == "127.0.0.1"
    with zh.Context(advertise="192.0.2.77") as context:
        assert address.parse(context.url).host == "192.0.2.77"
    with pytest.raises(ValueError, match=r"^advertise='eth9\.invalid'"):
        zh.Context(advertise="eth9.invalid")
    monkeypatch.setenv("ZEROHOP_ADVERTISE", "0")
    with pytest.raises(ValueError, match=r"^ZEROHOP_ADVERTISE='0'"):
        zh.Context()
