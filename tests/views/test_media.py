"""Media as the API, the report, the archive and `runs show` give them, whoever wrote them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_runs import MemoryReader, MemoryRun
from starlette.testclient import TestClient

import trainvitals
from trainvitals.errors import JournalError
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.media import Media
from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.views.cli.main import main
from trainvitals.views.data import media
from trainvitals.views.report.document import draw_report
from trainvitals.views.web.app import make_app

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
HOSTILE = "<img src=x onerror=alert(1)>/../../etc"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    run = trainvitals.init(project="p", name="n", dir=tmp_path / "runs")
    for step in range(3):
        run.log({"loss": 1.0}, step=step)
        run.log_image("val/mask", PIXELS + step, caption=f"number {step}")
        run.log_image("batch", [PIXELS, PIXELS + 1 + step])
        run.log_text(HOSTILE, f"text {step}")
        run.log_table("errors", [[step, "a", float("nan")]], columns=["n", "word", "loss"])
        run.log_histogram("logits", [1, 2, 3])
    run.finish()
    yield Path(run.folder)
    trainvitals.finish()


@pytest.fixture
def reader(folder: Path) -> RunReader:
    return RunReader(folder)


def test_media_are_grouped_by_kind_and_name(reader: RunReader) -> None:
    found = media.describe_media(reader)
    assert [(group["kind"], group["name"], len(group["items"])) for group in found["groups"]] == [
        ("image", "val/mask", 3),
        ("image", "batch", 6),
        ("table", "errors", 3),
        ("text", HOSTILE, 3),
        ("histogram", "logits", 0),
    ]
    assert found["groups"][0]["items"][1]["caption"] == "number 1"
    counts = media.count_media(reader.media())
    assert media.format_media(counts) == "9 images, 3 tables, 3 texts, 1 histogram"


def test_a_run_in_memory_gives_the_same(reader: RunReader) -> None:
    other = MemoryReader("k", {"k": MemoryRun.of_folder(reader.folder)})
    assert media.describe_media(other) == media.describe_media(reader)
    assert media.collect_media(other) == media.collect_media(reader)


@pytest.fixture
def ask(folder: Path) -> Callable[..., Any]:
    client = TestClient(make_app(FolderRuns(folder.parents[1]), lambda *_: b""), base_url="http://localhost")
    return lambda path, **query: client.get(f"/api/v1/runs/{folder.name}/media{path}", params=query)


def files(ask: Callable[..., Any], kind: str) -> list[str]:
    groups = ask("").json()["groups"]
    return [item["file"] for group in groups if group["kind"] == kind for item in group["items"]]


def test_an_image_is_served_as_what_it_is_and_nothing_else(ask: Callable[..., Any], folder: Path) -> None:
    file = files(ask, "image")[0]
    answer = ask("/image", file=file)
    assert answer.content == (folder / "media" / file).read_bytes()
    headers = answer.headers
    assert headers["content-type"] == "image/png"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-disposition"].startswith("attachment")
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "immutable" in headers["cache-control"]


def test_tables_and_texts_are_answered_as_json(ask: Callable[..., Any]) -> None:
    assert ask("/table", file=files(ask, "table")[2]).json() == {
        "columns": ["n", "word", "loss"], "rows": [[2, "a", "NaN"]], "total": 1,
    }  # fmt: skip
    assert ask("/text", file=files(ask, "text")[1]).json() == {"text": "text 1", "cut": False}


@pytest.mark.parametrize(
    "file", ["../run.json", "/etc/passwd", "index.jsonl", "image/../../run.json", "x" * 900, "%2e%2e"]
)
def test_only_what_the_index_names_is_served(ask: Callable[..., Any], file: str) -> None:
    for kind in ("image", "table", "text"):
        assert ask(f"/{kind}", file=file).status_code == 404


@pytest.mark.promise(
    "the index of media names a script, a link or a file elsewhere", "the server answers 404, and nothing is run"
)
def test_what_an_index_names_is_checked_before_it_is_served(ask: Callable[..., Any], folder: Path) -> None:
    place = folder / "media"
    (place / "page.png").write_bytes(b"<html><script>alert(1)</script>")
    (place / "picture.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (place / "link.png").symlink_to(folder / "run.json")
    kept = Media(folder)
    for name in ("page.png", "picture.svg", "link.png", "../run.json", "gone.png"):
        for kind in ("image", "table", "text"):
            kept.index(kind, "hostile", name)  # type: ignore[arg-type]
    assert [ask("/image", file=name).status_code for name in ("page.png", "picture.svg", "link.png")] == [404] * 3
    assert [ask("/text", file=name).status_code for name in ("link.png", "../run.json", "gone.png")] == [404] * 3
    assert ask("/table", file="page.png").status_code == 404
    assert ask("/image", file=files(ask, "text")[0]).status_code == 404  # of another kind


def test_a_report_holds_the_newest_of_each_name(reader: RunReader) -> None:
    found = media.collect_media(reader)
    assert [(group["name"], [item["step"] for item in group["items"]]) for group in found["groups"]] == [
        ("val/mask", [2]),
        ("batch", [2, 2]),
        ("errors", [2]),
        (HOSTILE, [2]),
        ("logits", []),
    ]
    assert found["left_out"] == 15 - 5
    assert all(image.startswith("data:image/png;base64,") for image in found["images"].values())
    page = draw_report([("k", reader)], "html", resolve({})).decode()
    assert "onerror=alert(1)" not in page and page.count("<html") == 1


def test_a_report_stays_small(reader: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "REPORT_BYTES", 200)
    found = media.collect_media(reader)
    assert len(found["images"]) == 1
    size = sum(len(json.dumps(found[kind])) for kind in ("images", "tables", "texts"))  # type: ignore[literal-required]
    assert size < 700 and found["left_out"] > 10


def test_an_archive_has_every_file_and_an_index(
    reader: RunReader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "media.zip"
    assert main(["export", str(reader.folder), "--format", "zip", "-o", str(target)]) == 0
    assert "9 images, 3 tables" in capfd.readouterr().err
    with zipfile.ZipFile(target) as archive:
        index = json.loads(archive.read("index.json"))
        pictures = [row for row in index if row["kind"] == "image"]
        assert [row["step"] for row in pictures if row["name"] == "val/mask"] == [0, 1, 2]
        assert archive.read(pictures[0]["file"]).startswith(b"\x89PNG")
        assert all(".." not in name and not name.startswith("/") for name in archive.namelist())
    assert len([row for row in index if row["kind"] == "histogram"]) == 3


def test_an_archive_is_unpacked_below_its_folder(folder: Path) -> None:
    Media(folder).index("text", "hostile", "../../../evil")
    buffer = io.BytesIO()
    media.write_zip(RunReader(folder), buffer)
    assert all(".." not in name for name in zipfile.ZipFile(buffer).namelist())


def test_runs_show_counts_media(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(folder)]) == 0
    assert "9 images, 3 tables, 3 texts, 1 histogram" in capfd.readouterr().out
    assert main(["runs", "show", str(folder), "--json"]) == 0
    counts = json.loads(capfd.readouterr().out)["summary"]["media"]
    assert counts == {"image": 9, "table": 3, "text": 3, "histogram": 1}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"columns": 3, "data": []}', b'{"columns": [], "data": {}}', b"\xff"]
)
def test_a_table_that_is_none_is_an_error_not_a_crash(folder: Path, content: bytes) -> None:
    Media(folder).write("table", "broken", content, "json", step=9)
    (item,) = [item for item in RunReader(folder).media() if item.name == "broken"]
    with pytest.raises(JournalError):
        media.read_table(item)


def test_a_table_of_wandb_is_shown_with_its_odd_cells(folder: Path) -> None:
    content = {"columns": ["a", 1], "data": [[{"_type": "image-file", "path": "x.png"}, None], "row", [1, 2, 3]]}
    Media(folder).write("table", "w", json.dumps(content).encode(), "json", step=9)
    (item,) = [item for item in RunReader(folder).media() if item.name == "w"]
    found = media.read_table(item)
    assert found["columns"] == ["a", "1"] and len(found["rows"]) == 2
