"""`trainvitals serve`: the dashboard in the browser. Tested in tests/views/web/test_server.py."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Reader
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.cli.arguments import Parser, UsageError, resolve_settings
from trainvitals.views.cli.terminal import say
from trainvitals.views.data.cost import prices_of

DESCRIPTION = (
    "Serve the dashboard for all runs of the run folder, live and ended. Listens on this machine only; any other "
    "address needs a token, which is made and printed. Reads only, unless --allow-edit."
)
EXAMPLES = """
trainvitals serve
trainvitals serve latest --open
trainvitals serve --port 9000 --dir /mnt/shared/runs
trainvitals serve --host 0.0.0.0           # prints an address with a token
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="show this run first")
    parser.add_settings("dir")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="PORT", help="port to listen on; 0: any free one (default: 8080)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the token to ask for; also asked for on loopback"
    )
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="name under which this server may be asked"
    )
    parser.add_argument("--allow-edit", action="store_true", help="let viewers tag, remove and silence")
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument(
        "--until-pid", metavar="PID", help="end when this process has ended, a minute later if somebody looked"
    )
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    _check_extra()
    from trainvitals.views.data.page import read_assets
    from trainvitals.views.web.server import Options, address_of, bind, make_door, serve

    read_assets()
    root = Path(settings.dir).absolute()
    given = arguments.port is not None

    def draw_report(key: str, reader: Reader, format: str, theme: str) -> bytes:
        from trainvitals.views.report.document import draw_report

        return draw_report([(key, reader)], format, settings, theme=theme)

    # Who is sent here by a name gets nothing that lies elsewhere.
    runs = FolderRuns(root, inside_only=True)

    options = Options(
        runs=runs,
        draw_report=draw_report,
        host=arguments.host or settings.web_host,
        port=_number("--port", arguments.port, 65535) if given else settings.web_port,
        port_is_wish=not given,
        token=_read_token(arguments.token_file),
        allow_hosts=tuple(arguments.allow_host),
        editable=runs if arguments.allow_edit else None,
        prices=prices_of(settings),
        conditions=Conditions(settings.alerts_thresholds),
    )
    page = ""
    if arguments.run is not None:
        from urllib.parse import quote

        page = f"#/run/{quote(runs.find(arguments.run))}"
    bound = bind(options.host, options.port, options.port_is_wish)
    if options.port and bound.getsockname()[1] != options.port:
        say(f"port {options.port} is taken, so port {bound.getsockname()[1]} is used")
    door = make_door(options)
    address = address_of(options, bound, door) + page
    if not root.is_dir():
        say(f"there is no folder {root} yet: runs show up once there are any")
    print(f"dashboard: {address}", flush=True)
    if not arguments.until_pid:
        say("Ctrl-C ends it")
    if arguments.open:
        import webbrowser

        webbrowser.open(address)
    if arguments.until_pid:
        # Whoever waits for the end of that program's output must not wait for this process.
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    serve(options, bound, door, until_pid=_number("--until-pid", arguments.until_pid, 1 << 31))
    return 0


def _number(flag: str, text: str | None, most: int) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()) or int(text) > most:
        raise UsageError(f"{flag}: '{text}' is not a whole number from 0 to {most}")
    return int(text)


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TrainvitalsError(f"the token file cannot be read: {error.strerror}: {file}") from error
    if len(token) < 8 or not token.isascii() or not token.isprintable() or any(c in token for c in ' ;,"\\'):
        raise TrainvitalsError(
            f"the token in {file} is too short or has characters a cookie cannot hold",
            hint="make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
        )
    return token


def _check_extra() -> None:
    try:
        import starlette
        import uvicorn  # noqa: F401
    except ImportError:
        raise TrainvitalsError(
            "the dashboard in the browser needs Starlette and uvicorn, which are not installed",
            hint="install them: pip install 'trainvitals[web]'",
        ) from None
    del starlette
