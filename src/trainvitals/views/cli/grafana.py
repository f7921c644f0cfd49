"""`trainvitals grafana`: the dashboards, to be imported into a Grafana that is there already.
Tested in tests/views/cli/test_deployment_commands.py."""

from __future__ import annotations

import argparse

from trainvitals.views.cli.arguments import Action, Parser, one_of
from trainvitals.views.cli.exporter_flags import add_spelling

_NAMES = {"training": "gpu-training-dashboard", "fleet": "gpu-fleet-dashboard", "node": "gpu-node-dashboard"}


def _add_dashboard(parser: Parser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        default="training",
        type=one_of(*_NAMES),
        metavar="NAME",
        help="training (default), fleet or node",
    )
    add_spelling(parser)


def _dashboard(arguments: argparse.Namespace) -> int:
    from trainvitals.views.deployment.files import find_deploy, folder_of

    path = find_deploy() / folder_of(arguments.names) / f"{_NAMES[arguments.name]}.json"
    print(path.read_text(encoding="utf-8"), end="")
    return 0


ACTIONS = (
    Action(
        "dashboard",
        "print a dashboard as JSON",
        "trainvitals grafana dashboard > gpu-training-dashboard.json\ntrainvitals grafana dashboard fleet",
        _add_dashboard,
        _dashboard,
    ),
)
