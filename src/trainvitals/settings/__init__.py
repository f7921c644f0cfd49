"""Settings: one table, and where each value comes from.

A value is taken from the first place that has one: argument, flag, environment (`TRAINVITALS_INTERVAL`), file
(`trainvitals.yaml`, or `[tool.trainvitals]` in `pyproject.toml`), default. To add a setting, add one row to
`table.py`; its variable, its key in the file and its line in docs/settings.md follow from that row.

The training process reads its settings here, so this imports nothing but the standard library, and the
parser of a file only when there is a file.
"""

from trainvitals.settings.resolution import complaints as complaints
from trainvitals.settings.resolution import resolve as resolve
from trainvitals.settings.resolution import resolve_for_training as resolve_for_training
from trainvitals.settings.table import TABLE as TABLE
from trainvitals.settings.table import Row as Row
from trainvitals.settings.table import Setting as Setting
from trainvitals.settings.table import Settings as Settings
