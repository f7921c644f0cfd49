"""The flags that ask for an exporter, the same for `run`, `monitor` and `agent`.
Tested in tests/views/cli/test_deployment_commands.py."""

from __future__ import annotations

import socket

from trainvitals.errors import SettingError
from trainvitals.exporters.registry import explain_unusable, wishes_of
from trainvitals.settings import TABLE, Settings
from trainvitals.settings.kinds import IN_PLACE
from trainvitals.settings.table import find
from trainvitals.views.cli.arguments import Parser, one_of

# Flags that are typed by hand have a short form as well.
_SHORT = {"prometheus_names": "--names", "prometheus_compat": "--compat"}


def add_exporter_flags(parser: Parser) -> None:
    """`--prometheus-port` and what goes with it; everything else is a setting."""
    parser.add_settings("prometheus_port", "prometheus_address", "prometheus_token", "prometheus_remote_write")
    for name, short in _SHORT.items():
        row = find(name, "flag")
        parser.setting_names.append(row.attribute)
        parser.add_argument(
            short, row.flag, dest=row.attribute, metavar=row.kind.word.rpartition("of ")[2].replace(", ", "|"),
            help=f"{row.help[:1].lower()}{row.help[1:]} (default: {row.kind.format(row.default)})".replace("`", ""),
        )  # fmt: skip


def add_mirror_flags(parser: Parser) -> None:
    """`--tensorboard` and the other trackers to which a run is mirrored."""
    row = find("tensorboard", "flag")
    parser.setting_names.append(row.attribute)
    parser.add_argument(
        row.flag,
        dest=row.attribute,
        nargs="?",
        const=IN_PLACE,
        metavar="DIR",
        help="write TensorBoard event files, below this folder or in the run folder",
    )
    parser.add_settings("mlflow", "wandb_project", "wandb_run_name", "wandb_offline")


def add_spelling(parser: Parser) -> None:
    """`--names` of what is made for an exporter's metrics."""
    parser.add_argument(
        "--names",
        type=one_of("mb", "base"),
        default="mb",
        metavar="UNITS",
        help="mb (default) or base, as the exporter",
    )


def check_exporter(settings: Settings) -> None:
    """SettingError for what the agent could not serve, raised here, where the user sees it."""
    for text in explain_unusable(settings):
        raise SettingError(text, hint="see: trainvitals doctor")
    for wish in (*wishes_of(settings, "families"), *wishes_of(settings, "rows")):
        if not wish.exporter.is_installed:
            raise SettingError(f"{wish.exporter.name} needs {wish.exporter.needs}", hint=wish.exporter.install)
    if settings.prometheus_port is None:
        return
    from trainvitals.exporters.server import ServedAddress

    address = ServedAddress.of(settings)
    address.check()
    if not is_free(address.host, address.port) and not is_ours(address.host, address.port):
        raise SettingError(
            f"port {address.port} is in use by another program",
            hint=f"choose another: --prometheus-port {address.port + 1}",
        )


def is_free(host: str, port: int) -> bool:
    """Whether one could serve there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def is_ours(host: str, port: int) -> bool:
    """Whether an agent of ours answers there already: it serves one more run as well."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1" if host == "0.0.0.0" else host, port, timeout=2)
    try:
        connection.request("HEAD", "/-/healthy")
        return connection.getresponse().getheader("Server", "").startswith("trainvitals")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def exporter_environment(settings: Settings) -> dict[str, str]:
    """The exporter's settings as variables, for an agent that is started with them; none if no exporter is wanted."""
    if not (wishes_of(settings, "families") or settings.export):
        return {}
    rows = {row.name: row for row in TABLE if row.name.startswith("prometheus.") or row.name == "export"}
    return {rows[row.name].variable: row.text for row in settings if row.name in rows and row.origin != "default"}
