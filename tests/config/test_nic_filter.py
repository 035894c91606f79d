"""The setting that names NICs: what it may say, and what it means."""

from __future__ import annotations

import pytest

from zerohop.config.nic_filter import NicFilter, matches, parse_nic_filter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mlx5_0", NicFilter(include=("mlx5_0",))),
        (" mlx5_0 , mlx5_1:1 ", NicFilter(include=("mlx5_0", "mlx5_1:1"))),
        ("mlx5_[0-3],rxe*:2", NicFilter(include=("mlx5_[0-3]", "rxe*:2"))),
        ("^mlx5_2,mlx5_3", NicFilter(exclude=("mlx5_2", "mlx5_3"))),
        (" ^ mlx5_2", NicFilter(exclude=("mlx5_2",))),
        ("rocep59s0f1-x.7", NicFilter(include=("rocep59s0f1-x.7",))),
    ],
)
def test_what_is_understood(text: str, expected: NicFilter) -> None:
    assert parse_nic_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no NIC"),
        ("  ", "names no NIC"),
        ("^", "names no NIC"),
        ("mlx5_0,,mlx5_1", "empty name"),
        ("mlx5_0,", "empty name"),
        ("mlx5_0,^mlx5_1", "stands once"),
        ("^^mlx5_1", "stands once"),
        ("mlx5_0:", "'mlx5_0:' is no NIC"),
        ("mlx5_0:one", "'mlx5_0:one' is no NIC"),
        (":1", "':1' is no NIC"),
        ("mlx5_0 mlx5_1", "'mlx5_0 mlx5_1' is no NIC"),
        ("=mlx5_0", "'=mlx5_0' is no NIC"),
    ],
)
def test_what_is_not_understood_is_told(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_nic_filter(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("mlx5_1", {"mlx5_1:1", "mlx5_1:2"}),
        ("mlx5_1:2", {"mlx5_1:2"}),
        ("mlx5_*", {"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}),
        ("mlx5_?", {"mlx5_1:1", "mlx5_1:2"}),
        ("mlx5_[!1]*", set()),
        ("*:1", {"mlx5_1:1", "mlx5_10:1", "rxe0:1"}),
        ("MLX5_1", set()),
    ],
)
def test_patterns(pattern: str, meant: set[str]) -> None:
    ports = [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)]
    assert {f"{device}:{port}" for device, port in ports if matches(pattern, device, port)} == meant
