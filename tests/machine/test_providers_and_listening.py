"""What providers and the listening address are said to be."""

from __future__ import annotations

import pytest

import zerohop as zh
from zerohop.machine import facts as machine_facts
from zerohop.machine.facts import describe_listening, describe_providers, read_providers


def test_unusable_provider_keeps_reason_and_fix() -> None:
    shm, *_ = describe_providers(
        [("shm", False, "memfd_create is not permitted", "allow it in the seccomp profile")], "x86_64"
    )
    assert (shm.usable, shm.why, shm.fix) == (False, "memfd_create is not permitted", "allow it in the seccomp profile")


def test_a_context_says_of_an_unusable_one_what_info_says() -> None:
    unusable = [provider for provider in read_providers() if not provider.usable]
    for facts in unusable:
        with pytest.raises(zh.Unsupported) as caught:
            zh.Context(providers=[facts.name])
        assert caught.value.reason == facts.why
        assert str(caught.value) == f"{facts.name}: {facts.why}. Fix: {facts.fix}"


def test_without_proc_none_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "/proc is not mounted"
    monkeypatch.setattr(machine_facts, "why_no_context", lambda: (why, "mount it"))
    assert {(each.usable, each.why, each.fix) for each in read_providers()} == {(False, why, "mount it")}


def test_label_tells_what_has_not_run_on_hardware() -> None:
    probed = [("shm", True, "", ""), ("tcp", True, "", ""), ("verbs", True, "", "")]
    shm, tcp, verbs = describe_providers(probed, "x86_64")
    assert shm.label == ""
    assert "between two hosts" in tcp.label
    assert verbs.label == "not verified on hardware"
    arm, *_ = describe_providers(probed, "aarch64")
    assert arm.label.startswith("not verified on hardware: aarch64")


def test_the_native_module_is_asked() -> None:
    facts = {provider.name: provider for provider in read_providers()}
    assert {"shm", "tcp"} <= set(facts)
    assert facts["shm"].usable
    assert facts["tcp"].usable


@pytest.mark.parametrize("address", [None, "127.0.0.1:0", "localhost:4000", "[::1]:4000", "127.8.9.1:1"])
def test_loopback_needs_no_secret(address: str | None) -> None:
    facts = describe_listening(address, secret=False, insecure=False)
    assert facts.loopback
    assert not facts.insecure
    assert (facts.why, facts.fix) == ("", "")


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":4000", "10.0.0.7:1", "[::]:1", "node7:1"])
def test_strangers_are_kept_out_or_shown(address: str) -> None:
    refused = describe_listening(address, secret=False, insecure=False)
    assert "refused" in refused.why
    assert "ZEROHOP_SECRET" in refused.fix
    shown = describe_listening(address, secret=False, insecure=True)
    assert shown.insecure
    assert shown.why == ""
    safe = describe_listening(address, secret=True, insecure=True)
    assert not safe.insecure
    assert (safe.why, safe.fix) == ("", "")
    without = describe_listening(address, secret=True, insecure=False, encryption="control", no_tls="no OpenSSL")
    assert "no OpenSSL" in without.why
    assert "zerohop[tls]" in without.fix
