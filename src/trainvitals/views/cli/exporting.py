"""The flags that ask for an exporter, the same for `run`, `monitor` and `agent`."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from trainvitals.errors import SettingError
from trainvitals.exporters.wishes import wishes_of
from trainvitals.settings import TABLE, Settings
from trainvitals.settings.table import find
from trainvitals.views.cli.arguments import Parser

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


def check_exporter(settings: Settings) -> None:
    """SettingError for what the agent could not serve, said here because here somebody reads it."""
    if wishes_of(settings) and find_spec("prometheus_client") is None:
        raise SettingError("metrics need the package prometheus-client", hint="pip install 'trainvitals[prometheus]'")
    if settings.prometheus_port is None:
        return
    from trainvitals.exporters.server import Address
    from trainvitals.settings.secrets import read_secret

    token, password = settings.prometheus_token, settings.prometheus_password
    address = Address(
        host=settings.prometheus_address,
        port=settings.prometheus_port,
        token=None if token is None else read_secret(token),
        password=None if password is None else read_secret(password),
        certificate=settings.prometheus_tls_certificate,
        key=settings.prometheus_tls_key,
    )
    address.check()
    if not is_free(address.host, address.port) and not is_ours(address.host, address.port):
        raise SettingError(
            f"port {address.port} is taken by another program",
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
    if not wishes_of(settings):
        return {}
    rows = {row.name: row for row in TABLE if row.name.startswith("prometheus.")}
    return {rows[row.name].variable: row.text for row in settings if row.name in rows and row.origin != "default"}
