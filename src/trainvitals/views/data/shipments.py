"""How far a gateway has a run, in words. Tested in tests/views/cli/test_ship.py."""

from __future__ import annotations

from trainvitals.analysis.wording import count_of
from trainvitals.journal.documents.status import Shipment
from trainvitals.journal.encoding import parse_time
from trainvitals.views.data import quantities


def describe_shipment(shipment: Shipment) -> str:
    """What it has, what waits since when, and what went wrong last."""
    parts = [f"{quantities.format_bytes(shipment.sent)} shipped"]
    parts += [f"{quantities.format_bytes(shipment.waiting)} waiting"] if shipment.waiting else []
    since = parse_time(shipment.behind_since)
    parts += [f"behind since {quantities.format_clock(since)}"] if since is not None else []
    parts += [f"{count_of(shipment.left_out, 'file')} left out"] if shipment.left_out else []
    parts += ["complete"] if shipment.complete else []
    trouble = f"; {shipment.trouble}" if shipment.trouble else ""
    return f"{', '.join(parts)}{trouble} ({shipment.target})"
