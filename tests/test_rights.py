"""Who may read what: nobody else, whatever the umask says, unless `shared`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, torch, trainvitals
os.umask(int(sys.argv[1], 8))
run = trainvitals.init(project="p", dir="a/b/runs", agent=False, shared=sys.argv[2] == "shared", rotate_size_mb=0.001)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.watch(model, optimizer, histograms_every=1, budget_percent=100)
for step in range(3):
    optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()
run.event("done", "x")
run.finish()
from trainvitals.journal.segment_writer import seal
for path in list(run.folder.glob("training_metrics_*.jsonl")):
    seal(path, mode=run.settings.file_mode & ~int(sys.argv[1], 8))
"""


@pytest.mark.parametrize(
    ("umask", "shared", "folder_rights", "file_rights"),
    [("000", "alone", 0o700, 0o600), ("022", "alone", 0o700, 0o600), ("077", "shared", 0o700, 0o600),
     ("022", "shared", 0o755, 0o644), ("027", "shared", 0o750, 0o640)],
)  # fmt: skip
@pytest.mark.promise("`umask 000`", "folders are 0700 and files 0600 unless shared")
def test_everything_of_a_run_has_the_rights_that_were_asked_for(
    tmp_path: Path, umask: str, shared: str, folder_rights: int, file_rights: int
) -> None:
    environ = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "deep" / "runtime")}
    command = [sys.executable, "-c", SCRIPT, umask, shared]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(tmp_path): path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    folders = {path: mode for path, mode in found.items() if (tmp_path / path).is_dir()}
    files = {path: mode for path, mode in found.items() if path not in folders}
    assert {"segments", "media"} <= {path.name for path in folders} and len(files) > 5
    assert set(folders.values()) | {(tmp_path / "a").stat().st_mode & 0o777} == {folder_rights}, folders
    assert set(files.values()) == {file_rights}, files
