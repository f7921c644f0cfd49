"""Live updates: what is new, once, for everybody."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE

import trainvitals
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.views.web.live import MAX_POINTS, MAX_SERIES, QUEUE, Collector, Hub, ViewedRun, Viewer, frame

from .conftest import Server

NAME = FileName("training", 1, "20260101_000000")


def row(step: int, **values: Any) -> tuple[FileName, dict[str, Any]]:
    return NAME, {"timestamp": f"2026-01-01T00:00:{step % 60:02d}.000Z", "step": step, **values}


def test_rows_become_columns_with_nan_beside_them() -> None:
    ((event, content),) = Collector().collect([row(1, loss=0.5), row(2, loss="NaN", note="text")])
    assert event == "points" and content["more"] == []
    (series,) = content["series"]
    assert (series["name"], series["step"]) == ("loss", [1, 2])
    assert series["y"][0] == 0.5 and math.isnan(series["y"][1]) and series["nonfinite"] == [(1, "NaN")]


def test_a_thousand_steps_at_once_are_sent_as_their_extremes() -> None:
    rows = [row(step, loss=100.0 if step == 777 else 1.0) for step in range(1000)]
    ((_, content),) = Collector().collect(rows)
    (series,) = content["series"]
    assert len(series["y"]) <= MAX_POINTS and max(series["y"]) == 100.0


def test_a_run_with_thousands_of_metrics_says_that_there_is_more() -> None:
    ((_, content),) = Collector().collect([row(1, **{f"m{place}": 1.0 for place in range(MAX_SERIES + 5)})])
    assert content["more"] == ["training"] and len(content["series"]) == MAX_SERIES


def test_gpus_are_told_apart_and_events_pass_through() -> None:
    gpu = FileName("gpu", 1, "20260101_000000", host="box")
    rows = [
        (gpu, {"timestamp": "2026-01-01T00:00:00.000Z", "gpu_index": at, "utilization_percent": 5}) for at in (0, 1)
    ]
    events = FileName("events", 1, "20260101_000000")
    rows.append((events, {"timestamp": "2026-01-01T00:00:00.000Z", "event": "checkpoint"}))
    messages = Collector().collect(rows)
    assert [event for event, _ in messages] == ["event", "points"]
    assert [item["labels"] for item in messages[1][1]["series"]] == [
        {"gpu_index": 0, "host": "box"},
        {"gpu_index": 1, "host": "box"},
    ]
    assert "step" not in messages[1][1]["series"][0]


@pytest.mark.promise("a viewer that reads too slowly", "its queue is limited; it is told to reload")
def test_a_viewer_that_is_too_slow_is_told_to_read_again() -> None:
    async def scenario() -> list[bytes]:
        viewer = Viewer()
        for at in range(QUEUE + 3):
            viewer.put(frame("points", b"%d" % at))
        messages = viewer.messages()
        return [await anext(messages), await anext(messages)]

    first, second = asyncio.run(scenario())
    assert b"event: reset" in first
    assert second.count(b"event: points") == 3


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Any]:
    run = trainvitals.init(project="p", name="live", dir=tmp_path, agent=False)
    run.log({"loss": 1.0}, step=0)
    yield run
    run.finish()


async def read(stream: AsyncIterator[bytes], wanted: str) -> tuple[str, dict[str, Any]]:
    """The next event of that name: (id, data)."""
    async for chunk in stream:
        for part in chunk.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
            if fields.get("event") == wanted:
                return fields.get("id", ""), json.loads(fields["data"])
    raise AssertionError("the stream ended")


def test_any_number_of_viewers_costs_one_reader(live: Any) -> None:
    async def scenario() -> tuple[int, int, list[dict[str, Any]]]:
        hub = Hub()
        channels = {hub.begin("run", RunReader(live.folder)) for _ in range(200)}
        (channel,) = channels
        streams = [channel.view(None) for _ in range(200)]
        for stream in streams:
            await read(stream, "reset")
        await read(streams[0], "state")  # now it follows
        live.log({"loss": 0.5}, step=1)
        found = [(await asyncio.wait_for(read(stream, "points"), PATIENCE))[1] for stream in streams]
        followers = sum(task.get_name() != "main" and not task.done() for task in asyncio.all_tasks()) - 1
        await hub.close()
        return len(channels), followers, found

    channels, followers, found = asyncio.run(scenario())
    assert (channels, followers) == (1, 1)
    assert [content["series"][0]["y"] for content in found] == [[0.5]] * 200


def test_nobody_reads_everything_before_the_run_is_followed(live: Any) -> None:
    """Else what is logged between the two would be in neither."""
    ready = threading.Event()

    class SlowReader(RunReader):
        def follow(self, *args: Any, **more: Any) -> Any:
            ready.wait(PATIENCE)
            return super().follow(*args, **more)

    async def scenario() -> tuple[bool, dict[str, Any]]:
        hub = Hub()
        stream = hub.begin("run", SlowReader(live.folder)).view(None)
        told = asyncio.create_task(read(stream, "reset"))
        early, _ = await asyncio.wait([told], timeout=0.2)
        ready.set()
        await asyncio.wait_for(told, PATIENCE)
        live.log({"loss": 0.25}, step=2)
        _, content = await asyncio.wait_for(read(stream, "points"), PATIENCE)
        await hub.close()
        return bool(early), content

    early, content = asyncio.run(scenario())
    assert not early and content["series"][0]["step"] == [2]


def test_who_comes_back_gets_what_was_missed_and_nothing_twice(live: Any) -> None:
    async def scenario() -> dict[str, Any]:
        hub = Hub()
        channel: ViewedRun = hub.begin("run", RunReader(live.folder))
        first, other = channel.view(None), channel.view(None)
        await read(first, "state")
        await read(other, "reset")
        live.log({"loss": 0.5}, step=1)
        seen, _ = await asyncio.wait_for(read(first, "points"), PATIENCE)
        await first.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(read(other, "points"), PATIENCE)
        live.log({"loss": 0.25}, step=2)
        await asyncio.wait_for(read(other, "points"), PATIENCE)
        again = channel.view(seen)
        _, missed = await asyncio.wait_for(read(again, "points"), PATIENCE)
        await hub.close()
        return missed

    assert asyncio.run(scenario())["series"][0]["step"] == [2]


def test_who_was_away_too_long_is_told_to_read_again(live: Any) -> None:
    async def scenario() -> dict[str, Any]:
        hub = Hub()
        stream = hub.begin("run", RunReader(live.folder)).view("of-another-server-7")
        _, content = await read(stream, "reset")
        await hub.close()
        return content

    assert asyncio.run(scenario()) == {"reason": "new"}


def test_over_the_wire_a_logged_value_arrives_with_the_state(serve: Callable[..., Server], live: Any) -> None:
    server = serve(Path(live.folder).parent.parent)
    done = threading.Event()

    def keep_logging() -> None:
        step = 1
        while not done.wait(0.2):
            live.log({"loss": 1 / step}, step=step)
            step += 1

    logger = threading.Thread(target=keep_logging)
    logger.start()
    try:
        seen: dict[str, dict[str, Any]] = {}
        with httpx.stream("GET", f"{server.base}api/v1/runs/latest/stream", timeout=PATIENCE) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            event = ""
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    seen[event] = json.loads(line.removeprefix("data: "))
                if {"points", "state", "reset"} <= seen.keys():
                    break
    finally:
        done.set()
        logger.join()
    assert seen["state"]["status"] == "running" and seen["state"]["live"] is True
    assert seen["points"]["series"][0]["name"] == "loss"
