"""What another thread does between any two steps of ours."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import zerohop as zh
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

# How often it is looked whether the other thread has to wait for a lock of ours; it goes on afterwards then.
_LOOK_S: Final = 0.002
_MANY: Final = 5000
_PACKAGE: Final = str(Path(zh.__file__).parent)


class Meanwhile:
    """Runs `action`, and before one instruction of the library's Python in it has another thread run `other`."""

    def __init__(self, action: Callable[[], object], other: Callable[[], object], step: int) -> None:
        self._thread = threading.Thread(target=self._attempt, args=[other])
        self._left = step
        # Of each, the error that it ended with.
        self.errors: list[zh.ZerohopError] = []
        with self._by_instruction():
            self._attempt(action)
        # Whether there was such an instruction.
        self.happened = self._left < 0
        if self.happened:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "it waits for ever"

    @contextmanager
    def _by_instruction(self) -> Iterator[None]:
        # From Python 3.12 on, which has it, a trace function hears of the instructions of a function from its second
        # call on only.
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)
            return
        tool, instruction, here = monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION, threading.get_ident()

        def before_one(code: CodeType, _: int) -> object:
            if not code.co_filename.startswith(_PACKAGE):
                return monitoring.DISABLE
            if threading.get_ident() == here:
                self._step()
            return None

        monitoring.use_tool_id(tool, __name__)
        monitoring.register_callback(tool, instruction, before_one)
        monitoring.set_events(tool, instruction)
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, instruction, None)
            monitoring.free_tool_id(tool)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except zh.ZerohopError as error:
            self.errors.append(error)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            self._step()
        return self._trace

    def _step(self) -> None:
        if self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self._thread.start()
                self._let_run()

    def _let_run(self) -> None:
        """Wait until the other thread has ended, or is seen asleep twice in a row: one without a processor is not."""
        asleep = 0
        while asleep < 2 and self._thread.is_alive():
            self._thread.join(_LOOK_S)
            try:
                state = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text("ascii").rpartition(") ")[2][0]
            except (FileNotFoundError, ProcessLookupError):
                return
            asleep = asleep + 1 if state == "S" else 0


def at_each_step(attempt: Callable[[int], Meanwhile]) -> None:
    """Until the step is beyond the last one."""
    for step in range(_MANY):
        if not attempt(step).happened:
            assert step > 1
            return
    raise AssertionError(f"more than {_MANY} steps")
