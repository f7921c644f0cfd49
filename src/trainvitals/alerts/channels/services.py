"""Everything else: Slack, Discord, Teams, Telegram, e-mail, ntfy, Pushover, Gotify, PagerDuty ..., through Apprise.

https://github.com/caronc/apprise/wiki lists the addresses.
"""

from __future__ import annotations

import logging
from typing import Any

from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.redaction import redact_text


class _Log(logging.Handler):
    """Keeps the log of Apprise: it returns no more than True or False."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # The answer of the other side ("535 wrong password") is logged at debug level only.
        if record.levelno >= logging.WARNING or "Exception: " in text:
            self.lines.append(text)


def send(url: str, outgoing: Outgoing) -> None:
    try:
        import apprise
    except ImportError:
        raise NotSent(f"{url.partition(':')[0]}:// addresses need Apprise: pip install 'trainvitals[notify]'") from None
    log = _Log()
    logger = logging.getLogger("apprise")
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)  # this process is the courier: nobody else listens
    service = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    if service is None:
        raise NotSent(
            f"Apprise cannot parse this {url.partition(':')[0]}:// address (https://github.com/caronc/apprise/wiki)",
            final=True,
        )
    for limit in ("socket_connect_timeout", "socket_read_timeout"):
        if limit not in vars(service):  # the address names none: Apprise would give up after four seconds
            setattr(service, limit, outgoing.timeout)
    kinds = {"info": apprise.NotifyType.INFO, "warning": apprise.NotifyType.WARNING}
    body = outgoing.body
    kind: Any = kinds.get(str(body["severity"]), apprise.NotifyType.FAILURE)
    if body["state"] == "resolved":
        kind = apprise.NotifyType.SUCCESS
    attach = outgoing.picture if outgoing.picture and getattr(service, "attachment_support", False) else None
    to = apprise.Apprise()
    to.add(service)
    # Said to be plain text, it is escaped for the services that take HTML: what a message quotes is never markup.
    taken = to.notify(
        body=outgoing.text,
        title=outgoing.title,
        notify_type=kind,
        attach=attach,
        body_format=apprise.NotifyFormat.TEXT,
    )
    if not taken:
        reason = "; ".join(log.lines[-3:]) or "the service rejected the message"
        raise NotSent(redact_text(reason)[:500])
