"""The picture of a run in a notebook, which is saved with it and opened by others: SVG, where a script would run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_inline

START = 1.8e9
EVIL = (
    "<img src=x onerror=owned()> <svg/onload=owned()> \"'></text></svg><script>owned()</script> javascript:owned() "
    "]]> &#60;script&#62; \x1b[2J \x00"
)
ACTIVE = {"script", "foreignObject", "iframe", "image", "a", "use", "animate", "set", "style"}


def make_hostile_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    start, end = format_time(START), format_time(START + 60)
    about = {
        "id": folder.name, "name": EVIL, "project": EVIL, "status": "failed", "cause": {"detail": EVIL}, "notes": EVIL,
        "tags": [EVIL], "config": {EVIL: EVIL}, "created": start, "started": start, "ended": end, "attempt": 1,
    }  # fmt: skip
    (folder / "run.json").write_bytes(encode_line(RunFile.parse(about).as_json()))
    rows = [{"step": step, "loss": 1 / (step + 1), EVIL: step, f"val/{EVIL}": 2.0 * step} for step in range(30)]
    lines = [encode_line({"timestamp": format_time(START + row["step"]), **row}) for row in rows]
    (folder / "training_metrics_20260115_100000.rank0.jsonl").write_bytes(b"".join(lines))
    event = {"timestamp": start, "event": EVIL, "severity": "critical", "message": EVIL}
    (folder / "events_20260115_100000.rank0.jsonl").write_bytes(encode_line(event))
    alert = {"timestamp": start, "rule": EVIL, "state": "firing", "severity": "critical", "message": EVIL}
    (folder / "alerts_20260115_100000.jsonl").write_bytes(encode_line(alert))
    return folder


@pytest.mark.promise(
    "scripts in every text of a run that a notebook shows",
    "its picture, also in a saved notebook, runs none",
    area="The page",
)
def test_no_text_of_a_run_is_markup_of_its_picture(tmp_path: Path) -> None:
    folders = [make_hostile_run(tmp_path / "p" / name) for name in ("one", "two")]
    for shown in (folders[:1], folders):
        picture = draw_inline(name_runs(shown), resolve(), theme="light", width=800)
        assert "owned" in picture, "the texts are shown"
        for element in ET.fromstring(picture).iter():
            assert element.tag.rpartition("}")[2] not in ACTIVE
            for name, value in element.attrib.items():
                assert not name.startswith("on") and "href" not in name and "javascript:" not in value
        assert "\x1b" not in picture and "\x00" not in picture
