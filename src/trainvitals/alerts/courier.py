"""The child that carries one message to one channel: `python -m trainvitals.alerts.courier`.

A job comes on standard input as JSON, the result goes to standard output. The address comes that way too, so that no
secret is in a command line. As a separate process it can import anything and be ended at any time.
Tested in tests/alerts/test_outbox.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from trainvitals.alerts import messages
from trainvitals.alerts.channels import NotSent, Outgoing, send
from trainvitals.settings.channels import find_channel


def main() -> int:
    job = json.loads(sys.stdin.read())
    # Whatever a service prints must not be taken for the result.
    answer, sys.stdout = sys.stdout, sys.stderr
    json.dump(carry(job), answer)
    answer.flush()
    return 0


def carry(job: dict[str, Any]) -> dict[str, Any]:
    """Send it, and report the result: `{"sent": true}`, or the reason and when to try again."""
    body, late = job["body"], float(job.get("late") or 0.0)
    picture = None
    if job.get("folder") and find_channel(job["url"]).takes_pictures:
        from trainvitals.alerts.picture import draw_file

        picture = draw_file(job["folder"], body)
    outgoing = Outgoing(
        body=body,
        title=messages.title(body, late),
        text=messages.text(body, late),
        late=late,
        picture=picture,
        terminals=tuple(job.get("terminals") or ()),
        timeout=float(job.get("timeout") or 15.0),
    )
    try:
        send(job["url"], outgoing)
    except NotSent as error:
        return {"sent": False, "reason": str(error), "retry_after": error.retry_after, "final": error.final}
    except Exception as error:  # noqa: BLE001 - the boundary around a notification: any service may fail in any way
        return {"sent": False, "reason": f"{type(error).__name__}: {error}"[:500]}
    finally:
        if picture is not None:
            import contextlib
            from pathlib import Path

            with contextlib.suppress(OSError):
                Path(picture).unlink()
    return {"sent": True}


if __name__ == "__main__":
    sys.exit(main())
