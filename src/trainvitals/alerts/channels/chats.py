"""Web hooks of chat services, as they are copied from there: each gets a message in its own form.

Which address is whose is in `trainvitals.settings.channels`. What a message quotes is never markup, and calls nobody.
Tested in tests/alerts/test_chats.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.alerts.channels.webhook import post
from trainvitals.settings.channels import find_chat

Form = Mapping[str, Any]
_COLOURS = {"info": 0x3498DB, "warning": 0xE67E22, "critical": 0xE74C3C}
_RESOLVED = 0x2ECC71
_CARD_COLOURS = {"info": "accent", "warning": "warning", "critical": "attention"}


def send(url: str, outgoing: Outgoing) -> None:
    chat = find_chat(url)
    assert chat is not None, "the address is of another channel"
    target, form = build(chat.name, url, outgoing)
    post(target, form, outgoing.timeout)


def build(service: str, url: str, outgoing: Outgoing) -> tuple[str, Form]:
    """Where to post, and what."""
    if service == "Telegram":
        return _build_telegram(url, outgoing)
    return url, _FORMS[service](outgoing)


def _build_slack(outgoing: Outgoing) -> Form:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    title, text = (
        part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for part in (outgoing.title, outgoing.text)
    )
    return {"text": f"*{title}*\n{text}", "unfurl_links": False}


def _build_mattermost(outgoing: Outgoing) -> Form:
    """https://developers.mattermost.com/integrate/webhooks/incoming/"""
    return {"text": _cut(f"**{outgoing.title}**\n{outgoing.text}".replace("@", "@\u200b"), 16_000)}


def _build_google_chat(outgoing: Outgoing) -> Form:
    """https://developers.google.com/workspace/chat/quickstart/webhooks"""
    return {"text": _cut(f"*{outgoing.title}*\n{outgoing.text}".replace("<", "<\u200b"), 4000)}


def _build_discord(outgoing: Outgoing) -> Form:
    """https://discord.com/developers/docs/resources/webhook#execute-webhook"""
    body = outgoing.body
    colour = _RESOLVED if body["state"] == "resolved" else _COLOURS.get(str(body["severity"]), _COLOURS["critical"])
    embed = {"title": _cut(outgoing.title, 256), "description": _cut(outgoing.text, 4096), "color": colour}
    return {"username": "trainvitals", "embeds": [embed], "allowed_mentions": {"parse": []}}


def _build_teams(outgoing: Outgoing) -> Form:
    """https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using"""
    body = outgoing.body
    colour = "good" if body["state"] == "resolved" else _CARD_COLOURS.get(str(body["severity"]), "attention")
    title = {"type": "TextBlock", "text": outgoing.title, "weight": "bolder", "wrap": True, "color": colour}
    lines = [
        {"type": "TextBlock", "text": line, "wrap": True, "spacing": "small"} for line in outgoing.text.split("\n")
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [title, *lines],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _build_telegram(url: str, outgoing: Outgoing) -> tuple[str, Form]:
    """https://core.telegram.org/bots/api#sendmessage"""
    parts = urlsplit(url)
    chat = parse_qs(parts.query).get("chat_id")
    if not chat:
        raise NotSent("the address of a Telegram bot needs the chat to write to: add ?chat_id=NUMBER", final=True)
    bot = parts.path.split("/")[1]
    target = urlunsplit((parts.scheme, parts.netloc, f"/{bot}/sendMessage", "", ""))
    text = _cut(f"{outgoing.title}\n{outgoing.text}", 4096)
    return target, {"chat_id": chat[0], "text": text, "link_preview_options": {"is_disabled": True}}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


_FORMS: dict[str, Callable[[Outgoing], Form]] = {
    "Slack": _build_slack,
    "Mattermost": _build_mattermost,
    "Google Chat": _build_google_chat,
    "Discord": _build_discord,
    "Teams": _build_teams,
}
