"""TLS with certificates from seeds: who has the other seeds is refused on either side, and learns that it was."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import ssl
from typing import TYPE_CHECKING

import pytest

from support.endless_tls import CLIENT_HELLO, SERVER_HELLO, endless_hello
from support.leaks import holdings
from support.patience import PATIENCE_S
from support.sockets import connected
from zerohop.core.control import tls, wire
from zerohop.core.control.channel import _MAX_HANDSHAKE_BYTES, Channel, ChannelEnded
from zerohop.core.control.tls import Distrusted
from zerohop.errors import LimitReached, ProtocolError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

LISTEN, DIAL, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
OURS = tls.make_contexts(LISTEN, DIAL)


def _both(
    dials: Callable[[Channel], Coroutine[Any, Any, Any]], listens: Callable[[Channel], Coroutine[Any, Any, Any]]
) -> tuple[Any, Any]:
    """Returns what both sides of a connection have returned or raised."""

    async def side(work: Callable[[Channel], Coroutine[Any, Any, Any]], channel: Channel) -> Any:
        try:
            return await work(channel)
        finally:
            channel.close()

    async def main() -> tuple[Any, Any]:
        with connected() as (here, there):
            sides = side(dials, Channel(here)), side(listens, Channel(there))
            ends = await asyncio.gather(*sides, return_exceptions=True)
            return ends[0], ends[1]

    return asyncio.run(main())


async def _listens(channel: Channel) -> wire.Message:
    try:
        await channel.protect(OURS.listen, server_side=True)
    except Distrusted:
        await channel.linger()
        raise
    message, _ = await channel.receive()
    channel.post(message)
    await channel.flush()
    return message


def _dials(context: ssl.SSLContext) -> Callable[[Channel], Coroutine[Any, Any, wire.Message]]:
    async def dial(channel: Channel) -> wire.Message:
        await channel.protect(context, server_side=False)
        channel.post(SAID)
        return (await channel.receive())[0]

    return dial


# Longer than one record of TLS, and than one piece of a channel.
SAID = wire.Answer(number=1, status=0, body=os.urandom(60_000))


def test_both_know_the_secret() -> None:
    async def listens(channel: Channel) -> wire.Message:
        channel.limit = wire.MAX_FRAME
        return await _listens(channel)

    async def dials(channel: Channel) -> wire.Message:
        channel.limit = wire.MAX_FRAME
        assert channel.protection() == "not encrypted"
        answer = await _dials(OURS.dial)(channel)
        assert channel.protection() == "through TLS"
        return answer

    assert tuple(_both(dials, listens)) == (SAID, SAID)


def test_the_same_seeds_give_the_same_certificates() -> None:
    """On every host, whatever the time is there; else the two sides would not know each other."""
    again = tls.make_contexts(LISTEN, DIAL)
    assert (again.listen_lane, again.dial_lane) == (OURS.listen_lane, OURS.dial_lane)
    assert again.listen.get_ca_certs(binary_form=True) == OURS.listen.get_ca_certs(binary_form=True)


def test_a_listener_with_another_secret() -> None:
    context = tls.make_contexts(OTHER, DIAL).dial
    dialled, listened = _both(_dials(context), _listens)
    assert isinstance(dialled, Distrusted)
    assert "does not know the secret" in str(dialled)
    # It is told by an alert.
    assert isinstance(listened, Distrusted)


@pytest.mark.parametrize("certificate", [True, False])
def test_a_dialler_that_only_says_that_it_knows_the_secret(certificate: bool) -> None:
    """It believes the listener, finishes the handshake, and speaks; it is told by an alert, and not by a reset."""
    if certificate:
        context = tls.make_contexts(LISTEN, OTHER).dial
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    dialled, listened = _both(_dials(context), _listens)
    assert isinstance(listened, Distrusted)
    assert isinstance(dialled, Distrusted)
    assert "refused by the peer" in str(dialled)


def test_the_roles_differ() -> None:
    """A side that is sent its own words back does not take them for the peer's."""
    same = tls.make_contexts(LISTEN, LISTEN).dial
    dialled, listened = _both(_dials(same), _listens)
    assert isinstance(dialled, Distrusted)
    assert isinstance(listened, Distrusted)


def test_an_older_tls_is_refused() -> None:
    context = tls.make_contexts(LISTEN, DIAL).dial
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    dialled, listened = _both(_dials(context), _listens)
    assert isinstance(dialled, (ProtocolError, ChannelEnded))
    assert isinstance(listened, ProtocolError)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), bytes(range(64))], ids=["http", "zeros", "numbers"]
)
def test_something_else_than_tls(said: bytes) -> None:
    async def dials(channel: Channel) -> None:
        channel._queue(said, [])
        await channel.flush()
        await channel.linger()

    _, listened = _both(dials, _listens)
    assert isinstance(listened, ProtocolError)


@pytest.mark.parametrize("server_side", [True, False], ids=["listens", "dials"])
def test_a_handshake_without_end(server_side: bool) -> None:
    """Count its bytes on either side, because OpenSSL takes no notice of the heads of records."""
    said = endless_hello(CLIENT_HELLO if server_side else SERVER_HELLO, _MAX_HANDSHAKE_BYTES + (16 << 10))
    assert len(said) > _MAX_HANDSHAKE_BYTES

    async def hostile(channel: Channel) -> None:
        channel._queue(said, [])
        with contextlib.suppress(ChannelEnded):
            while True:  # until the other side has hung up
                await channel._some(1 << 16, "hung up")

    async def honest(channel: Channel) -> None:
        context = OURS.listen if server_side else OURS.dial
        await asyncio.wait_for(channel.protect(context, server_side=server_side), PATIENCE_S)

    dialled, listened = _both(hostile, honest) if server_side else _both(honest, hostile)
    ended = listened if server_side else dialled
    assert isinstance(ended, ProtocolError), ended
    assert "without end" in ended.reason


def test_no_descriptor_and_no_file_is_left(runtime_directory: None) -> None:
    gc.collect()
    before = holdings().descriptors
    tls.make_contexts(LISTEN, DIAL)
    gc.collect()
    assert holdings().descriptors == before


def test_the_system_refuses_a_file_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(Unsupported, match="not implemented") as caught:
        tls.make_contexts(LISTEN, DIAL)
    assert "encryption='none'" in caught.value.fix


def test_out_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(LimitReached, match="descriptors"):
        tls.make_contexts(LISTEN, DIAL)


@pytest.mark.parametrize("heard", [True, False], ids=["after a word", "before any word"])
def test_a_record_that_does_not_decrypt(heard: bool) -> None:
    """The side that finds it out can still try to say why; the other learns it by an alert."""

    async def dials(channel: Channel) -> None:
        await channel.protect(OURS.dial, server_side=False)
        if heard:
            channel.post(wire.Bye(text="before"))
        channel._queue(b"\x17\x03\x03\x00\x20" + bytes(32), [])
        await channel.receive()

    async def listens(channel: Channel) -> None:
        await channel.protect(OURS.listen, server_side=True)
        if heard:
            await channel.receive()
        try:
            await channel.receive()
        finally:
            channel.post(wire.Bye(text="TLS failed"))
            channel.post(wire.Bye(text="and again"))

    dialled, listened = _both(dials, listens)
    assert isinstance(listened, ProtocolError)
    assert "decryption failed or bad record mac" in listened.reason
    assert isinstance(dialled, ProtocolError)
    assert "alert bad record mac" in dialled.reason


def test_a_message_after_tls_has_failed_ends_the_channel() -> None:
    """As it fails here, nobody may be receiving, who would find it out."""

    async def dials(channel: Channel) -> None:
        await channel.protect(OURS.dial, server_side=False)
        assert channel._tls is not None
        channel._tls.feed(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ProtocolError):
            channel._tls.receive(channel._sock, 1)
        channel.post(wire.Bye(text=""))
        await channel.receive()

    async def listens(channel: Channel) -> None:
        await channel.protect(OURS.listen, server_side=True)
        await channel.receive()

    dialled, listened = _both(dials, listens)
    assert isinstance(dialled, ChannelEnded)
    assert "TLS failed" in str(dialled)
    assert isinstance(listened, ProtocolError)
