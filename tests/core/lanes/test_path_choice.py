"""The choice of a path from its table, and the words that explain it. No Context needed."""

from __future__ import annotations

import warnings

import pytest

import zerohop as zh
from zerohop.core.lanes import path_choice
from zerohop.core.lanes.path_choice import Cost, Situation

SHM: dict[str, Cost | None] = {"shm": Cost(1.0, 10.0)}
TCP: dict[str, Cost | None] = {"tcp": Cost(20.0, 4.0)}
VERBS: dict[str, Cost | None] = {"verbs": Cost(3.0, 50.0)}
UNNEEDED = {"tcp": "not needed beside shm", "verbs": "no NIC port is up", "p2p": "there is no GPU"}


def situation(local: str = "host", remote: str = "host", not_mappable: str = "") -> Situation:
    return Situation(local, remote, SHM, UNNEEDED, not_mappable)


def test_mapped_before_ring_before_stream() -> None:
    both = situation()._replace(lanes={**SHM, **TCP}, missing={})
    assert str(path_choice.choose(both)) == "shm (mapped) host→host direct"
    assert str(path_choice.choose(both._replace(not_mappable="no file"))) == "shm (ring) host→host staged"
    only_tcp = both._replace(lanes=TCP, missing={"shm": "other host"})
    assert str(path_choice.choose(only_tcp)) == "tcp (stream) host→host staged"


@pytest.mark.parametrize("pair", [("sim:0", "host"), ("host", "sim:1"), ("sim:0", "sim:0")])
def test_a_device_at_either_end_is_staged(pair: tuple[str, str]) -> None:
    chosen = path_choice.choose(situation(*pair))
    assert str(chosen) == f"shm (ring) {pair[0]}→{pair[1]} staged"
    assert not chosen.direct
    assert "mapped" in dict(chosen.rejected).__str__()


def test_why_a_devices_memory_is_not_mapped_is_that_it_is_a_devices() -> None:
    """Even where the connection, which does not look at devices, would say something of files."""
    chosen = path_choice.choose(situation("host", "sim:0", not_mappable="the memory is not in a shared file"))
    assert dict(chosen.rejected)["shm (mapped)"].startswith("a device's memory")


def test_devices_reach_a_peers_memory_themselves() -> None:
    both = situation("cuda:0", "cuda:0")._replace(lanes={**SHM, "p2p": Cost(7.0, 300.0)}, missing={}, link="nvlink")
    assert str(path_choice.choose(both)) == "p2p (nvlink) cuda:0→cuda:0 direct"
    assert str(path_choice.choose(both._replace(link=""))) == "p2p (peer) cuda:0→cuda:0 direct"
    staged = path_choice.choose(both._replace(no_peer_link="no peer link: they are on two islands"))
    assert str(staged) == "shm (ring) cuda:0→cuda:0 staged"
    assert dict(staged.rejected)["p2p (peer)"].startswith("no peer link")


def test_devices_have_nothing_to_do_with_host_memory_alone() -> None:
    both = situation()._replace(lanes={**SHM, "p2p": None}, missing={})
    assert dict(path_choice.choose(both).rejected)["p2p (peer)"] == "no device is at either end"


def test_every_other_path_says_why_not() -> None:
    chosen = path_choice.choose(situation(not_mappable="it lies in no shared file"))
    rejected = dict(chosen.rejected)
    assert rejected["shm (mapped)"] == "it lies in no shared file"
    assert rejected["tcp (stream)"] == "not needed beside shm"
    assert rejected["p2p (peer)"] == rejected["p2p (ring)"] == "there is no GPU"
    assert rejected["verbs (rdma)"] == rejected["verbs (stream)"] == "no NIC port is up"
    for name, why in chosen.rejected:
        assert f"not {name}: {why}" in chosen.details()


def test_a_slower_path_says_by_how_much() -> None:
    both = situation()._replace(lanes={**SHM, **TCP}, missing={}, not_mappable="no")
    why = dict(path_choice.choose(both).rejected)["tcp (stream)"]
    assert "slower" in why
    assert "282 µs against 106 µs" in why
    assert "estimates" in why
    assert "no measurements" in why


def test_no_path_names_every_reason() -> None:
    nothing = situation()._replace(lanes={}, missing={"shm": "other host"})
    with pytest.raises(zh.Unsupported) as caught:
        path_choice.choose(nothing)
    for word in (
        "shm (ring): other host",
        "tcp (stream): no lane",
        "p2p",
        "verbs (rdma): no lane",
        "verbs (stream): no",
    ):
        assert word in caught.value.reason
    assert caught.value.fix


def test_the_nics_of_a_lane() -> None:
    rails = (("mlx5_0 port 1", "mlx5_2 port 1"), ("mlx5_1 port 1", "mlx5_3 port 1"))
    chosen = path_choice.choose(two_hosts()._replace(rails=rails))
    assert chosen.rails == rails
    assert "  over mlx5_1 port 1 here and mlx5_3 port 1 there\n" in chosen.details()
    assert path_choice.choose(situation()._replace(rails=rails)).rails == ()


def test_require_direct() -> None:
    assert path_choice.choose(situation()._replace(require="direct")).direct
    with pytest.raises(zh.Unsupported, match="staged") as caught:
        path_choice.choose(situation("sim:0")._replace(require="direct"))
    assert caught.value.provider == "shm"
    assert caught.value.fix


@pytest.mark.parametrize("lanes", [SHM, TCP, {**SHM, **TCP}])
def test_a_ring_or_a_socket_is_not_direct(lanes: dict[str, Cost | None]) -> None:
    """The bytes are copied twice, also between host memories."""
    asked = situation(not_mappable="an array of this process alone")._replace(lanes=lanes, missing={})
    assert not path_choice.choose(asked).direct
    with pytest.raises(zh.Unsupported, match=r"would be staged; .* Fix: .*ctx\.alloc"):
        path_choice.choose(asked._replace(require="direct"))


def test_require_direct_takes_a_costlier_path_that_is() -> None:
    far: dict[str, Cost | None] = {"verbs": Cost(500.0, 0.1)}
    asked = two_hosts()._replace(lanes={**TCP, **far}, possible={})
    assert path_choice.choose(asked).provider == "tcp"
    assert path_choice.choose(asked._replace(require="direct")).form == "rdma"


def two_hosts(local: str = "host", remote: str = "host", not_reachable: str = "") -> Situation:
    """A tcp lane, and NICs that no lane uses yet."""
    other_host = {"shm": "the peer is not on this host"}
    return Situation(local, remote, TCP, other_host, "", possible=VERBS, not_reachable=not_reachable)


@pytest.mark.parametrize("pair", [("host", "host"), ("cuda:0", "host"), ("host", "sim:0"), ("sim:0", "sim:1")])
def test_what_nics_reach_at_both_ends_goes_over_them(pair: tuple[str, str]) -> None:
    chosen = path_choice.choose(two_hosts(*pair))
    assert str(chosen) == f"verbs (rdma) {pair[0]}→{pair[1]} direct"
    assert chosen.form in path_choice.IMPORTED
    assert path_choice.choose(two_hosts(*pair)._replace(require="direct")).direct


def test_memory_that_no_nic_knows_passes_through_buffers() -> None:
    tried = "the memory here: dma-buf: not exported; nvidia_peermem: not loaded"
    chosen = path_choice.choose(two_hosts("cuda:0", not_reachable=tried)._replace(lanes={"tcp": Cost(30.0, 1.0)}))
    assert str(chosen) == "verbs (stream) cuda:0→host staged"
    assert dict(chosen.rejected)["verbs (rdma)"] == tried
    assert f"not verbs (rdma): {tried}" in chosen.details()
    with pytest.raises(zh.Unsupported, match="dma-buf"):
        path_choice.choose(two_hosts("cuda:0", not_reachable=tried)._replace(require="direct"))


def test_host_memory_that_no_nic_knows_goes_over_tcp_rather_than_staged_over_verbs() -> None:
    only_verbs = two_hosts(not_reachable="memlock")._replace(lanes=VERBS, missing={"tcp": "not used", "shm": "far"})
    assert str(path_choice.choose(only_verbs)) == "verbs (stream) host→host staged"
    with pytest.raises(zh.Unsupported, match="staged"):
        path_choice.choose(only_verbs._replace(require="direct"))
    assert str(path_choice.choose(two_hosts(not_reachable="memlock"))) == "tcp (stream) host→host staged"


def test_host_memory_of_one_machine_needs_no_nic() -> None:
    both = situation()._replace(possible=VERBS, missing={}, not_mappable="no file")
    chosen = path_choice.choose(both)
    assert str(chosen) == "shm (ring) host→host staged"
    assert "needs no NIC" in dict(chosen.rejected)["verbs (rdma)"]
    # A device's memory would be staged over shm.
    assert str(path_choice.choose(both._replace(local_device="sim:0"))) == "verbs (rdma) sim:0→host direct"


def test_what_is_said_of_a_lane_goes_before_what_is_usual() -> None:
    slow: dict[str, Cost | None] = {"verbs": Cost(500.0, 0.1)}
    assert path_choice.choose(two_hosts()._replace(lanes={**TCP, **slow}, possible={})).provider == "tcp"
    assert path_choice.choose(two_hosts()._replace(possible=slow)).provider == "tcp"
    assert path_choice.choose(two_hosts()._replace(possible={"verbs": None})).provider == "verbs"
    assert path_choice.rdma_cost(50.0) == Cost(3.0, 50.0)
    assert path_choice.rdma_cost(0.0).gbytes_per_s > 0


def test_a_staged_path_warns_once_where_real_devices_are() -> None:
    warned: set[tuple[str, str, str]] = set()
    real = path_choice.choose(situation("cuda:0", "host"))
    with pytest.warns(zh.StagedPathWarning, match="require"):
        path_choice.warn_if_staged(real, warned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path_choice.warn_if_staged(real, warned)
        path_choice.warn_if_staged(path_choice.choose(situation("cuda:1", "host")), warned)
        path_choice.warn_if_staged(path_choice.choose(situation()), set())
        path_choice.warn_if_staged(path_choice.choose(situation("sim:0", "cuda:0")), set())
        bounced = two_hosts(not_reachable="memlock")._replace(lanes=VERBS, missing={"tcp": "not used", "shm": "far"})
        path_choice.warn_if_staged(path_choice.choose(bounced), set())


def test_a_lane_without_numbers_has_the_usual_cost() -> None:
    assert path_choice.lane_cost({}) is None
    assert path_choice.lane_cost({"fixed_us": 1.5, "gbps": 0}) is None
    assert path_choice.lane_cost({"fixed_us": 1.5, "gbps": 8.0}) == Cost(1.5, 8.0)
    assert str(path_choice.choose(situation()._replace(lanes={"shm": None}))) == "shm (mapped) host→host direct"


def test_a_slow_nic_is_still_no_slower_than_tcp_over_it() -> None:
    """A lane over 10 Gb/s, or one that does not know its rate, loses nothing to tcp's rate on one host."""
    lanes: dict[str, Cost | None] = {"verbs": Cost(3.0, 0.3), "tcp": Cost(60.0, 5.0)}
    assert path_choice.choose(two_hosts()._replace(lanes=lanes)).provider == "verbs"
