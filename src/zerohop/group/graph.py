"""Declares Graph, operations and functions that begin when others have ended."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

from zerohop.core.face import Operation
from zerohop.errors import Closed
from zerohop.group.completion import Completion, Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zerohop.core.face import Context
    from zerohop.group.messaging import Messaging


class Node:
    """Represents a step of a Graph. Made by ``Graph.add``.

    Attributes:
        value: what the step gave: the value of its Operation, or what its function returned. None before its end.
        error: why it failed. None if it has not.
    """

    def __init__(self, begin: Callable[[], Any], after: tuple[Node, ...]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._begin = begin
        self.after = after
        self.before: list[Node] = []
        self.waits_for = 0

    def begin(self) -> Any:
        """Call the function."""
        return self._begin()


class Graph(Completion):
    """Runs steps, each of which begins when the steps that it comes after have ended well.

    A step is a function. If it returns an Operation, the step ends with that; else it ends with the function.
    Functions run in the thread that starts the graph, waits for it or looks at it. A graph can be started again when it
    has ended. Thread-safe.
    """

    def __init__(self, group: Messaging) -> None:
        """Make an empty graph of operations of a group, or of other groups of the same Context."""
        super().__init__(group)
        self._nodes: list[Node] = []
        self._left = 0
        self._ready: collections.deque[Node] = collections.deque()
        self._told: tuple[Completion | None, Any] = None, None

    def check(self, context: Context) -> None:  # noqa: ARG002 - it is refused for every Context
        """Raise TypeError: no operation tells a Graph of its end, but the steps' own."""
        raise TypeError("a Graph is given to no operation; add() a step that begins the operation")

    def add(self, begin: Callable[[], Any], *, after: Iterable[Node] = ()) -> Node:
        """Add a step that begins when the steps ``after`` have ended well.

        Raises:
            ValueError: a step of another graph, or the graph is running.
            TypeError: ``begin`` cannot be called.
        """
        if not callable(begin):
            raise TypeError(
                f"a step is a function that begins it, such as lambda: group.send(x, 1); not a {type(begin).__name__}"
            )
        earlier = tuple(after)
        with self._changed:
            self._check_still()
            for each in earlier:
                if each not in self._nodes:
                    raise ValueError("after has a step of another graph")
            node = Node(begin, earlier)
            for each in earlier:
                each.before.append(node)
            self._nodes.append(node)
        return node

    def start(self, *, comp: Completion | None = None, context: Any = None) -> None:
        """Begin the steps that come after no other.

        Args:
            comp: a completion object that is told an ``Ended`` of the kind ``"graph"`` when all steps have ended.
            context: any object, for ``Ended.context``.

        Raises:
            ValueError: the graph is running, or ``comp`` is of another Context.
            Closed: the Context is closed.
        """
        self._endings.check_open()
        if comp is not None:
            comp.check(self.context)
        with self._changed:
            self._check_still()
            self._told = comp, context
            self._left = len(self._nodes)
            for node in self._nodes:
                node.value, node.error, node.waits_for = None, None, len(node.after)
            self._ready.extend(node for node in self._nodes if not node.after)
            self._run()
            if not self._nodes:
                self._tell()

    def test(self) -> bool:
        """Tell whether all steps have ended; run those that can."""
        self.progress()
        return not self._left

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all steps have ended.

        Raises:
            DeadlineExceeded: the time is up.
            PeerLost, ...: the error of the first step, in the order of ``add``, that failed by itself. Those after it
                were not begun.
        """
        self._until(self._over, timeout)
        self._raise()

    async def until(self, timeout: float | None = None) -> None:
        """Do ``wait`` on the running event loop."""
        await self._until_on_loop(self._over, timeout)
        self._raise()

    def _over(self) -> bool | None:
        return not self._left or None

    def _raise(self) -> None:
        error = self._first_error()
        if error is not None:
            raise error

    def _first_error(self) -> BaseException | None:
        return next((node.error for node in self._nodes if node.error and not isinstance(node.error, _NotBegun)), None)

    def _check_still(self) -> None:
        if self._left:
            raise ValueError("the graph is running; wait() for it")

    def _run(self) -> None:
        """Begin the steps that are ready; the lock is held."""
        while self._ready:
            node = self._ready.popleft()
            failed = next((each for each in node.after if each.error is not None), None)
            try:
                if failed is not None:
                    raise _NotBegun("a step before it has failed")  # noqa: TRY301 - one way for all that fails
                value = node.begin()
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything; wait() raises it
                self._end(node, None, error)
                continue
            if isinstance(value, Operation):
                self.watch(value, functools.partial(self._operation_ended, node))
            else:
                self._end(node, value, None)

    def _operation_ended(self, node: Node, operation: Operation[Any]) -> None:
        from concurrent.futures import CancelledError

        try:
            self._end(node, operation.result(0), None)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - an operation may fail with any error; wait() raises it
            self._end(node, None, error)
        self._run()

    def _end(self, node: Node, value: Any, error: BaseException | None) -> None:
        node.value, node.error = value, error
        self._left -= 1
        for each in node.before:
            each.waits_for -= 1
            if not each.waits_for:
                self._ready.append(each)
        if not self._left:
            self._tell()

    def _tell(self) -> None:
        comp, context = self._told
        self._told = None, None
        if comp is not None:
            error = self._first_error()
            told = error if error is None or isinstance(error, Exception) else Closed("a step was cancelled")
            comp.note(Ended("graph", -1, 0, 0, None, context, told))
        self._tell_waiters()


class _NotBegun(Exception):
    """Marks a step that was not begun."""
