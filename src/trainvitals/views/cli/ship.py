"""`trainvitals export RUN --to gateway`: all files of a run, or what is missing of them there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainvitals.agent import status
from trainvitals.errors import TrainvitalsError
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, NotNow, RunGone, RunNotNow
from trainvitals.fleet.shipping import RunShipment
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import ENDED
from trainvitals.journal.documents.status import Shipment
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings, resolve
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import UsageError
from trainvitals.views.data import quantities

PATIENCE = 60.0
"""Seconds without a request that is taken."""


def ship(reference: str, words: list[str], settings: Settings) -> int:
    """`words` may have the address. Whichever hosts wrote the run, all of its folder is shipped from here."""
    folder = run_folder.find(reference, Path(settings.dir))
    run = run_folder.read_run(folder)
    access = find_access(words, settings)
    gateway, shipment = FarGateway(access), RunShipment(folder, None, lambda text: print_line(one_line(text)))
    _ship_all(gateway, shipment)
    if run_folder.read_state(folder, run)[0] in ENDED and not shipment.left_out:
        done = Shipment(target=access.shown, sent=shipment.sent_bytes, complete=True)
        for known in run_folder.read_statuses(folder):
            if known.host:
                status.write_shipment(folder, known.host, done, settings.file_mode)
        shipment.look_deep()
        _ship_all(gateway, shipment)
    size = quantities.format_bytes(shipment.sent_bytes)
    print_line(f"{one_line(access.shown)} has all of {run.id or folder.name}; {size} were missing")
    if shipment.left_out:
        raise TrainvitalsError(f"{len(shipment.left_out)} files were left out")
    return 0


def find_access(words: list[str], settings: Settings) -> GatewayAccess:
    """Of the address among these words, else of the settings."""
    if len(words) > 1:
        raise UsageError(f"unexpected argument '{one_line(words[1])}'", hint="such as: --to gateway https://gw.example")
    if words:
        given = {**settings.as_json(), "gateway": words[0]}
        settings = resolve(given, environ={}, search=False)
    access = GatewayAccess.find(settings, os.environ)
    if access is None:
        raise UsageError("no gateway is set", hint="such as: --to gateway https://gw.example")
    return access


def _ship_all(gateway: FarGateway, shipment: RunShipment) -> None:
    last = time.monotonic()
    while True:
        try:
            moved = shipment.ship(gateway)
            if not moved and shipment.has_all:
                return
        except NotNow as error:
            moved = False
            if isinstance(error, RunNotNow) or time.monotonic() - last + gateway.wait > PATIENCE:
                raise TrainvitalsError(
                    f"the gateway does not accept the run: {error}", hint="the same command ships the rest"
                ) from None
        except RunGone as error:
            raise TrainvitalsError(
                f"the gateway does not accept the run: {error}", hint="docs/fleet.md: Removing runs"
            ) from None
        if moved:
            last = time.monotonic()
        elif time.monotonic() - last > PATIENCE:
            raise TrainvitalsError("the gateway does not accept all files", hint="the same command ships the rest")
        else:
            time.sleep(min(max(gateway.wait, 0.1), 1.0))
