"""`trainvitals stack`: Prometheus, Grafana, Alertmanager and the exporters, where there is none yet.
Tested in tests/views/cli/test_deployment_commands.py."""

from __future__ import annotations

import argparse
import os
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
PACKAGE_VARIABLE = "TRAINVITALS_PACKAGE"
"""What is installed: the same name in the Dockerfile, `.env`, install.sh, Terraform and the Helm chart."""
_ARCHIVES = (".whl", ".tar.gz")


def _add_init(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to create")
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument(
        "--nvidia", action="store_true", default=None, help="use NVIDIA GPUs (default: if a driver is installed)"
    )
    gpu.add_argument("--no-nvidia", dest="nvidia", action="store_false", help="do not use NVIDIA GPUs")
    parser.add_argument(
        "--package",
        metavar="PACKAGE",
        help=f"package for the image: a wheel or sdist, its URL, or a package index name ({PACKAGE_VARIABLE})",
    )


def _init(arguments: argparse.Namespace) -> int:
    from trainvitals.views.deployment.files import find_deploy

    folder: Path = arguments.folder
    if folder.exists() and any(folder.iterdir()):
        raise TrainvitalsError(f"{folder} is not empty", hint="choose another folder")
    package = arguments.package or os.environ.get(PACKAGE_VARIABLE, "")
    archive = Path(package)
    if package.endswith(_ARCHIVES) and "://" not in package and not archive.is_file():
        raise TrainvitalsError(f"no such file: {package}")
    deploy = find_deploy()
    for place, part in _PARTS.items():
        shutil.copytree(deploy / part, folder / place, dirs_exist_ok=True)
    for name in ("trainvitals.rules.base-units.yml", "trainvitals.rules.test.yml"):
        (folder / "prometheus" / name).unlink()
    if archive.is_file():
        shutil.copy(archive, folder)
        package = archive.name
    _write_secrets(folder / "secrets")
    nvidia = NVIDIA_DEVICE.exists() if arguments.nvidia is None else arguments.nvidia
    _write_environment(folder, package, nvidia)
    print(f"wrote the stack to {folder}, {'with' if nvidia else 'without'} NVIDIA GPUs")
    if not package:
        print(
            "What the image installs is not given (--package), and trainvitals is not on PyPI yet. Put a wheel in it,\n"
            f"for example from a checkout of trainvitals, and its name into {folder / '.env'}:\n\n"
            f"  pip wheel --no-deps --wheel-dir {folder} CHECKOUT\n"
            f"  {PACKAGE_VARIABLE}=trainvitals-VERSION-py3-none-any.whl\n\n"
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


def _write_environment(folder: Path, package: str, nvidia: bool) -> None:
    files = ["compose.yaml", *(["compose.nvidia.yaml"] if nvidia else [])]
    lines = [
        "# Read by docker compose.",
        f"COMPOSE_FILE={':'.join(files)}",
        f"STACK_HOST={socket.gethostname()}",
        "# Package for the image: a wheel or sdist in this folder, its URL, or a package index name.",
        f"{PACKAGE_VARIABLE}='{package}'",
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
        "create a folder with all files for docker compose",
        "trainvitals stack init ./stack --package dist/trainvitals-0.1.0-py3-none-any.whl",
        _add_init,
        _init,
    ),
)
