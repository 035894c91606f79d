"""EndpointConfig: defaults, ranges, and what a device must be able to do."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from zerohop.fabric import DeviceLimits, EndpointConfig
from zerohop.fabric.config import check, native_options

LIMITS = DeviceLimits(
    queue_pairs=64,
    requests=128,
    sge=4,
    completions=512,
    regions=100,
    region_bytes=1 << 30,
    read_credit=16,
    atomics="hca",
)


def test_defaults() -> None:
    config = EndpointConfig()
    assert (config.max_messages, config.receives, config.completions) == (128, 128, 256)
    assert (config.timeout, config.retry_count, config.rnr_retry, config.read_credit) == (14, 6, 7, 16)
    assert (config.gid_index, config.mtu, config.port, config.on_gpu) == (None, None, None, False)
    check(config, LIMITS, 1)


def test_a_plain_value() -> None:
    config = EndpointConfig(max_messages=7, traffic_class=106)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(EndpointConfig(max_messages=7, traffic_class=106))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_sge = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_messages", 0),
        ("max_messages", 1 << 31),
        ("max_receives", 0),
        ("max_completions", 255),
        ("max_sge", 0),
        ("max_inline", -1),
        ("gid_index", -1),
        ("port", 0),
        ("port", 256),
        ("read_credit", 0),
        ("read_credit", 256),
        ("timeout", 0),
        ("timeout", 32),
        ("retry_count", 8),
        ("rnr_retry", 8),
        ("min_rnr_timer", 32),
        ("mtu", 1500),
        ("mtu", 8192),
        ("service_level", 16),
        ("traffic_class", 256),
        ("hop_limit", 0),
        ("pkey_index", -1),
    ],
)
def test_out_of_range(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        EndpointConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_messages", None),
        ("max_messages", True),
        ("timeout", 14.0),
        ("gid_index", "1"),
        ("mtu", b""),
        ("on_gpu", 1),
    ],
)
def test_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        EndpointConfig(**{name: value})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (EndpointConfig(max_messages=129), "max_messages"),
        (EndpointConfig(max_receives=129), "max_receives"),
        (EndpointConfig(max_completions=513), "max_completions"),
        (EndpointConfig(max_sge=5), "max_sge"),
        (EndpointConfig(port=2), "port 1, not 2"),
    ],
)
def test_more_than_the_device_can_do(config: EndpointConfig, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check(config, LIMITS, 1)


def test_native_form() -> None:
    options = native_options(EndpointConfig(mtu=1024, hop_limit=3), 5)
    assert (options["mtu"], options["gid_index"], options["hop_limit"]) == (1024, 5, 3)
    assert native_options(EndpointConfig(), -1)["mtu"] == 0
