"""The child that is W&B's client for one run: `python -m trainvitals.exporters.wandb_client`.
Tested in tests/exporters/test_wandb.py."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.exporters.child import answer
from trainvitals.exporters.mirrored_media import MEDIUM
from trainvitals.journal.encoding import NONFINITE
from trainvitals.journal.media import read_media
from trainvitals.trackers.wandb_files import read_steps

LAST_SECONDS = 60
"""For what is left to be sent when the agent has gone; W&B would try for days."""
_QUIET: Mapping[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_stats": True,  # of this process, which is not the training
    "_disable_stats": True,  # as older versions call it
    "x_disable_meta": True,
    "_disable_meta": True,
    "x_save_requirements": False,
}


class Client:
    """Does what it is asked, in order."""

    def __init__(self) -> None:
        self._run: Any = None

    def handle(self, question: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question) or {}
        return found

    def _open(
        self, run: str, project: str, id: str, name: str, folder: str, offline: bool, started: float | None
    ) -> dict[str, Any]:
        import wandb

        self._folder = Path(run)

        known = wandb.Settings()
        settings = {key: value for key, value in _QUIET.items() if hasattr(known, key)}
        if started is not None and hasattr(known, "x_start_time"):
            settings["x_start_time"] = started
        self._run = wandb.init(
            project=project,
            id=id,
            name=name,
            dir=folder,
            resume="allow",
            mode="offline" if offline else None,
            settings=wandb.Settings(**settings),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        offline = self._run.settings.mode == "offline"
        return {"url": self._run.url, "step": _count_kept(Path(folder), id) if offline else self._run.step}

    def _log(self, first: int, lines: list[dict[str, Any]]) -> None:
        for number, line in enumerate(lines, first):
            self._run.log(
                {key: made for key, item in line.items() if (made := self._make(item)) is not None}, step=number
            )

    def _make(self, item: Any) -> Any:
        """A value as W&B wants it; None for a medium that cannot be had or made."""
        if not isinstance(item, dict):
            return NONFINITE.get(item, item)
        try:
            return _MAKERS[item.pop(MEDIUM)](self._folder, **item)
        except Exception:  # noqa: BLE001 - the boundary around W&B, which needs pillow for images: the numbers still count
            return None

    def _describe(self, config: dict[str, Any], tags: list[str], notes: str) -> None:
        self._run.config.update(config, allow_val_change=True)
        # Compared first: each is a request to the server. W&B takes tags of 1 to 64 characters.
        wanted = tuple(tag[:64] for tag in tags if tag)
        if wanted != tuple(self._run.tags or ()):
            self._run.tags = wanted
        if notes and notes != self._run.notes:
            self._run.notes = notes

    def _finish(self, summary: dict[str, Any], exit_code: int) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code=exit_code)
        self._run = None

    def leave(self) -> None:
        """The run is not over: send what is there, so that the next client can resume it."""
        if self._run is not None:
            signal.alarm(LAST_SECONDS)
            self._run.finish()


def _make_image(folder: Path, file: str, caption: str) -> Any:
    import wandb
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(read_media(folder, file))), caption=caption or None)


def _make_table(folder: Path, file: str, caption: str) -> Any:
    import wandb

    found = json.loads(read_media(folder, file))
    return wandb.Table(columns=[str(column) for column in found["columns"]], data=found["data"])


def _make_text(folder: Path, file: str, caption: str) -> Any:
    import wandb

    return wandb.Table(columns=["text"], data=[[read_media(folder, file).decode("utf-8", "replace")]])


def _make_histogram(folder: Path, low: float, high: float, counts: list[float], nonfinite: int) -> Any:
    import wandb

    width = (high - low) / len(counts)
    edges = [low + width * place for place in range(len(counts))] + [high]
    return wandb.Histogram(np_histogram=(counts, edges))


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "image": _make_image,
    "table": _make_table,
    "text": _make_text,
    "histogram": _make_histogram,
}


def _count_kept(folder: Path, id: str) -> int:
    """How many rows W&B's files of this run hold: a client that is killed does not write its last ones."""
    steps = [step for path in folder.glob(f"wandb/offline-run-*/run-{id}.wandb") for step in read_steps(path)]
    return max(steps, default=-1) + 1


if __name__ == "__main__":
    client = Client()
    answer(client.handle)
    client.leave()
