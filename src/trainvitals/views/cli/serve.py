"""`trainvitals serve`: the dashboard in the browser. Tested in tests/views/web/test_server.py."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.prices import Prices
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser, UsageError, resolve_settings
from trainvitals.views.cli.gateway import AUDIT_HELP, open_audit, open_tokens
from trainvitals.views.cli.hosts import HardwareHere, add_hosts, find_machines, find_store

if TYPE_CHECKING:
    from trainvitals.fleet.audit import Audit
    from trainvitals.fleet.tokens import Tokens
    from trainvitals.lab.far import FarSide

DESCRIPTION = (
    "Serve the dashboard for all runs of the run folder, live and ended. Listens on this machine only, and prints a "
    "link that lets one browser in. Reads only, unless --allow-edit."
)
EXAMPLES = """
trainvitals serve
trainvitals serve latest --open
trainvitals serve --port 9000 --dir /mnt/shared/runs
trainvitals serve --link                   # another link to the running server
trainvitals serve --listen 0.0.0.0         # for other machines too
trainvitals serve --host gpu1 --host gpu2  # the runs of other machines, over ssh
trainvitals serve --store clickhouse://ch:8123/trainvitals   # the runs of a fleet
trainvitals serve --accept wandb,mlflow    # and their clients log here: eval "$(trainvitals serve --client-env)"
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="run to open")
    parser.add_settings("dir")
    parser.add_argument("--listen", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add_hosts(parser)
    parser.add_argument("--port", metavar="PORT", help="port to listen on; 0 for any free port (default: 8080)")
    parser.add_argument("--link", action="store_true", help="print a new link to the running server and exit")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with a token to use instead of yours")
    parser.add_argument(
        "--tokens", type=Path, metavar="FILE", help="with --store: token file, to limit viewers to their projects"
    )
    parser.add_argument("--audit", type=Path, metavar="FILE", help=f"with --tokens: {AUDIT_HELP}")
    parser.add_argument("--no-token", action="store_true", help="give every user of this machine access")
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="additional host name of this server"
    )
    parser.add_argument(
        "--allow-edit", action="store_true", help="let viewers edit, stop and remove runs and silence alerts"
    )
    parser.add_argument(
        "--accept",
        metavar="LIST",
        help="accept data from clients of other trackers: wandb, mlflow, otlp (docs/trackers.md)",
    )
    parser.add_argument(
        "--client-env", action="store_true", help="print environment variables for these clients and exit"
    )
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument(
        "--until-pid", metavar="PID", help="stop when this process exits, or a minute later while someone is viewing"
    )
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    _check_extra()
    from trainvitals.views.data.page import read_assets
    from trainvitals.views.web.server import ServeOptions, bind, is_served, make_door, make_link, serve

    root = Path(settings.dir).absolute()
    given = arguments.port is not None
    host = arguments.listen or _take_listening_host(arguments) or settings.web_host
    port = _number("--port", arguments.port, 65535) if given else settings.web_port
    token = _choose_token(arguments, settings, host)
    # Who is sent here by a name gets nothing that lies elsewhere.
    folders = FolderRuns(root, inside_only=True)
    accept = Settings.web_accept.kind.parse(arguments.accept) if arguments.accept is not None else settings.web_accept
    if arguments.client_env:
        print(format_client_env(host, port, token))
        return 0
    machines = find_machines(arguments, settings) if not arguments.link else None
    store = find_store(arguments, settings) if not arguments.link else None
    if (machines is not None or store is not None) and arguments.allow_edit:
        raise UsageError(
            "--allow-edit works only with runs of this machine", hint="omit --host and --store, or use --host local"
        )
    if arguments.tokens is not None and store is None:
        raise UsageError("--tokens requires --store", hint="with --store clickhouse://HOST:8123/DATABASE")
    if arguments.audit is not None and arguments.tokens is None:
        raise UsageError("--audit requires --tokens", hint="with --tokens FILE")
    audit = open_audit(arguments.audit)
    runs: Runs = machines or store or folders
    if machines is not None and arguments.run is not None:
        machines.wait()
    page = f"#/run/{quote(runs.find(arguments.run))}" if arguments.run is not None else ""
    if arguments.link:
        if not is_served(host, port):
            raise TrainvitalsError(
                f"nobody serves on {host} port {port}", hint="start a server: trainvitals serve; another port: --port N"
            )
        _show_link(make_link(host, port, token) + page, arguments)
        return 0
    read_assets()

    def draw_report(key: str, reader: Reader, format: str, theme: str) -> bytes:
        from trainvitals.views.report.document import draw_report

        return draw_report([(key, reader)], format, settings, theme=theme)

    options = ServeOptions(
        runs=runs,
        draw_report=draw_report,
        host=host,
        port=port,
        port_is_wish=not given,
        token=token,
        has_own_token=arguments.token_file is not None,
        allow_hosts=tuple(arguments.allow_host),
        editable=folders if arguments.allow_edit else None,
        far=_make_far_side(folders) if runs is folders else None,
        machines=machines,
        tokens=_read_tokens(arguments.tokens, token, audit),
        audit=audit,
        find_runs=store.limited_to if store is not None else None,
        prices=Prices.of(settings),
        conditions=Conditions(settings.alerts_thresholds),
        accept=accept,
        settings=settings,
    )
    bound = bind(host, port, options.port_is_wish)
    taken = bound.getsockname()[1]
    if port and taken != port:
        print_line(f"port {port} is in use, using port {taken}")
    door = make_door(options, taken)
    if runs is folders and not root.is_dir():
        print_line(f"{root} does not exist yet: runs appear once there are any")
    if token is None and arguments.allow_edit:
        print_line("without a token, every user of this machine can tag and remove runs and silence alerts")
    _show_link(make_link(host, taken, token) + page, arguments)
    if accept:
        named = f" --port {taken}" if taken != settings.web_port else ""
        how = f'eval "$(trainvitals serve --client-env{named})"'
        print_line(f"clients of {', '.join(accept)} log here after: {how}")
    if not arguments.until_pid:
        once = "" if token is None else f"; the link works once, for another: {door.how_to_enter}"
        print_line(f"press Ctrl-C to stop{once}")
    if arguments.until_pid:
        # Whoever waits for the end of that program's output must not wait for this process.
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    serve(options, bound, door, until_pid=_number("--until-pid", arguments.until_pid, 1 << 31))
    return 0


def format_client_env(host: str, port: int, token: str | None) -> str:
    """For `eval` in a shell: where clients of other trackers log to, and the token in the form of each."""
    from trainvitals.trackers.intake.keys import make_client_env
    from trainvitals.views.web.server import make_address

    made = make_client_env(make_address(host, port), token)
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in made.items())


def _read_tokens(file: Path | None, own: str | None, audit: Audit | None) -> Tokens | None:
    if file is None:
        return None
    if own is None:
        raise UsageError("--tokens cannot be used with --no-token: anyone would see everything")
    return open_tokens(file, audit)


def _take_listening_host(arguments: argparse.Namespace) -> str | None:
    """`--host` was where to listen before it named machines: an address of this one still is, since nobody asks
    himself by ssh."""
    found = [name for name in arguments.host if is_listened_on(name)]
    arguments.host = [name for name in arguments.host if name not in found]
    return found[-1] if found else None


def is_listened_on(name: str) -> bool:
    import socket

    from trainvitals import runtime

    if name in ("localhost", runtime.host_name(), ""):
        return True
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _make_far_side(runs: FolderRuns) -> Callable[[], FarSide]:
    hardware = HardwareHere(samples=False)  # a server that nobody looks at measures nothing

    def make() -> FarSide:
        from trainvitals.lab.far import FarSide

        return FarSide(FolderRuns(runs.root, inside_only=True), hardware.read)

    return make


def _number(flag: str, text: str | None, most: int) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()) or int(text) > most:
        raise UsageError(f"{flag}: '{text}' is not an integer from 0 to {most}")
    return int(text)


def _show_link(address: str, arguments: argparse.Namespace) -> None:
    print(f"dashboard: {address}", flush=True)
    if arguments.open:
        import webbrowser

        webbrowser.open(address)


def _choose_token(arguments: argparse.Namespace, settings: Settings, host: str) -> str | None:
    """The token required from viewers; None if disabled and only this machine can connect."""
    from trainvitals.views.web.server import choose_token

    if arguments.token_file is not None:
        if arguments.no_token:
            raise UsageError("use either --token-file or --no-token, not both")
        return _read_token(arguments.token_file)
    token = choose_token(host, settings.web_token and not arguments.no_token)
    if arguments.no_token and token is not None:
        raise UsageError(f"--no-token: other machines reach {host}, so a token is required")
    return token


def _read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TrainvitalsError(f"cannot read the token file {file}: {error.strerror}") from error
    if len(token) < 8 or not token.isascii() or not token.isprintable() or any(c in token for c in ' ;,"\\'):
        raise TrainvitalsError(
            f"the token in {file} is too short or has characters that are not allowed in a cookie",
            hint="make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
        )
    return token


def _check_extra() -> None:
    try:
        import starlette
        import uvicorn  # noqa: F401
    except ImportError:
        raise TrainvitalsError(
            "the web dashboard requires Starlette and uvicorn, which are not installed",
            hint="install them: pip install 'trainvitals[web]'",
        ) from None
    del starlette
