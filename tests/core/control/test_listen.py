"""The address that a Context is told to listen on, as an argument or by the environment."""

from __future__ import annotations

import errno
import socket

import pytest

import zerohop as zh
from zerohop.core.control import address, dial, listener


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("host", ("host", 0)),
        ("0.0.0.0:7", ("0.0.0.0", 7)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 0)),
        ("[::ffff:127.0.0.1]:65535", ("::ffff:127.0.0.1", 65535)),
    ],
)
def test_listen(listen: str, expected: tuple[str, int]) -> None:
    assert address.split_listen(listen) == expected


@pytest.mark.parametrize(
    "listen",
    [
        *("", " ", ":80", "h:port", "h:99999", "h:+1", "h: 1", "h:\N{ARABIC-INDIC DIGIT FIVE}", f"h:{'0' * 5000}"),
        *("h:1/path", "user@h:1", "h:1#x", "h:1?x", "h\n:0", "\th:0", "h:0\n", "h\0:0", "h i:0", "h:0:0"),
        *(
            "[::1:80",
            "::1",
            "[::1]x:0",
            "[::1]0",
            "x[::1]:0",
            "[127.0.0.1]:0",
            "[h]:0",
            "[]:0",
            "[::1%\n]:0",
            "[[::1]]:0",
        ),
    ],
)
def test_what_cannot_be_listened_on(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^listen=.*is not host:port, such as"):
        zh.Context(listen=listen)
    if listen.strip() == listen != "" and "\0" not in listen:
        monkeypatch.setenv("ZEROHOP_LISTEN", listen)
        with pytest.raises(ValueError, match=r"^ZEROHOP_LISTEN=.*is not host:port"):
            zh.Context()


def test_what_the_system_will_not_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error, too, says where the address came from."""
    with pytest.raises(zh.Unsupported, match=r"cannot listen on nobody\.invalid: "):
        zh.Context(listen="nobody.invalid")
    monkeypatch.setenv("ZEROHOP_LISTEN", "nobody.invalid")
    with pytest.raises(zh.Unsupported, match=r"cannot listen on nobody\.invalid \(ZEROHOP_LISTEN\): "):
        zh.Context()
    monkeypatch.setenv("ZEROHOP_LISTEN", "0.0.0.0:0")
    with pytest.raises(ValueError, match=r"ZEROHOP_LISTEN='0\.0\.0\.0:0' can be reached from other hosts"):
        zh.Context()


def test_the_zone_of_a_link_local_address() -> None:
    """The URL has it, because without it nobody reaches the address."""
    number, name = socket.if_nameindex()[0]
    assert listener._with_zone(("fe80::1", 5, 0, number)) == f"fe80::1%{name}"
    assert listener._with_zone(("fe80::1", 5, 0, 1 << 30)) == f"fe80::1%{1 << 30}"
    assert listener._with_zone(("::1", 5, 0, 0)) == "::1"
    assert listener._with_zone(("127.0.0.1", 5)) == "127.0.0.1"


def test_a_zone_that_is_no_interface() -> None:
    with pytest.raises(zh.Unsupported, match=r"cannot listen on \[fe80::1%nosuch0\]") as caught:
        zh.Context(listen="[fe80::1%nosuch0]:0", insecure=True)
    assert "interface" in caught.value.fix
    failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    why, fix = dial._unreached(address.parse("zerohop://[fe80::1%25nosuch0]:5"), failure)
    assert why.startswith("there is no interface 'nosuch0' here")
    assert "[fe80::1%25eth0]:5" in fix


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zerohop://[fe80::1]:5", "does not say which"),
        ("zerohop://[fe80::1%25eth0]:5", "nobody answers"),
        ("zerohop://[2001:db8::1]:5", "nobody answers"),
    ],
)
def test_what_a_peer_is_told_that_names_no_zone(url: str, words: str) -> None:
    why, fix = dial._unreached(address.parse(url), OSError(errno.EINVAL, "Invalid argument"))
    assert words in why
    assert ("[fe80::1%25eth0]:5" in fix) == (words != "nobody answers")
