"""Whatever a user calls a config becomes JSON: plain, bounded, and never an exception."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
import json
import pathlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.trainer.jsonable import CUT, MAX_DEPTH, MAX_TEXT, MAX_TEXT_IN_ALL, MAX_VALUES, make_jsonable


class Precision(enum.Enum):
    BF16 = "bf16"
    MIXED = ("bf16", "fp32")


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()


@dataclass
class Optimizer:
    name: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    schedule: dict[str, int] = field(default_factory=lambda: {"warmup": 100})


class Shape(NamedTuple):
    width: int
    height: int


class Plain:
    """The usual home-made config."""

    def __init__(self) -> None:
        self.lr = 0.1
        self.inner = types.SimpleNamespace(layers=[1, 2])


class ClassOnly:
    lr = 0.1
    layers = (1,)


class Interpolated(Mapping[str, object]):
    """A lazy config, as OmegaConf has: a mapping, but no dict."""

    def __init__(self, **values: object) -> None:
        self.values_ = values

    def __getitem__(self, key: str) -> object:
        if self.values_[key] == "???":
            raise RuntimeError(f"missing mandatory value: {key}")
        return self.values_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class Pretrained:
    def to_dict(self) -> dict[str, object]:
        return {"hidden_size": 64, "dtype": np.dtype("float32")}


class Model:
    def named_parameters(self) -> None:
        raise AssertionError("nobody asked for the parameters")

    def __repr__(self) -> str:
        raise AssertionError("the repr of a model is pages long")


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no words for this")


class Proxy:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("not bound")

    def __repr__(self) -> str:
        raise RuntimeError("not bound")


def halfway_dataclass() -> Optimizer:
    """A dataclass that lacks a field, as one that was unpickled from an older version may."""
    optimizer = Optimizer(betas=(1, 2))
    del optimizer.schedule
    return optimizer


def device_tensor(device: str) -> object:
    """Stands in for a tensor on a device that this machine lacks."""

    def tolist(self: object) -> list[float]:
        raise AssertionError("reading it would make the training wait")

    kind = type("Tensor", (), {"shape": (), "dtype": "float32", "device": device, "tolist": tolist})
    kind.__module__ = "torch"
    return kind()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (0.5, 0.5),
        (-0.0, -0.0),
        (1e308, 1e308),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (2**64 - 1, 2**64 - 1),
        (2**64, hex(2**64)),
        (-(2**63) - 1, hex(-(2**63) - 1)),
        ("text", "text"),
        (Word("text"), "text"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        (b"bytes \xff", "bytes \ufffd"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (Precision.BF16, "bf16"),
        (Precision.MIXED, "MIXED"),
        (Level.HIGH, 3),
        (dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.timedelta(seconds=90), "datetime.timedelta(seconds=90)"),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"a"}), ["a"]),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), "range(0, 3)"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (argparse.Namespace(lr=0.1, layers=[1]), {"lr": 0.1, "layers": [1]}),
        (types.SimpleNamespace(lr=0.1), {"lr": 0.1}),
        (Optimizer(), {"name": "adamw", "betas": [0.9, 0.95], "schedule": {"warmup": 100}}),
        (Shape(3, 4), {"width": 3, "height": 4}),
        (Plain(), {"lr": 0.1, "inner": {"layers": [1, 2]}}),
        (Interpolated(lr=0.1, inner=Interpolated(a=1)), {"lr": 0.1, "inner": {"a": 1}}),
        (Pretrained(), {"hidden_size": 64, "dtype": "dtype('float32')"}),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.float64("nan"), "NaN"),
        (np.str_("text"), "text"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(5), 5),
        (np.zeros((1000, 3), dtype=np.float32), "<ndarray shape=(1000, 3) dtype=float32>"),
        (device_tensor("cuda:0"), "<Tensor shape=() dtype=float32>"),
        (ClassOnly, {"lr": 0.1, "layers": [1]}),
        ([Optimizer], [f"{__name__}.Optimizer"]),
        (json.dumps, "json.dumps"),
        (object(), "<builtins.object>"),
        (Model(), f"<{__name__}.Model>"),
        (Broken(), f"<{__name__}.Broken>"),
        (Proxy(), f"<{__name__}.Proxy>"),
        (Interpolated(lr="???", steps=5), {"lr": "<RuntimeError>", "steps": 5}),
        (halfway_dataclass(), {"name": "adamw", "betas": [1, 2], "schedule": "<AttributeError>"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_becomes_plain(value: object, plain: object) -> None:
    converted = make_jsonable(value)
    assert json.loads(orjson.dumps(converted)) == converted
    assert converted == plain
    assert type(converted) is type(plain)


def test_keys_become_text_and_none_is_lost() -> None:
    value = {1: "a", "1": "b", None: "c", False: "d", 0.5: "e", Precision.BF16: "f", (1, 2): "g", b"x": "h"}
    converted = make_jsonable(value)
    assert sorted(converted.values()) == list("abcdefgh")
    assert converted["1"] == "a"
    assert converted["1 (2)"] == "b"
    assert all(type(key) is str for key in converted)


def test_a_generator_is_not_consumed() -> None:
    numbers = (n for n in (1, 2))
    assert "generator" in make_jsonable({"data": numbers})["data"]
    assert list(numbers) == [1, 2]


def test_one_bad_field_spoils_only_itself() -> None:
    assert make_jsonable({"lr": 1, "bad": Broken(), "deep": [Proxy(), 2]}) == {
        "lr": 1,
        "bad": f"<{__name__}.Broken>",
        "deep": [f"<{__name__}.Proxy>", 2],
    }


def test_a_long_text_is_cut_and_says_so() -> None:
    assert make_jsonable("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert make_jsonable("x" * 5_000_000) == "x" * MAX_TEXT + CUT
    assert make_jsonable(b"x" * 5_000_000) == "x" * MAX_TEXT + CUT
    assert len(make_jsonable(10**10_000)) <= MAX_TEXT


def test_a_secret_that_the_cut_would_split_is_gone() -> None:
    for offset in range(0, 40, 3):
        text = "x" * (MAX_TEXT - offset - 1) + " https://me:CANARYCANARYCANARY@host.example/ and more"
        assert "CAN" not in make_jsonable(text)


def test_much_text_is_cut_in_all() -> None:
    converted = make_jsonable(["y" * MAX_TEXT] * 1000)
    assert len(json.dumps(converted, ensure_ascii=False)) < 2 * MAX_TEXT_IN_ALL
    assert converted[0] == "y" * MAX_TEXT
    assert converted[-1] == CUT


def test_too_many_values_are_cut_and_say_so() -> None:
    converted = make_jsonable({"data": list(range(1_000_000)), "after": [1]})
    assert len(converted["data"]) <= MAX_VALUES + 1
    assert converted["data"][-1] == CUT
    wide = make_jsonable({str(n): n for n in range(MAX_VALUES + 500)})
    assert "more (cut)" in wide["…"]


def test_what_contains_itself_or_has_no_bottom_is_cut() -> None:
    loop: dict[str, Any] = {"lr": 1}
    loop["self"] = loop
    loop["list"] = [loop]
    assert make_jsonable(loop) == {"lr": 1, "self": CUT, "list": [CUT]}
    deep: Any = 1
    for _ in range(5000):
        deep = {"in": deep}
    assert json.dumps(make_jsonable(deep)).count("in") <= MAX_DEPTH + 1
    many: Any = [1]
    for _ in range(40):
        many = [many, many, many]
    assert CUT in str(make_jsonable(many))


@settings(deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(st.characters())
        | st.binary()
        | st.dates()
        | st.complex_numbers()
        | st.decimals()
        | st.uuids()
        | st.sampled_from([Precision.MIXED, len, int, Ellipsis, NotImplemented]),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text() | st.integers() | st.none() | st.tuples(st.floats()), inner)
            | st.builds(Optimizer, inner, inner, inner)
            | st.builds(lambda value: Interpolated(a=value), inner)
        ),
        max_leaves=25,
    )
)
def test_everything_can_be_written_as_json(value: object) -> None:
    converted = make_jsonable(value)
    assert json.loads(orjson.dumps(converted)) == converted
