"""An owner that cannot give out memory answers, whatever the reason is, so that nobody waits for it in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop.errors import too_many_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

NBYTES = 4096


@pytest.mark.parametrize(
    ("error", "said"), [(too_many_threads, "no more threads can be started"), (KeyError, "its owner failed: KeyError")]
)
def test_the_user_learns_why(
    open_context: OpenContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Callable[[], Exception],
    said: str,
) -> None:
    options = Options(providers=("p2p",), sim_devices=1)
    here, there = open_context(options), open_context(options)
    target = there.alloc(NBYTES, "sim:0")
    handle = target.share("rw")
    run_in_thread = there._core.control.run_in_thread

    async def fail(call: Any, *args: Any, **options: Any) -> Any:
        raise error()

    monkeypatch.setattr(there._core.control, "run_in_thread", fail)
    source = here.alloc(NBYTES, "sim:0")
    write = here.write(source, handle, timeout=PATIENCE_S)
    write.result()
    assert any(said in why for _, why in write.explain().rejected), write.explain().details()
    # It holds up nobody, and may be tried again.
    monkeypatch.setattr(there._core.control, "run_in_thread", run_in_thread)
    other = there.alloc(NBYTES, "sim:0")
    source.write_bytes(0, pattern(1, NBYTES).tobytes())
    here.write(source, other.share("rw"), timeout=PATIENCE_S).result()
    assert other.read_bytes() == pattern(1, NBYTES).tobytes()
    target.revoke(timeout=PATIENCE_S)
    # A record has the traceback of what nobody thought of, which has all objects.
    assert len(caplog.records) == (error is KeyError)
    caplog.clear()


def test_a_listener_that_cannot_make_its_keys(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses, and says that it is at a limit; a wrong secret is another matter."""
    options = Options(providers=("tcp",), secret="sesame")
    here, there = open_context(options), open_context(options)
    secret = there._core.listeners._me.secret
    assert secret is not None

    async def fail() -> bytes:
        raise too_many_threads()

    monkeypatch.setattr(secret, "proof_key", fail)
    with pytest.raises(zh.PeerLost, match="no more threads can be started"):
        here.connect(there.url).result(PATIENCE_S)
    monkeypatch.undo()
    here.connect(there.url).result(PATIENCE_S)
