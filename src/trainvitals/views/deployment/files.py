"""Where the files of `deploy/` are: in the wheel beside the code, in a checkout beside `src`."""

from __future__ import annotations

from pathlib import Path

import trainvitals
from trainvitals.errors import TrainvitalsError
from trainvitals.exporters.names import Spelling


def folder_of(spelling: Spelling) -> str:
    """The folder of the dashboards inside `deploy/`."""
    return "grafana/dashboards" if spelling == "mb" else "grafana/dashboards-base-units"


def rules_file(spelling: Spelling) -> str:
    """The rules inside `deploy/`."""
    return "prometheus/trainvitals.rules.yml" if spelling == "mb" else "prometheus/trainvitals.rules.base-units.yml"


def find_deploy() -> Path:
    """The folder. TrainvitalsError in an installation without it."""
    package = Path(trainvitals.__file__).parent
    for place in (package / "deploy", package.parent.parent / "deploy"):
        if (place / "prometheus").is_dir():
            return place
    raise TrainvitalsError("the deployment files are not installed", hint="install trainvitals from its wheel")
