# Signatures of native methods that nanobind cannot know (see scripts/stubs.sh).

zerohop._native.Transfers.write$:
    \from typing import Any
    \from zerohop.core.memory.remote_buffer import RemoteBuffer
    \from zerohop.core.runtime.operation import Operation
    def write(self, src: Any, dst: RemoteBuffer, *, notify: int | None = None, message: bytes | None = None, timeout: float | None = None, stream: Any = None) -> Operation[int]: ...

zerohop._native.Transfers.write_many$:
    def write_many(self, pairs: Sequence[tuple[Any, RemoteBuffer]], *, notify: int | None = None, message: bytes | None = None, timeout: float | None = None) -> Operation[int]: ...

zerohop._native.Transfers.read$:
    def read(self, src: RemoteBuffer, into: Any, *, notify: int | None = None, message: bytes | None = None, timeout: float | None = None, stream: Any = None) -> Operation[int]: ...

zerohop._native.PairTransfers.read$:
    def write(  # type: ignore[override] # an end of a pair takes other arguments
        self, view: Any, remote: RemoteBuffer, *, notify: int | None = None, timeout: float | None = None, stream: Any = None) -> Operation[int]: ...
    def read(  # type: ignore[override] # an end of a pair takes other arguments
        self, view: Any, remote: RemoteBuffer, *, timeout: float | None = None, stream: Any = None) -> Operation[int]: ...

zerohop._native.TaggedMessages.post_send$:
    def post_send(self, source: Any, rank: int, tag: int, timeout: float | None, /) -> Operation[int] | None: ...

zerohop._native.TaggedMessages.post_sends$:
    def post_sends(self, sources: tuple[Any, ...], rank: int, tag: int, timeout: float | None, waits: bool, in_turn: bool, /) -> int: ...

zerohop._native.TaggedMessages.exchange$:
    def exchange(self, source: Any, to: int, into: Any, sender: int, nbytes: int, tag: int, timeout: float | None, spin_ns: int, /) -> bool | tuple[Operation[int] | None, Operation[Any] | None]: ...

zerohop._native.TaggedMessages.post_recv$:
    def post_recv(self, into: Any, source: int | None, tag: int | None, timeout: float | None, /) -> Operation[Any] | None: ...

zerohop._native.NotificationWait.__init__$:
    def __init__(self, core: Any, deadline_ns: int, group: Any = None) -> None: ...

zerohop._native.NotificationWait.__del__$:
