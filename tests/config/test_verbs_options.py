"""VerbsOptions: ranges, the environment's form, and that both sides know the same names."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from zerohop.config.verbs_options import VerbsOptions, parse_verbs_options


def test_text_sets_what_it_names() -> None:
    options = parse_verbs_options(" traffic_class = 0x6a, gid_index=3,")
    assert options == VerbsOptions(traffic_class=106, gid_index=3)
    assert parse_verbs_options("") == VerbsOptions()


def test_its_text_is_what_the_environment_takes() -> None:
    options = VerbsOptions(traffic_class=106, rails=1)
    assert parse_verbs_options(str(options)) == options
    assert str(VerbsOptions()) == ""


@pytest.mark.parametrize("text", ["traffic=1", "traffic_class", "traffic_class=", "traffic_class=x", "queue_pairs=0"])
def test_text_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"verbs option|name=number"):
        parse_verbs_options(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue_pairs", 0),
        ("queue_pairs", 17),
        ("mtu", 1500),
        ("timeout", 32),
        ("retry_count", 8),
        ("gid_index", -1),
        ("hop_limit", 0),
        ("stripe_bytes", 4095),
    ],
)
def test_out_of_range(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        VerbsOptions(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("queue_pairs", True), ("timeout", 14.0), ("gid_index", "1")])
def test_no_integer(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        VerbsOptions(**{name: value})  # type: ignore[arg-type]


def test_a_plain_value() -> None:
    options = VerbsOptions(queue_pairs=4)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(VerbsOptions(queue_pairs=4))


def test_native_form_has_every_option() -> None:
    native = VerbsOptions(gid_index=None).native(5)
    assert native.keys() == {field.name for field in fields(VerbsOptions)} - {"rails"}
    assert native["gid_index"] == 5
