"""Measures the floor of rows that sleep in `await`: two event loops and a socket, with no zerohop between them."""

from __future__ import annotations

import asyncio
import os
import time


async def ping(fd: int, message: bytes, rounds: int, pause: float) -> list[int]:
    """Send `message` after each pause, and await as many bytes.

    Returns:
        Departure and arrival times in turn, in nanoseconds of the monotonic clock.
    """
    times = []
    for _ in range(rounds):
        await asyncio.sleep(pause)
        times.append(time.monotonic_ns())
        os.write(fd, message)
        await _receive(fd, len(message))
        times.append(time.monotonic_ns())
    return times


async def pong(fd: int, message: bytes, rounds: int, pause: float) -> list[int]:
    """Answer each message after a pause; return arrival and departure times in turn."""
    times = []
    for _ in range(rounds):
        await _receive(fd, len(message))
        times.append(time.monotonic_ns())
        await asyncio.sleep(pause)
        times.append(time.monotonic_ns())
        os.write(fd, message)
    return times


async def _receive(fd: int, nbytes: int) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(fd, readable.set_result, None)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
    while nbytes:
        got = len(os.read(fd, nbytes))
        if not got:
            raise EOFError("the other process has closed its end")
        nbytes -= got
