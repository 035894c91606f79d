"""Gives up lanes over NICs whose ports go down: idle ones at once, others when their NICs had time to give up.

On the control thread, for one Connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zerohop.config.providers import VERBS
from zerohop.core.control import wire
from zerohop.core.lanes import nic_ports
from zerohop.core.lanes.lane import Lane, State
from zerohop.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Domain
    from zerohop.config.verbs_options import VerbsOptions
    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.lane_core import LaneCore
    from zerohop.core.lanes.lane_table import LaneTable
    from zerohop.core.lanes.link import Link


class LanePorts:
    """Watches the ports under the lanes of a Connection."""

    def __init__(
        self, core: LaneCore, link: Link, channel: Channel, lanes: LaneTable, go_down: Callable[[Lane, str], None]
    ) -> None:
        """Watch nothing yet; ``go_down(lane, why)`` takes a lane down."""
        self._core = core
        self._link = link
        self._channel = channel
        self._lanes = lanes
        self._go_down = go_down
        # Timers of lanes with a port that is down, by the number of the lane. Each lasts as long as a NIC may try.
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def on_port_down(self, domain: Domain) -> None:
        """Handle a port that went down: give up idle lanes over it if there is another way.

        Operations in flight may outlast a short interruption, so their lane stays for as long as its NIC takes to give
        them up. Only the peer knows whether it has any in flight, so it is asked. Its answer changes nothing if the
        port is up again by then, or the lane in use.
        """
        for lane in list(self._lanes.all.values()):
            if lane.state is not State.UP or all(each.number != domain.number for each in lane.domains):
                continue
            if self._another_way(lane) and lane.endpoint.quiet:
                self._channel.post(wire.LaneQuiet(number=lane.number))
            if lane.number not in self._timers:
                self._watch(lane)

    def on_port_up(self) -> None:
        """Handle a port that is up again."""
        for number in list(self._timers):
            lane = self._lanes.all.get(number)
            if lane is None or not _down_under(lane):
                self._timers.pop(number).cancel()

    def on_lane_quiet(self, message: wire.LaneQuiet) -> None:
        """Handle LaneQuiet: the peer asks whether a lane is used, or says that it is not."""
        lane = self._lanes.find(message.number)
        if lane is None or lane.state is not State.UP:
            return
        if lane.provider != VERBS:
            raise ProtocolError("malformed: LaneQuiet of a lane without ports")
        if not message.answer:
            if lane.endpoint.quiet:
                self._channel.post(wire.LaneQuiet(number=lane.number, answer=True))
            return
        if (down := _down_under(lane)) and lane.endpoint.quiet:
            self._go_down(lane, f"{down}: the port or its device is down")

    def end(self) -> None:
        """Stop all timers, because the Connection is lost."""
        while self._timers:
            self._timers.popitem()[1].cancel()

    def _watch(self, lane: Lane) -> None:
        seconds = no_answer_s(self._core.settings.verbs)
        self._timers[lane.number] = asyncio.get_running_loop().call_later(seconds, self._no_answer, lane)

    def _no_answer(self, lane: Lane) -> None:
        """Give up a lane whose NIC should have given it up by itself; Soft-RoCE was seen once not to."""
        self._timers.pop(lane.number, None)
        down = _down_under(lane)
        if lane.state is not State.UP or not down:
            return
        if lane.endpoint.in_device:
            self._go_down(lane, f"{down}: the port or its device is down, and the NIC does not give up")
        else:
            self._watch(lane)  # operations may still be posted on the lane

    def _another_way(self, lane: Lane) -> bool:
        """Tell whether another provider could carry what a lane of NICs carries, as far as this side knows."""
        anything = self._core.settings.require != "direct"
        if anything and any(provider != lane.provider for provider in self._link.possible):
            return True
        return bool(nic_ports.pair(self._core.nic_ports.nics(), self._link.their_nics))


def no_answer_s(options: VerbsOptions) -> float:
    """Return the seconds after which a NIC without an answer gives up: by specification, four timeouts per attempt."""
    return 4 * (options.retry_count + 1) * 4.096e-6 * (1 << options.timeout)


def _down_under(lane: Lane) -> str:
    """Return the ports of a lane that are down; empty if all are up."""
    return ", ".join(f"{domain.device} port {domain.port}" for domain in lane.domains if not domain.alive)
