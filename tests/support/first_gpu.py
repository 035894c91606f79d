"""What a program does with the first GPU by the driver's own functions; real, or in software."""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zerohop as zh

NON_BLOCKING = 1


def current_context() -> int | None:
    """Returns the calling thread's current context, whose GPU torch takes for the current device; None: it has none."""
    context = ctypes.c_void_p()
    # Before the driver is initialised it fails, and there is none.
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return context.value


class FirstGpu:
    """The first GPU's primary context, held, so that it stays while Contexts come and go."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        assert self.library.cuInit(0) == 0
        assert self.library.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self.library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device) == 0

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        assert self.library.cuCtxPushCurrent_v2(self._context) == 0
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self.library.cuCtxPopCurrent_v2(ctypes.byref(popped))

    def free_bytes(self) -> int:
        """How much memory the driver says that the GPU has left."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.current():
            assert self.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value

    def knows(self, address: int) -> bool:
        """Whether host memory there is registered with the driver."""
        base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        with self.current():
            found = self.library.cuMemGetAddressRange_v2(
                ctypes.byref(base), ctypes.byref(nbytes), ctypes.c_uint64(address)
            )
        return bool(found == 0)


class UserStream:
    """A stream of the first GPU, as a program makes one."""

    def __init__(self) -> None:
        self._driver, self._stream = FirstGpu(), ctypes.c_void_p()
        with self._driver.current():
            assert self._driver.library.cuStreamCreate(ctypes.byref(self._stream), NON_BLOCKING) == 0
        assert self._stream.value is not None
        self.number = self._stream.value

    def finish(self) -> None:
        """Wait for all that is queued on it."""
        with self._driver.current():
            assert self._driver.library.cuStreamSynchronize(self._stream) == 0

    def close(self) -> None:
        with self._driver.current():
            assert self._driver.library.cuStreamDestroy_v2(self._stream) == 0


class Still(UserStream):
    """One that stands still: what begins after it has not ended when something is closed."""

    def __init__(self, holder: zh.Context) -> None:
        super().__init__()
        self._holder = holder
        holder.notification(timeout=math.inf).wait_on(self.number)

    def release(self) -> None:
        """To be called in any case: nothing else lets the stream go. What was held up by it has ended then, too."""
        self._holder.close()
        with self._driver.current():
            assert self._driver.library.cuCtxSynchronize() == 0

    def close(self) -> None:
        self.release()
        super().close()
