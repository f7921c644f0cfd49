"""Web hooks of chat services as people paste them: recognized, sent in the service's own form, never shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apprise
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver
from test_outbox import carry_patiently, message

from trainvitals.alerts import messages
from trainvitals.alerts.channels import NotSent, Outgoing, chats
from trainvitals.settings.addresses import ADDRESSES
from trainvitals.settings.channels import find_chat
from trainvitals.views.cli.main import main

SECRET = "abcdefghijklmnopqrstuvwx"
AZURE = f"workflows/0123456789abcdef0123456789abcdef/triggers/manual/paths/invoke?api-version=2016-06-01&sig={SECRET}"
PASTED = {
    f"https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}": "Slack",
    f"https://discord.com/api/webhooks/123456789012345678/{SECRET}": "Discord",
    f"https://canary.discord.com/api/v10/webhooks/123456789012345678/{SECRET}": "Discord",
    f"https://discordapp.com/api/webhooks/123456789012345678/{SECRET}": "Discord",
    f"https://team.webhook.office.com/webhookb2/11111111-2222-3333-4444-555555555555@11111111-2222-3333-4444-555555555555/"
    f"IncomingWebhook/{SECRET}/11111111-2222-3333-4444-555555555555": "Teams",
    f"https://prod-12.westeurope.logic.azure.com:443/{AZURE}": "Teams",
    f"https://default1.environment.api.powerplatform.com:443/powerautomate/automations/direct/{AZURE}": "Teams",
    f"https://chat.googleapis.com/v1/spaces/AAAA/messages?key={SECRET}&token={SECRET}": "Google Chat",
    f"https://api.telegram.org/bot123456789:{SECRET}/sendMessage?chat_id=42": "Telegram",
    f"https://chat.example.org/hooks/{SECRET}yz": "Mattermost",
    f"http://chat.example.org:8065/team/hooks/{SECRET}yz": "Mattermost",
}
OTHERS = (
    f"https://hooks.slack.com.example.org/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}",
    f"https://hooks.slack.com@example.org/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}",
    f"https://example.org/?u=https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}",
    f"https://hooks.slack.com/triggers/T1JJ3T3L2/{SECRET}",
    f"https://example.org/hooks/{SECRET}",
    "https://example.org/alerts",
    "https://[::1",
    "ntfy://topic",
)


def outgoing(**more: Any) -> Outgoing:
    body = message(**more).body
    return Outgoing(body, messages.title(body), messages.text(body), 0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.mark.parametrize("url", PASTED)
def test_a_pasted_address_is_recognized_and_never_shown(url: str) -> None:
    chat = find_chat(url)
    assert chat is not None and chat.name == PASTED[url]
    (address,) = ADDRESSES.parse([url])
    assert SECRET not in f"{address} {address!r} {address.shown}"
    assert address.reference == ""


@pytest.mark.parametrize("url", OTHERS)
def test_any_other_address_is_taken_for_none_of_them(url: str) -> None:
    assert find_chat(url) is None


KNOWN_TO_APPRISE = [url for url, name in PASTED.items() if name in ("Slack", "Discord", "Google Chat")]


@pytest.mark.parametrize("url", [url for url in KNOWN_TO_APPRISE if "canary" not in url])
def test_apprise_takes_it_for_the_same_service(url: str) -> None:
    found = apprise.Apprise.instantiate(url)
    assert found is not None and str(found.service_name) in (PASTED[url], f"{PASTED[url]} Webhook")


def test_a_message_goes_through_the_web_hook_in_the_service_s_own_form(receiver: Receiver) -> None:
    result = carry_patiently(f"http://127.0.0.1:{receiver.port}/hooks/{SECRET}yz", message().body)
    assert result.sent, result.reason
    (body,) = receiver.bodies
    assert set(body) == {"text"}
    assert body["text"].startswith("**") and "message 1" in body["text"] and "What to do: do this" in body["text"]


def test_a_service_that_refuses_is_an_error_without_the_address(receiver: Receiver) -> None:
    receiver.answers = [404]
    result = carry_patiently(f"http://127.0.0.1:{receiver.port}/hooks/{SECRET}yz", message().body)
    assert not result.sent and result.final and "404" in result.reason and SECRET not in result.reason


def test_the_test_command_names_the_service(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAT", f"http://127.0.0.1:{receiver.port}/hooks/{SECRET}yz")
    (tmp_path / "trainvitals.yaml").write_text(f"alerts: {{notify: {{team: 'env:CHAT', own: '{receiver.url}'}}}}")
    assert main(["alerts", "test"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" (0")[0].partition(": sent")[0] for line in said] == ["team (Mattermost)", "own"]
    assert [set(body) == {"text"} for body in receiver.bodies] == [True, False]


def form_of(service: str, sent: Outgoing) -> Any:
    url = next(url for url, name in PASTED.items() if name == service)
    target, form = chats.build(service, url, sent)
    assert target == url or service == "Telegram"
    return json.loads(json.dumps(form))


@pytest.mark.parametrize("service", sorted(set(PASTED.values())))
def test_every_form_has_title_text_and_advice(service: str) -> None:
    text = json.dumps(form_of(service, outgoing()), ensure_ascii=False)
    assert "message 1" in text and "do this" in text


def test_what_a_message_quotes_is_no_markup_and_calls_nobody() -> None:
    quoted = Outgoing(message().body, "<!channel> & <b>", "@all <users/all> <@U1> @everyone", 0.0)
    assert form_of("Slack", quoted)["text"].startswith("*&lt;!channel&gt; &amp; &lt;b&gt;*\n")
    assert "<users" not in form_of("Google Chat", quoted)["text"]
    assert "@all" not in form_of("Mattermost", quoted)["text"]
    assert form_of("Discord", quoted)["allowed_mentions"] == {"parse": []}
    assert "parse_mode" not in form_of("Telegram", quoted)


def test_limits_of_a_service_are_kept() -> None:
    long = Outgoing(message().body, "t" * 1000, "x" * 100_000, 0.0)
    embed = form_of("Discord", long)["embeds"][0]
    assert (len(embed["title"]), len(embed["description"])) == (256, 4096)
    assert len(form_of("Telegram", long)["text"]) == 4096
    assert len(form_of("Google Chat", long)["text"].encode()) <= 4096


def test_teams_gets_an_adaptive_card_with_a_block_per_line() -> None:
    sent = outgoing()
    (attachment,) = form_of("Teams", sent)["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    blocks = attachment["content"]["body"]
    assert [block["text"] for block in blocks] == [sent.title, *sent.text.split("\n")]


def test_a_telegram_bot_needs_a_chat() -> None:
    target, form = chats.build("Telegram", f"https://api.telegram.org/bot123:{SECRET}?chat_id=-42", outgoing())
    assert target == f"https://api.telegram.org/bot123:{SECRET}/sendMessage"
    assert form["chat_id"] == "-42"
    with pytest.raises(NotSent, match=r"add \?chat_id=NUMBER") as caught:
        chats.build("Telegram", f"https://api.telegram.org/bot123:{SECRET}", outgoing())
    assert caught.value.final
