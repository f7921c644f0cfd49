"""Every kind of source that runs are imported from, once. Imports none of them; other packages add rows through the
entry points `trainvitals.importers` (docs/plugins.md). Tested in tests/views/cli/test_import_runs.py."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from trainvitals.plugins import Registry

if TYPE_CHECKING:  # numpy, which the help of the command does not wait for
    from trainvitals.trackers.importing import RunSource


@dataclass(frozen=True, slots=True)
class ImporterRow:
    """A kind of source, before its module is imported."""

    name: str
    module: str
    """Has `open_source(target: str) -> Source`, which raises ImportFailed."""
    target: str
    """What its argument is, for the help: `DIR`, `FILE`."""
    help: str

    def open(self, target: str) -> RunSource:
        source: RunSource = import_module(self.module).open_source(target)
        return source


REGISTRY: Registry[ImporterRow] = Registry(
    "importers",
    (
        ImporterRow(
            "tensorboard",
            "trainvitals.trackers.tensorboard.reading",
            "DIR",
            "event files of TensorBoard, one run for each folder with such files",
        ),
        ImporterRow(
            "wandb", "trainvitals.trackers.wandb_files", "DIR", "runs of W&B in their local files, offline ones too"
        ),
        ImporterRow(
            "mlflow",
            "trainvitals.trackers.mlflow_store",
            "STORE",
            "runs of MLflow: an mlruns folder, a database (mlflow.db), or the address of a server",
        ),
        ImporterRow("csv", "trainvitals.trackers.tables", "FILE", "a table with a column for the step or the epoch"),
        ImporterRow("jsonl", "trainvitals.trackers.tables", "FILE", "one JSON object per line"),
        ImporterRow("parquet", "trainvitals.trackers.tables", "FILE", "a table, one row per step or per value"),
        ImporterRow("lightning", "trainvitals.trackers.tables", "FILE", "metrics.csv of Lightning's CSVLogger"),
        ImporterRow("hf", "trainvitals.trackers.trainer_state", "FILE", "trainer_state.json of Transformers"),
        ImporterRow(
            "verl", "trainvitals.trackers.verl_file", "FILE", "what verl's file logger writes, one object per line"
        ),
        ImporterRow("trackio", "trainvitals.trackers.trackio", "[DIR]", "projects of trackio"),
    ),
    ImporterRow,
)
