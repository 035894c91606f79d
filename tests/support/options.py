"""How a Context of a test is opened, as a plain value that crosses a process boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import zerohop as zh
from support.patience import patience


@dataclass(frozen=True)
class Options:
    """The arguments of `zh.Context`, with the tests' defaults: two sim devices, deadlines within a test's limit."""

    providers: tuple[str, ...] | None = None
    require: Literal["direct"] | None = None
    nics: str | None = None
    verbs: zh.VerbsOptions | None = None
    sim_devices: int = 2
    sim_peermem: bool | None = None
    timeout: float = patience(10.0)
    listen: str | None = "127.0.0.1:0"
    secret: str | None = None
    encryption: Literal["none", "control", "all"] | None = None
    spin_us: float = 50.0
    heartbeat: float = 10.0
    tcp_flows: int | None = None
    name: str | None = None

    def open(self) -> zh.Context:
        # What is None here is as in the environment.
        usual: dict[str, Any] = {
            "nics": self.nics,
            "verbs": self.verbs,
            "sim_peermem": self.sim_peermem,
            "tcp_flows": self.tcp_flows,
        }
        return zh.Context(
            **{name: value for name, value in usual.items() if value is not None},
            providers=self.providers,
            require=self.require,
            sim_devices=self.sim_devices,
            timeout=self.timeout,
            listen=self.listen,
            secret=self.secret,
            encryption=self.encryption,
            spin_us=self.spin_us,
            heartbeat=self.heartbeat,
            name=self.name,
        )


def fewest_devices(provider: str) -> int:
    """As many as a Context needs that has no other provider: devices are what p2p copies with."""
    return 1 if provider == "p2p" else 0
