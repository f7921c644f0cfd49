"""Every float and every name survives the way from the run folder to the browser."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import trainvitals
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.series import describe_series
from trainvitals.views.data.shapes import ValuesJson
from trainvitals.views.data.wire import encode, find_broken, mark_broken

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def unpack(packed: dict[str, object]) -> list[float]:
    """As the page does it."""
    said = {at: WORDS[word] for at, word in packed.get("nonfinite", [])}  # type: ignore[attr-defined]
    return [said[at] if value is None else value for at, value in enumerate(packed["y"])]  # type: ignore[arg-type]


def same(left: float, right: float) -> bool:
    return (math.isnan(left) and math.isnan(right)) or left == right


@given(st.lists(st.floats(), max_size=50))
def test_every_float_survives(values: list[float]) -> None:
    packed: ValuesJson = {"y": np.array(values, dtype=np.float64)}
    mark_broken(packed, find_broken(packed["y"]))
    found = unpack(json.loads(encode(packed)))
    assert len(found) == len(values) and all(map(same, found, values))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=20), st.text(min_size=1, max_size=30))
def test_what_was_logged_is_what_the_api_says(values: list[float], name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = trainvitals.init(project="p", dir=place, agent=False, capture_git=False)
        for step, value in enumerate(values):
            run.log({f"m/{name}": value}, step=step)
        run.finish()
        reader = RunReader(Path(run.folder))
        (logged,) = [item for item in reader.names() if item.startswith("m/")]
        answer = json.loads(encode(describe_series(reader, [logged], points=1000)))
    (series,) = answer["series"]
    assert series["x"] == list(range(len(values)))
    assert all(map(same, unpack(series), values))


def test_nan_outside_of_arrays_is_spelled_as_in_the_folder() -> None:
    assert json.loads(encode({"a": math.nan, "b": [math.inf], "c": {"d": -math.inf}})) == {
        "a": "NaN",
        "b": ["Infinity"],
        "c": {"d": "-Infinity"},
    }
