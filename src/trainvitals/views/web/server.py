"""Running the application: the port, the token, and a shutdown that open streams do not delay."""

from __future__ import annotations

import errno
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.host_names import is_loopback
from trainvitals.journal.contracts import Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.views.web import login
from trainvitals.views.web.gate import App, Door

if TYPE_CHECKING:
    from trainvitals.fleet.audit import Audit
    from trainvitals.fleet.tokens import Tokens
    from trainvitals.lab.runs import MachineRuns
    from trainvitals.settings import Settings
    from trainvitals.trackers.intake.app import IntakeApp
    from trainvitals.views.web.api import DrawReport  # numpy, which must not delay printing the address
    from trainvitals.views.web.far_questions import MakeFarSide
    from trainvitals.views.web.tenants import FindRuns

TRIES = 50
LINGER_SECONDS = 60.0
KEEP_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `trainvitals serve`."""

    runs: Runs
    draw_report: DrawReport
    host: str = "127.0.0.1"
    port: int = 8080
    port_is_wish: bool = True
    """Take the next free port if this one is taken."""
    token: str | None = None
    """Required from clients; None: anybody who can reach the loopback address has access."""
    has_own_token: bool = False
    """It is from --token-file, not the user's."""
    allow_hosts: tuple[str, ...] = ()
    editable: FolderRuns | None = None
    """The same runs, if viewers may change them."""
    prices: Prices = NO_PRICES
    conditions: Conditions = field(default_factory=Conditions)
    accept: tuple[str, ...] = ()
    """Protocols of other trackers whose clients may log here."""
    settings: Settings | None = None
    """Of the runs that they log."""
    tokens: Tokens | None = None
    """Of viewers, each of whom sees some projects only: those that `find_runs` gives."""
    find_runs: FindRuns | None = None
    audit: Audit | None = None
    """Where it is written which of them did what."""
    machines: MachineRuns | None = None
    """`runs`, if they are those of several machines."""
    far: MakeFarSide | None = None
    """Makes what answers another machine about the runs of this one."""


class PortTaken(TrainvitalsError):
    """Another program listens on this port."""


def bind(host: str, port: int, port_is_wish: bool) -> socket.socket:
    """A listening socket on `port`, or on the next free one; raises PortTaken."""
    for place in range(port, port + (TRIES if port_is_wish and port else 1)):
        found = _try_bind(host, place)
        if found is not None:
            return found
    free = next((place for place in range(port + 1, port + TRIES) if _is_free(host, place)), None)
    raise PortTaken(
        f"port {port} is in use by another program",
        hint=f"next free port: trainvitals serve --port {free}" if free else "choose another with --port N",
    )


def _is_free(host: str, port: int) -> bool:
    found = _try_bind(host, port)
    if found is not None:
        found.close()
    return found is not None


def _try_bind(host: str, port: int) -> socket.socket | None:
    if port > 65535:
        return None
    from trainvitals.connections import listen

    try:
        return listen(host, port)
    except socket.gaierror as error:
        raise TrainvitalsError(
            f"'{host}' is not an address of this machine: {error.strerror}", hint="for example --listen 127.0.0.1"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise TrainvitalsError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another with --listen or --port"
        ) from error


def choose_token(host: str, is_wanted: bool) -> str | None:
    """The token of this user; None if it is disabled and no other machine can connect."""
    return login.read_token() if is_wanted or not is_loopback(host) else None


def make_door(options: ServeOptions, port: int) -> Door:
    """What a server on this port checks."""
    hosts = {name.lower() for name in options.allow_hosts}
    command = f"trainvitals serve --link --port {port}"
    if not is_loopback(options.host):
        hosts |= {options.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        command += f" --listen {options.host}"
    return Door(
        options.token,
        frozenset(hosts),
        any_address=options.host in ("0.0.0.0", "::", ""),
        port=port,
        how_to_enter=f"{command} --token-file FILE" if options.has_own_token else command,
    )


def make_address(host: str, port: int) -> str:
    """Where others find the server."""
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


def make_link(host: str, port: int, token: str | None) -> str:
    """What to open in a browser, once."""
    return f"{make_address(host, port)}/" + (f"?code={login.new_code(token, port)}" if token else "")


def is_served(host: str, port: int) -> bool:
    """Whether a server listens there."""
    try:
        socket.create_connection(("127.0.0.1" if host in ("0.0.0.0", "::", "") else host, port), 5.0).close()
    except OSError:
        return False
    return True


def serve(options: ServeOptions, bound: socket.socket, door: Door, until_pid: int = 0) -> None:
    """Until Ctrl-C or SIGTERM, or a while after process `until_pid` has ended."""
    from trainvitals.connections import make_server
    from trainvitals.guessing import can_be_guessed
    from trainvitals.views.web.app import make_app
    from trainvitals.views.web.tenants import Tenants

    def make(runs: Runs, door: Door) -> App:
        return make_app(
            runs,
            options.draw_report,
            door=door,
            editable=options.editable,
            prices=options.prices,
            conditions=options.conditions,
            intake=_make_intake(options),
            machines=options.machines,
            far=options.far,
        )

    app: App
    if options.tokens is not None and options.find_runs is not None:
        app = Tenants(options.tokens, options.find_runs, make, door, options.audit)
    else:
        app = make(options.runs, door)
    server = make_server(app, grace_seconds=1, idle_seconds=30)  # an open stream never ends by itself
    if options.token is not None and (not options.has_own_token or can_be_guessed(options.token)):
        threading.Thread(target=_keep_token, args=(login.read_token(),), daemon=True).start()
    if until_pid:
        threading.Thread(target=_end_after, args=(server, until_pid), daemon=True).start()
    server.run(sockets=[bound])


def _make_intake(options: ServeOptions) -> IntakeApp | None:
    if not options.accept or options.settings is None:
        return None
    from trainvitals.trackers.intake.app import IntakeApp

    return IntakeApp(options.settings, options.accept, options.token)


def _keep_token(token: str) -> None:
    while True:
        time.sleep(KEEP_SECONDS)
        login.keep_token(token)


def _end_after(server: Any, pid: int) -> None:
    """Stay a while so that viewers see how the run ended; without any viewer, exit at once."""
    start = runtime.process_start(pid)
    while start is not None and runtime.is_same_process(pid, start):
        time.sleep(1.0)
    if server.server_state.total_requests:
        time.sleep(LINGER_SECONDS)
    server.should_exit = True
