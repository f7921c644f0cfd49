"""`trainvitals stack`: Prometheus, Grafana, Alertmanager and the exporters, where there is none yet.
Tested in tests/views/cli/test_deployment_commands.py."""

from __future__ import annotations

import argparse
import secrets
import shutil
import socket
from pathlib import Path

from trainvitals.errors import TrainvitalsError
from trainvitals.views.cli.arguments import Action, Parser

# Folder of the stack -> where it comes from inside deploy/.
_PARTS = {
    ".": "compose",
    "grafana/provisioning": "grafana/provisioning",
    "grafana/dashboards": "grafana/dashboards",
    "prometheus": "prometheus",
    "alertmanager": "alertmanager",
}
_SECRETS = ("grafana_admin_password", "trainvitals_token")
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def _add_init(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to create")
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument(
        "--nvidia", action="store_true", default=None, help="use NVIDIA GPUs (default: if a driver is installed)"
    )
    gpu.add_argument("--no-nvidia", dest="nvidia", action="store_false", help="without")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="trainvitals wheel to build the image from")


def _init(arguments: argparse.Namespace) -> int:
    from trainvitals.views.deployment.files import find_deploy

    folder: Path = arguments.folder
    if folder.exists() and any(folder.iterdir()):
        raise TrainvitalsError(f"{folder} is not empty", hint="choose another folder")
    if arguments.wheel is not None and not arguments.wheel.is_file():
        raise TrainvitalsError(f"no such wheel: {arguments.wheel}")
    deploy = find_deploy()
    for place, part in _PARTS.items():
        shutil.copytree(deploy / part, folder / place, dirs_exist_ok=True)
    for name in ("trainvitals.rules.base-units.yml", "trainvitals.rules.test.yml"):
        (folder / "prometheus" / name).unlink()
    if arguments.wheel is not None:
        shutil.copy(arguments.wheel, folder)
    _write_secrets(folder / "secrets")
    nvidia = NVIDIA_DEVICE.exists() if arguments.nvidia is None else arguments.nvidia
    _write_environment(folder, nvidia)
    print(f"wrote the stack to {folder}, {'with' if nvidia else 'without'} NVIDIA GPUs")
    if arguments.wheel is None:
        print(
            "trainvitals is not on PyPI yet: its image cannot be built without a wheel, and none was given (--wheel).\n"
            f"Put one beside {folder / 'Dockerfile'} first, for example from a checkout of trainvitals:\n\n"
            f"  pip wheel --no-deps --wheel-dir {folder} CHECKOUT\n\n"
            "then start it:\n"
        )
    else:
        print("start it:\n")
    print(f"  cd {folder} && docker compose up -d\n")
    print("Grafana: http://127.0.0.1:3000, user admin, password in secrets/grafana_admin_password")
    return 0


def _write_secrets(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name in _SECRETS:
        path = folder / name
        path.write_text(secrets.token_urlsafe(24))
        # Read by containers under other users; on this machine the folder keeps others out.
        path.chmod(0o644)


def _write_environment(folder: Path, nvidia: bool) -> None:
    files = ["compose.yaml", *(["compose.nvidia.yaml"] if nvidia else [])]
    lines = [
        "# Read by docker compose.",
        f"COMPOSE_FILE={':'.join(files)}",
        f"STACK_HOST={socket.gethostname()}",
        "# Simulated GPUs, to try the dashboards without a real one.",
        "SIMULATE_GPUS=0",
        "RETENTION=30d",
        "GRAFANA_PORT=3000",
        "PROMETHEUS_PORT=9090",
        "ALERTMANAGER_PORT=9093",
    ]
    (folder / ".env").write_text("\n".join(lines) + "\n")


ACTIONS = (
    Action(
        "init",
        "create a folder with everything docker compose needs",
        "trainvitals stack init ./stack --wheel dist/trainvitals-0.1.0-py3-none-any.whl",
        _add_init,
        _init,
    ),
)
