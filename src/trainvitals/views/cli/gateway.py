"""`trainvitals gateway`: takes what the agents of a fleet ship, and keeps it in ClickHouse.
Tested in tests/fleet/test_serving.py."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainvitals.analysis.wording import count_of
from trainvitals.errors import TrainvitalsError
from trainvitals.host_names import is_loopback
from trainvitals.settings.secrets import is_reference, read_secret
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser, UsageError, number, one_of, resolve_settings

if TYPE_CHECKING:
    from trainvitals.fleet.audit import Audit
    from trainvitals.fleet.clickhouse import ClickHouse
    from trainvitals.fleet.tokens import Tokens

PORT = 8686
TOKENS_HELP = "token file; required unless listening on this machine only"
AUDIT_HELP = "audit log file, limited in size; - for standard output (default: none)"

# -- serve


def _add_serve(parser: Parser) -> None:
    parser.add_settings("store")
    parser.add_argument(
        "--listen", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", metavar="N", type=number(0, whole=True), default=PORT, help=f"(default: {PORT})")
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="forward pushed hardware metrics to this VictoriaMetrics, Prometheus, Mimir or Thanos",
    )
    parser.add_argument("--tokens", metavar="FILE", type=Path, help=TOKENS_HELP)
    parser.add_argument("--audit", metavar="FILE", type=Path, help=AUDIT_HELP)
    parser.add_argument("--certificate", metavar="FILE", type=Path, help="TLS certificate, with its chain")
    parser.add_argument("--key", metavar="FILE", type=Path, help="private key of the certificate")
    parser.add_argument("--client-ca", metavar="FILE", type=Path, help="require client certificates signed by this CA")
    parser.add_argument(
        "--cluster", metavar="NAME", default="", help="create replicated tables on this ClickHouse cluster"
    )
    parser.add_argument(
        "--keep-days",
        metavar="N",
        type=number(1, whole=True),
        default=0,
        help="remove runs without data for N days, and values received earlier (default: never)",
    )


def _serve(arguments: argparse.Namespace) -> int:
    engine = _open_engine(arguments)
    tokens = None
    audit = open_audit(arguments.audit)
    if arguments.tokens is not None:
        tokens = open_tokens(arguments.tokens, audit)
    elif not is_loopback(arguments.listen):
        raise UsageError(
            f"--listen {arguments.listen} requires --tokens FILE: otherwise anyone could write",
            hint="create a token: trainvitals gateway token NAME --project PROJECT --tokens FILE",
        )
    if (arguments.certificate is None) != (arguments.key is None) or (
        arguments.client_ca and not arguments.certificate
    ):
        raise UsageError("TLS needs --certificate and --key; --client-ca needs both")
    metrics = None
    if arguments.metrics is not None:
        if not arguments.metrics.startswith(("http://", "https://")):
            raise UsageError(f"--metrics takes a URL, not '{arguments.metrics}'", hint="such as http://vm:8428")
        # Where only the server is named, its usual path.
        has_path = bool(urlsplit(arguments.metrics).path.strip("/"))
        metrics = arguments.metrics if has_path else f"{arguments.metrics.rstrip('/')}/api/v1/write"
    try:
        import uvicorn  # noqa: F401 - before anything is made
    except ImportError:
        raise TrainvitalsError(
            "the gateway needs uvicorn and starlette", hint="pip install 'trainvitals[gateway]'"
        ) from None
    from trainvitals.fleet import schema
    from trainvitals.fleet.gateway import Gateway
    from trainvitals.fleet.serving import Listening, bind, serve
    from trainvitals.fleet.store import Store

    schema.prepare(engine, cluster=arguments.cluster, days=arguments.keep_days)
    bound = bind(arguments.listen, arguments.port)
    where = Listening(
        arguments.listen, bound.getsockname()[1], arguments.certificate, arguments.key, arguments.client_ca
    )
    context = where.open_context()
    print_line(f"gateway at {where.address}, storing in {engine.address.shown}")
    serve(Gateway(Store(engine), tokens, metrics, audit, keep_days=arguments.keep_days), context, bound)
    return 0


def open_audit(file: Path | None) -> Audit | None:
    """Who does what is written there from now on."""
    if file is None:
        return None
    from trainvitals.fleet.audit import Audit

    return Audit(file)


def open_tokens(file: Path, audit: Audit | None) -> Tokens:
    """Raises TokensError."""
    from trainvitals.fleet.tokens import Tokens

    if audit is None:
        return Tokens(file)
    return Tokens(file, lambda what, name: audit.note(what, name=name))


# -- token


def _add_token(parser: Parser) -> None:
    from trainvitals.fleet.tokens import ROLES

    parser.add_argument("name", metavar="NAME", help="name of the token; replaces a token of the same name")
    parser.add_argument("--tokens", metavar="FILE", type=Path, required=True, help="token file, created if missing")
    parser.add_argument(
        "--project",
        metavar="PROJECT",
        action="append",
        default=[],
        help="project it gives access to, or '*' for all; may be repeated",
    )
    parser.add_argument(
        "--role", metavar="ROLE", type=one_of(*ROLES), default="write", help="write, read or admin (default: write)"
    )
    parser.add_argument(
        "--metrics-tenant", metavar="ID", default="", help="tenant of hardware metrics pushed with it (X-Scope-OrgID)"
    )
    parser.add_argument("--remove", action="store_true", help="remove the token")


def _token(arguments: argparse.Namespace) -> int:
    from trainvitals.fleet import tokens

    if arguments.remove:
        with _changing(arguments.tokens):
            was_there = tokens.remove(arguments.tokens, arguments.name)
        if not was_there:
            raise TrainvitalsError(f"no token '{arguments.name}' in {arguments.tokens}")
        print_line(f"removed the token '{arguments.name}'")
        return 0
    if not arguments.project:
        raise UsageError("--project is missing", hint="for all projects: --project '*'")
    with _changing(arguments.tokens):
        token = tokens.add(
            arguments.tokens, arguments.name, arguments.role, arguments.project, arguments.metrics_tenant
        )
    print(token)
    print_line("this token is shown only once; the file has its hash")
    return 0


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainvitalsError(f"cannot change {file}: {error.strerror}") from error
    except TrainvitalsError as error:
        raise TrainvitalsError(f"cannot change {file}: {error.message}") from error


# -- quota


def _add_quota(parser: Parser) -> None:
    parser.add_argument("--tokens", metavar="FILE", type=Path, required=True, help="token file")
    parser.add_argument("--project", metavar="PROJECT", help="limit this project, or '*' for projects without a quota")
    parser.add_argument("--token", metavar="NAME", help="limit this token instead")
    parser.add_argument("--gb-per-day", metavar="N", type=number(0), help="GB of run folders per day")
    parser.add_argument("--runs-per-day", metavar="N", type=number(0, whole=True), help="new runs per day")
    parser.add_argument("--runs", metavar="N", type=number(0, whole=True), help="runs kept at a time")


def _quota(arguments: argparse.Namespace) -> int:
    from trainvitals.fleet import tokens

    if (arguments.project is None) == (arguments.token is None):
        raise UsageError("whose quota is it?", hint="--project PROJECT or --token NAME")
    limits = tokens.Limits(arguments.gb_per_day, arguments.runs_per_day, arguments.runs)
    with _changing(arguments.tokens):
        known = tokens.set_limits(arguments.tokens, limits, project=arguments.project, token=arguments.token)
    if not known:
        raise TrainvitalsError(f"no token '{arguments.token}' in {arguments.tokens}")
    whose = f"project {arguments.project}" if arguments.project is not None else f"the token {arguments.token}"
    said = ", ".join(f"{name.replace('_', ' ')}: {value:g}" for name, value in limits.as_json().items())
    print_line(f"quota of {whose}: {said.replace('gb', 'GB') or 'none'}")
    return 0


# -- schema


def _add_schema(parser: Parser) -> None:
    parser.add_argument("--database", metavar="NAME", default="trainvitals", help="(default: trainvitals)")
    parser.add_argument("--cluster", metavar="NAME", default="", help="create replicated tables on this cluster")
    parser.add_argument(
        "--keep-days",
        metavar="N",
        type=number(1, whole=True),
        default=0,
        help="remove values received earlier (default: never)",
    )
    parser.add_argument(
        "--engine-version", metavar="VERSION", default="26.3", help="ClickHouse version (default: 26.3)"
    )


def _schema(arguments: argparse.Namespace) -> int:
    from trainvitals.fleet.schema import TABLES, make_statements

    for table in TABLES.values():
        print(f"-- {table.name}: {table.about}")
    version = tuple(int(part) for part in arguments.engine_version.split(".") if part.isdecimal())
    for statement in make_statements(arguments.database, version, cluster=arguments.cluster, days=arguments.keep_days):
        print(f"{statement};")
    return 0


# -- check


def _add_check(parser: Parser) -> None:
    parser.add_settings("store")
    parser.add_argument("--cluster", metavar="NAME", default="", help="cluster of the tables")
    parser.add_argument(
        "--disturb", metavar="COMMAND", help="command to run half-way, such as one that kills a replica"
    )


def _check(arguments: argparse.Namespace) -> int:
    from trainvitals.fleet import schema
    from trainvitals.fleet.checking import check_engine

    engine = _open_engine(arguments)
    schema.check(engine)

    def disturb() -> None:
        print_line(f"running: {arguments.disturb}")
        subprocess.run(arguments.disturb, shell=True, check=False, stdout=sys.stderr)

    found = check_engine(engine, cluster=arguments.cluster, disturb=disturb if arguments.disturb else None)
    if found.left:
        print_line(f"project {found.left} could not be removed everywhere: try again when all replicas are back")
    for text in found.wrong:
        print_line(text)
    if found.wrong:
        return 1
    print(f"{found.rows:,} rows written and read back unchanged in {found.seconds:.1f} s")
    print(f"{count_of(found.sent_twice, 'piece')} sent twice and counted once")
    if found.waited:
        print(f"the engine was away for {found.waited:.1f} s in between")
    if found.settled:
        print(f"some rows could be read only after {found.settled:.1f} s, when a replica was back that alone had it")
    return 0


def _open_engine(arguments: argparse.Namespace) -> ClickHouse:
    from trainvitals.fleet.clickhouse import ClickHouse, parse_address

    store = resolve_settings(arguments).store
    if store is None:
        raise UsageError("no engine is set", hint="--store clickhouse://HOST:8123/trainvitals, or TRAINVITALS_STORE")
    return ClickHouse(parse_address(read_secret(store) if is_reference(store) else store))


ACTIONS = (
    Action(
        "serve",
        "receive runs from agents and store them in ClickHouse",
        "trainvitals gateway --store clickhouse://localhost:8123/trainvitals\n"
        "trainvitals gateway --listen 0.0.0.0 --tokens tokens.json --certificate gw.pem --key gw.key",
        _add_serve,
        _serve,
    ),
    Action(
        "token",
        "create or remove a token for agents or viewers of a project",
        "trainvitals gateway token cluster-a --project vision --tokens tokens.json",
        _add_token,
        _token,
    ),
    Action(
        "quota",
        "limit what a project or token ships; without limits: remove its quota",
        "trainvitals gateway quota --project vision --gb-per-day 50 --runs-per-day 100 --tokens tokens.json",
        _add_quota,
        _quota,
    ),
    Action(
        "schema",
        "print the SQL statements that create the tables",
        "trainvitals gateway schema --cluster prod --keep-days 365",
        _add_schema,
        _schema,
    ),
    Action(
        "check",
        "check that your ClickHouse cluster keeps what it acknowledges",
        "trainvitals gateway check --store clickhouse://ch1:8123/trainvitals --disturb 'ssh ch2 pkill -9 clickhouse'",
        _add_check,
        _check,
    ),
)
