"""Where a Context's defaults come from: argument before variable before table; nonsense is named with its source."""

from __future__ import annotations

import os
import traceback
import warnings
from typing import Any

import numpy as np
import pytest

from zerohop.config import environment
from zerohop.config.nic_filter import NicFilter
from zerohop.config.processors import usable_processors
from zerohop.config.settings import SETTINGS, UNSET, Settings, resolve
from zerohop.config.verbs_options import VerbsOptions


def test_the_table_covers_every_argument() -> None:
    assert (*(setting.name for setting in SETTINGS), "from_environment") == Settings._fields
    assert all(setting.help for setting in SETTINGS)


def test_defaults() -> None:
    settings = resolve({}, {})
    assert settings.listen == "127.0.0.1:0"
    assert settings.secret is None
    assert settings.providers is None
    assert (settings.timeout, settings.spin_us, settings.heartbeat) == (30.0, 50.0, 10.0)
    assert settings.sim_devices == 0
    assert settings.name.isdigit()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("ZEROHOP_LISTEN", "none", "listen", None),
        ("ZEROHOP_LISTEN", "[::1]:80", "listen", "[::1]:80"),
        ("ZEROHOP_SECRET", "sesame", "secret", b"sesame"),
        ("ZEROHOP_SECRET", "none", "secret", b"none"),
        ("ZEROHOP_SECRET", " two words ", "secret", b" two words "),
        ("ZEROHOP_SECRET", " ", "secret", b" "),
        ("ZEROHOP_LISTEN", " None ", "listen", None),
        ("ZEROHOP_ADVERTISE", " eth1 ", "advertise", "eth1"),
        ("ZEROHOP_ADVERTISE", "none", "advertise", None),
        ("ZEROHOP_INSECURE", " 1 ", "insecure", True),
        ("ZEROHOP_INSECURE", "1", "insecure", True),
        ("ZEROHOP_INSECURE", "off", "insecure", False),
        ("ZEROHOP_ENCRYPTION", " None ", "encryption", "none"),
        ("ZEROHOP_ENCRYPTION", "", "encryption", "none"),
        ("ZEROHOP_PROVIDERS", "shm, tcp", "providers", ("shm", "tcp")),
        ("ZEROHOP_PROVIDERS", "", "providers", None),
        ("ZEROHOP_REQUIRE", "direct", "require", "direct"),
        ("ZEROHOP_SIM_DEVICES", " 2 ", "sim_devices", 2),
        ("ZEROHOP_SIM_PEERMEM", "0", "sim_peermem", False),
        ("ZEROHOP_NICS", "none", "nics", None),
        ("ZEROHOP_NICS", "^mlx5_2", "nics", NicFilter(exclude=("mlx5_2",))),
        ("ZEROHOP_VERBS", "gid_index=3", "verbs", VerbsOptions(gid_index=3)),
        ("ZEROHOP_TIMEOUT", "1.5", "timeout", 1.5),
        ("ZEROHOP_SPIN_US", "0", "spin_us", 0.0),
        ("ZEROHOP_NAME", "trainer", "name", "trainer"),
    ],
)
def test_from_the_environment(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(resolve({}, {variable: text}), name) == value


@pytest.mark.parametrize(
    ("given", "text", "meant"),
    [
        (UNSET, None, "control"),
        (None, None, "control"),
        (UNSET, "all", "all"),
        ("none", "all", "none"),
        ("control", "none", "control"),
        (None, "none", "control"),
    ],
)
def test_a_secret_brings_encryption(given: Any, text: str | None, meant: str) -> None:
    environment = {} if text is None else {"ZEROHOP_ENCRYPTION": text}
    assert resolve({"secret": "sesame", "encryption": given}, environment).encryption == meant


def test_where_a_value_comes_from() -> None:
    settings = resolve({"timeout": 1}, {"ZEROHOP_TIMEOUT": "7", "ZEROHOP_LISTEN": "none"})
    assert (settings.source("timeout"), settings.source("listen")) == ("timeout", "ZEROHOP_LISTEN")


def test_an_argument_wins() -> None:
    environment = {"ZEROHOP_TIMEOUT": "7", "ZEROHOP_LISTEN": "127.0.0.1:9"}
    assert resolve({"timeout": 1, "listen": None}, environment)[:1] == (None,)
    assert resolve({"timeout": 1}, environment).timeout == 1.0
    assert resolve({"timeout": UNSET}, environment).timeout == 7.0


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ZEROHOP_SIM_DEVICES", "two"),
        ("ZEROHOP_SIM_DEVICES", "-1"),
        ("ZEROHOP_TIMEOUT", "soon"),
        ("ZEROHOP_TIMEOUT", "-1"),
        ("ZEROHOP_TIMEOUT", "nan"),
        ("ZEROHOP_INSECURE", "maybe"),
        ("ZEROHOP_PROVIDERS", "smh"),
        ("ZEROHOP_NICS", "mlx5_0,,mlx5_1"),
        ("ZEROHOP_VERBS", "queue_pairs=0"),
        ("ZEROHOP_REQUIRE", "fast"),
        ("ZEROHOP_ENCRYPTION", "some"),
        ("ZEROHOP_ENCRYPTION", "all"),
        # What os.environ makes of bytes that are not UTF-8.
        ("ZEROHOP_NAME", "trainer\udcff"),
        ("ZEROHOP_LISTEN", "\udcff:0"),
        ("ZEROHOP_SECRET", "\udcff"),
        ("ZEROHOP_SECRET", ""),
    ],
)
def test_nonsense_in_the_environment_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=variable):
        resolve({}, {variable: text})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("listen", 80, TypeError),
        ("advertise", 80, TypeError),
        ("secret", 5, TypeError),
        ("secret", "", ValueError),
        ("insecure", "false", TypeError),
        ("insecure", "1", TypeError),
        ("insecure", 1, TypeError),
        ("insecure", None, TypeError),
        ("providers", 5, TypeError),
        ("providers", str, TypeError),
        ("providers", [np.zeros(2)], ValueError),
        ("providers", "", ValueError),
        ("providers", [], ValueError),
        ("providers", ["carrier pigeon"], ValueError),
        ("require", "staged", ValueError),
        ("encryption", "tls", ValueError),
        ("encryption", True, ValueError),
        ("encryption", "control", ValueError),
        ("encryption", "all", ValueError),
        ("nics", 5, TypeError),
        ("nics", ["mlx5_0", 1], TypeError),
        ("nics", "mlx5 0", ValueError),
        ("verbs", {"gid_index": 3}, TypeError),
        ("sim_peermem", 1, TypeError),
        ("sim_devices", True, TypeError),
        ("sim_devices", 1.0, TypeError),
        ("sim_devices", 65, ValueError),
        ("timeout", "1", TypeError),
        ("timeout", -0.1, ValueError),
        ("timeout", float("nan"), ValueError),
        ("name", 5, TypeError),
        ("name", "\udcff", ValueError),
        ("listen", "\udcff:0", ValueError),
        ("secret", "\udcff", ValueError),
    ],
)
def test_arguments_that_make_no_sense(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        resolve({name: value}, {})


@pytest.mark.parametrize("given", ["shm,tcp", " shm , tcp,"])
def test_providers_as_one_text(given: str) -> None:
    """As in the environment."""
    assert resolve({"providers": given}, {}).providers == ("shm", "tcp")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_providers_as_a_tensor() -> None:
    """torch raises RuntimeError for one that has no parts to give."""
    torch = pytest.importorskip("torch")
    for tensor in (torch.zeros(4).to_mkldnn(), torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])):
        with pytest.raises((TypeError, ValueError), match=r"^providers"):
            resolve({"providers": tensor}, {})


class TestUnknownVariables:
    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment, "_warned", set())

    def test_a_misspelt_one(self) -> None:
        with pytest.warns(RuntimeWarning, match=r"ZEROHOP_PROVIDER is no setting .* did you mean ZEROHOP_PROVIDERS\?"):
            resolve({}, {"ZEROHOP_PROVIDER": "tcp"})

    def test_one_like_no_other(self) -> None:
        with pytest.warns(RuntimeWarning, match="ZEROHOP_XYZZY .* there are .*ZEROHOP_TIMEOUT"):
            resolve({}, {"ZEROHOP_XYZZY": "tcp"})

    def test_once(self) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                resolve({}, {"ZEROHOP_LISTN": "x"})
        assert len(seen) == 1

    def test_those_that_other_parts_read(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resolve(
                {},
                {
                    "ZEROHOP_LOG": "info",
                    "ZEROHOP_TEST_PATIENCE": "3",
                    "ZEROHOP_LAB": "1",
                    "ZEROHOP_TIMEOUT": "5",
                    "PATH": "x",
                },
            )


@pytest.mark.parametrize("secret", ["open sesame", b"open sesame", None])
def test_a_secret_is_not_shown(secret: Any) -> None:
    settings = resolve({"secret": secret, "name": "shown"}, {})
    for text in (repr(settings), str(settings), f"{settings}", f"{[settings]}"):
        assert "sesame" not in text
        assert "name='shown'" in text
        assert ("secret='<hidden>'" in text) is (secret is not None)
        assert ("secret=None" in text) is (secret is None)
    assert settings.secret == (None if secret is None else b"open sesame")


def test_processors_where_a_sandbox_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr("os.sched_getaffinity", refuse)
    assert usable_processors() == {*range(os.cpu_count() or 1)}
    assert resolve({}, {}).tcp_flows >= 1


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [({"secret": "open\udcffsesame"}, {}, "secret"), ({}, {"ZEROHOP_SECRET": "open\udcffsesame"}, "ZEROHOP_SECRET")],
)
def test_an_error_does_not_show_a_secret(arguments: dict[str, Any], variables: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} must be text that UTF-8 can encode: character 4") as caught:
        resolve(arguments, variables)
    shown = "".join(traceback.format_exception(caught.value))
    assert "sesame" not in shown
    assert caught.value.__context__ is None
