"""Notification channels: one row each. A scheme without a row goes through Apprise.

The rows are here, below `alerts`, because a setting must know whether an address of a channel may be shown. The
channels themselves are in `trainvitals.alerts.channels`; other packages add rows through the entry points
`trainvitals.channels` (docs/plugins.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainvitals.plugins import Registry


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel, before its module is imported."""

    name: str
    """The scheme of its addresses: `bell` for `bell:`."""
    module: str
    """Has `send(url, outgoing)`, as described in `trainvitals.alerts.channels`."""
    is_plain: bool = False
    """Whether an address is not a secret unless it contains a password or token; otherwise it is never shown."""
    keeps_state: bool = False
    """Whether it keeps showing an alert as firing until notified of the end, even if nobody needs that message."""
    takes_pictures: bool = False
    """Whether a message may include a chart."""


REGISTRY: Registry[ChannelRow] = Registry(
    "channels",
    (
        ChannelRow("http", "trainvitals.alerts.channels.webhook", is_plain=True),
        ChannelRow("https", "trainvitals.alerts.channels.webhook", is_plain=True),
        ChannelRow("alertmanager", "trainvitals.alerts.channels.alertmanager", is_plain=True, keeps_state=True),
        ChannelRow("alertmanagers", "trainvitals.alerts.channels.alertmanager", is_plain=True, keeps_state=True),
        ChannelRow("command", "trainvitals.alerts.channels.command", is_plain=True),
        ChannelRow("desktop", "trainvitals.alerts.channels.desktop", is_plain=True),
        ChannelRow("bell", "trainvitals.alerts.channels.bell", is_plain=True),
    ),
    ChannelRow,
)

APPRISE = ChannelRow("apprise", "trainvitals.alerts.channels.services", takes_pictures=True)
"""Every scheme without a row."""


CHAT = ChannelRow("chat", "trainvitals.alerts.channels.chats")
"""The web hook of a chat service, as it is copied from there."""


class ChatService(NamedTuple):
    name: str
    pattern: str
    """Of host and path."""


_CHATS = (
    ChatService("Slack", r"hooks\.slack(?:-gov)?\.com/services/.+"),
    ChatService("Discord", r"(?:\w+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/[\w-]+/?"),
    ChatService(
        "Teams",
        r"[\w.-]+\.webhook\.office\.com/webhookb2/.+|outlook\.office(?:365)?\.com/webhook/.+"
        r"|[\w.-]+\.(?:logic\.azure|api\.powerplatform)\.com/(?:.+/)?workflows/.+",
    ),
    ChatService("Google Chat", r"chat\.googleapis\.com/v1/spaces/[^/]+/messages/?"),
    ChatService("Telegram", r"api\.telegram\.org/bot\d+:[\w-]+(?:/\w*)?"),
    # On any host: the ids of Mattermost are 26 characters long.
    ChatService("Mattermost", r"[^/]+/(?:.+/)?hooks/[a-z0-9]{26}/?"),
)


def find_chat(url: str) -> ChatService | None:
    """Whose web hook an address is; None for any other address."""
    if url[:4].lower() != "http":
        return None
    import re  # late, as are the patterns: a training that notifies nobody does not need them
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}{parts.path}"
    except ValueError:
        return None
    if parts.scheme not in ("http", "https"):
        return None
    return next((chat for chat in _CHATS if re.fullmatch(chat.pattern, place)), None)


def find_channel(url: str) -> ChannelRow:
    """The channel of an address."""
    if find_chat(url) is not None:
        return CHAT
    return REGISTRY.get(url.partition(":")[0].lower()) or APPRISE
