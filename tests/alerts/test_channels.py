"""Each channel against the real thing, or against what the service documents of its format."""

from __future__ import annotations

import email
import email.policy
import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run_of_roles
from waiting import PATIENCE, free_port, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver
from test_outbox import carry_patiently, message

from trainvitals import settings
from trainvitals.alerts import messages, records
from trainvitals.alerts.channels import NotSent, Outgoing, alertmanager, desktop, send, services
from trainvitals.alerts.picture import read_points
from trainvitals.alerts.session import RunAlerts, still_sending
from trainvitals.journal.layout import FileName


def outgoing(**more: Any) -> Outgoing:
    body = message(**more).body
    return Outgoing(body, messages.title(body), messages.text(body), 0.0, timeout=PATIENCE)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


# -- phones and chats, through Apprise


def test_ntfy_gets_what_ntfy_documents(receiver: Receiver) -> None:
    """https://docs.ntfy.sh/publish/#publish-as-json: topic, title, message."""
    result = carry_patiently(f"ntfy://127.0.0.1:{receiver.port}/my-topic", message().body)
    assert result.sent, result.reason
    body = receiver.bodies[0]
    assert body["topic"] == "my-topic"
    assert "message 1" in body["title"] and "What to do: do this" in body["message"]


def test_slack_gets_what_slack_documents(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://api.slack.com/messaging/webhooks: JSON with text, blocks or attachments."""
    from apprise.plugins.slack import NotifySlack

    monkeypatch.setattr(NotifySlack, "webhook_url", f"http://127.0.0.1:{receiver.port}")
    services.send("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/", outgoing())
    path, headers, data = receiver.requests[0]
    assert path == "/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert headers["Content-Type"].startswith("application/json")
    body = json.loads(data)
    assert "message 1" in json.dumps(body["attachments"])
    assert "do this" in json.dumps(body)


def test_gotify_gets_what_gotify_documents(receiver: Receiver) -> None:
    services.send(f"gotify://127.0.0.1:{receiver.port}/Atokenofgotify1", outgoing())
    path, headers, data = receiver.requests[0]
    assert path == "/message"
    assert headers["X-Gotify-Key"] == "Atokenofgotify1"
    body = json.loads(data)
    assert "message 1" in body["title"] and "do this" in body["message"] and isinstance(body["priority"], int)


ADDRESSES = {
    "Slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    "Discord": "discord://123456789012345678/abcdefghijklmnopqrstuvwxyz0123456789",
    "Teams": "workflows://prod-1.westeurope.logic.azure.com/0123456789abcdef0123456789abcdef/signature0123",
    "Telegram": "tgram://123456789:abcdefghijklmnopqrstuvwxyz012345678/12315544/",
    "e-mail": "mailtos://me:password@smtp.example.org:587?mode=starttls&to=you@example.org",
    "ntfy": "ntfy://a-topic",
    "Pushover": "pover://uuuuuuuuuuuuuuuuuuuuuuuuuuuuuu@tttttttttttttttttttttttttttttt",
    "Gotify": "gotify://gotify.example.org/Atokenofgotify1",
    "PagerDuty": "pagerduty://ABCDEFGHIJKLMNOPQRSTUVWXYZ012345@abcdefghijklmnopqrst",
}


@pytest.mark.parametrize("service", ADDRESSES)
def test_the_address_of_every_service_is_understood_and_not_shown(service: str) -> None:
    import apprise

    from trainvitals.settings.addresses import ADDRESSES as parse

    assert apprise.Apprise.instantiate(ADDRESSES[service]) is not None
    (address,) = parse.parse([ADDRESSES[service]])
    assert address.shown == f"{address.name}:[redacted]"


def test_a_service_that_refuses_is_an_error_with_the_reason(receiver: Receiver) -> None:
    receiver.answers = [500]
    with pytest.raises(NotSent, match="500"):
        services.send(f"ntfy://127.0.0.1:{receiver.port}/my-topic", outgoing())


# -- e-mail


class Mailbox:
    """aiosmtpd with STARTTLS and AUTH, as a provider has it."""

    def __init__(self, folder: Path) -> None:
        import trustme
        from aiosmtpd.controller import Controller
        from aiosmtpd.smtp import AuthResult, LoginPassword

        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.authority = str(folder / "ca.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        self.mails: list[tuple[Any, Any]] = []
        outer = self

        class Keeper:
            async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
                outer.mails.append((session, envelope))
                return "250 taken"

        def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
            right = isinstance(data, LoginPassword) and (data.login, data.password) == (b"me", b"pa55word")
            return AuthResult(success=right, handled=False)  # the server answers: 235 or 535

        self.port = free_port()
        self.controller = Controller(
            Keeper(), hostname="127.0.0.1", port=self.port, tls_context=context, require_starttls=True,
            authenticator=check, auth_required=True, auth_require_tls=True, ready_timeout=PATIENCE,
        )  # fmt: skip
        self.controller.start()


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    found = Mailbox(tmp_path)
    yield found
    found.controller.stop()


def mail_url(mailbox: Mailbox, password: str) -> str:
    return (
        f"mailtos://me:{password}@localhost:{mailbox.port}"
        "?smtp=127.0.0.1&mode=starttls&from=me@example.org&to=you@example.org&verify=no"
    )


def test_a_mail_goes_out_over_starttls_with_a_login(mailbox: Mailbox) -> None:
    result = carry_patiently(mail_url(mailbox, "pa55word"), message().body)
    assert result.sent, result.reason
    session, envelope = mailbox.mails[0]
    assert session.ssl is not None and session.authenticated
    assert envelope.rcpt_tos == ["you@example.org"]
    mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert "CRITICAL message 1" in str(mail["Subject"])
    text = mail.get_body(("plain", "html"))
    assert text is not None and "do this" in text.get_content()


@pytest.mark.promise("markup and line breaks in a name", "they are text in a message")
def test_what_a_message_quotes_is_neither_markup_nor_a_header(mailbox: Mailbox) -> None:
    evil = "loss < 3 <img src=x onerror=alert(1)> {x.__class__} %s\r\nBcc: eve@example.org"
    result = carry_patiently(mail_url(mailbox, "pa55word"), message(message=evil).body)
    assert result.sent, result.reason
    envelope = mailbox.mails[0][1]
    assert envelope.rcpt_tos == ["you@example.org"]
    mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert mail["Bcc"] is None
    page, text = mail.get_body(("html",)), mail.get_body(("plain",))
    assert page is None or "<img" not in page.get_content()
    assert text is not None and "loss < 3 <img src=x" in text.get_content()


def test_a_wrong_password_is_an_error_that_does_not_show_it(mailbox: Mailbox) -> None:
    result = carry_patiently(mail_url(mailbox, "wrong-and-secret"), message().body)
    assert not result.sent
    assert "535" in result.reason and "wrong-and-secret" not in result.reason
    assert mailbox.mails == []


def test_a_picture_of_the_last_minutes_comes_with_the_mail(mailbox: Mailbox, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = []
    for n in range(300):
        stamp = f"2026-11-15T22:{n // 60:02d}:{n % 60:02d}.000Z"
        lines.append(json.dumps({"timestamp": stamp, "gpu_index": 3, "temperature_celsius": 60 + n / 10}))
    (run / "gpu_metrics_20261115_220000.jsonl").write_text("\n".join(lines) + "\n")
    body = message(metric="gpu.temperature_celsius").body
    result = carry_patiently(mail_url(mailbox, "pa55word"), body, folder=str(run))
    assert result.sent, result.reason
    mail = email.message_from_bytes(mailbox.mails[0][1].content, policy=email.policy.default)
    pictures = [part for part in mail.walk() if part.get_content_type() == "image/png"]
    assert len(pictures) == 1
    data = pictures[0].get_payload(decode=True)
    assert isinstance(data, bytes) and data.startswith(b"\x89PNG") and len(data) > 1000


def test_the_picture_is_of_the_participant_that_the_message_is_about(tmp_path: Path) -> None:
    folder = make_run_of_roles(tmp_path / "run")
    body = {"metric": "training.loss", "alerts": [{"labels": {"role": "rollout", "rank": 1}}]}
    assert {value for _, value in read_points(folder, body)} == {4.0}
    assert {value for _, value in read_points(folder, {**body, "alerts": [{"labels": {"rank": 0}}]})} == {1.0}


# -- Alertmanager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[int]:
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        pytest.fail("no Alertmanager: apt-get install --no-install-recommends prometheus-alertmanager")
    (tmp_path / "am.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = free_port()
    process = subprocess.Popen(
        [program, f"--config.file={tmp_path / 'am.yml'}", f"--storage.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def is_ready() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).status == 200)
        except OSError:
            return False

    try:
        wait_until(is_ready, "Alertmanager's start")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def listed(port: int) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/alerts", timeout=PATIENCE) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def test_alertmanager_takes_fires_and_resolves(manager: int) -> None:
    firing = outgoing()
    url = f"alertmanager://127.0.0.1:{manager}"
    send(url, firing)
    send(url, firing)  # the same again is the same alert
    found = wait_until(lambda: listed(manager), "the alert in Alertmanager")
    assert len(found) == 1
    labels = found[0]["labels"]
    assert labels == {
        "alertname": "hot", "severity": "critical", "run": "r1", "project": "p", "gpu_index": "3", "host": "node",
    }  # fmt: skip
    assert found[0]["annotations"]["advice"] == "do this"
    assert found[0]["generatorURL"] == "http://dashboard"
    body = {**firing.body, "state": "resolved", "kind": "resolved"}
    send(url, firing._replace(body=body))
    wait_until(lambda: not listed(manager), "the end of the alert in Alertmanager")


def test_eight_hot_gpus_are_eight_alerts_there() -> None:
    body = message().body
    body["alerts"] = [{"labels": {"gpu_index": n}, "message": f"GPU {n}"} for n in range(8)]
    entries = alertmanager.build(Outgoing(body, "t", "x", 0.0))
    assert sorted(entry["labels"]["gpu_index"] for entry in entries) == [str(n) for n in range(8)]


def test_the_job_of_a_scheduler_is_told_and_routes_alerts() -> None:
    body = {**message().body, "job": "Slurm job 4711", "job_labels": {"slurm_job_id": "4711", "slurm_account": "ml"}}
    assert ", Slurm job 4711, " in messages.text(body)
    (entry,) = alertmanager.build(Outgoing(body, "t", "x", 0.0))
    assert (entry["labels"]["slurm_job_id"], entry["labels"]["slurm_account"]) == ("4711", "ml")


def lasts(body: dict[str, Any]) -> float:
    """For how many seconds Alertmanager is to keep it."""
    (entry,) = alertmanager.build(Outgoing(body, "t", "x", 0.0))
    return (datetime.fromisoformat(entry["endsAt"]) - datetime.now(UTC)).total_seconds()


def test_what_nobody_will_resolve_is_kept_for_minutes_and_not_for_a_day() -> None:
    body = message().body
    assert lasts(body) > 80_000
    assert 300 < lasts({**body, "kind": "test"}) < 3600
    at_the_end = {**body["alerts"][0], "reason": "the run is killed"}
    assert 300 < lasts({**body, "alerts": [at_the_end]}) < 3600
    assert lasts({**body, "alerts": [{**body["alerts"][0], "state": "resolved"}]}) <= 0


def test_an_alert_that_fires_when_the_run_ends_is_over_in_alertmanager_and_people_hear_nothing(
    manager: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("MANAGER_URL", f"alertmanager://127.0.0.1:{manager}")
    heard = tmp_path / "heard"
    note = f"command:{sys.executable} -c \"open('{heard}', 'a').write('x')\""
    monkeypatch.setenv("NOTE_URL", note)
    folder = tmp_path / "runs" / "p" / "r1"
    folder.mkdir(parents=True)
    given = {
        "alerts.notify": {"manager": "env:MANAGER_URL", "person": "env:NOTE_URL"},
        "alerts.rules": [{"name": "hot", "when": "gpu[*].temperature_celsius > 80"}],
        "alerts.disable": "all",
    }
    alerts = RunAlerts(
        folder, settings.resolve(given, environ={}, folder=tmp_path), {"run": "r1"}, name=FileName("alerts", 1, "")
    )
    alerts.ledger.policy = replace(alerts.ledger.policy, group_wait=0.0)
    for index in range(2):
        alerts.see_sample("gpu", {"gpu_index": index}, {"temperature_celsius": 90.0}, time.time())
    alerts.tick()
    wait_until(lambda: len(listed(manager)) == 2 and heard.exists(), "the alerts in Alertmanager")
    alerts.end("finished")
    wait_until(lambda: not listed(manager), "the end of the alerts in Alertmanager")
    wait_until(lambda: not still_sending(), "the end of sending")
    assert heard.read_text() == "x"
    results = {row.channel: row.result for row in records.read_rows(folder) if row.delivery is not None}
    assert results == {"manager": "delivered", "person": "not needed"}


# -- commands, desktop, bell


def test_a_command_gets_the_message_on_its_standard_input(tmp_path: Path) -> None:
    target = tmp_path / "out file.json"
    script = tmp_path / "note.py"
    script.write_text(
        "import json, os, sys\n"
        "body = json.load(sys.stdin)\n"
        "open(sys.argv[1], 'w').write(body['rule'] + ' ' + os.environ['TRAINVITALS_ALERT_STATE'])\n"
    )
    send(f"command:{sys.executable} {script} '{target}'", outgoing())
    assert target.read_text() == "hot firing"


def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(NotSent, match="exited with 3: alas"):
        send(f"command:{sys.executable} -c \"import sys; sys.stderr.write('alas'); sys.exit(3)\"", outgoing())
    with pytest.raises(NotSent, match="program not found"):
        send("command:/there/is/no/such/program", outgoing())


def test_the_desktop_gets_texts_as_arguments_and_never_as_a_script() -> None:
    evil = outgoing()._replace(title='" & (do shell script "x") & "', text="--urgency=low")
    linux, mac = desktop.build(evil, "linux"), desktop.build(evil, "darwin")
    assert linux[-3:] == ["--", evil.title, evil.text]  # shown by a real desktop in test_desktop.py
    assert mac[-2:] == [evil.title, evil.text] and evil.title not in mac[2]


def test_the_bell_rings_in_the_terminal_of_the_training() -> None:
    import os
    import pty

    from trainvitals.alerts.channels.bell import find_terminals

    ours, theirs = pty.openpty()
    process = subprocess.Popen(["sleep", "600"], stdout=theirs, stderr=theirs)
    try:
        terminals = find_terminals([process.pid])
        assert terminals == (os.ttyname(theirs),)
        send("bell:", outgoing()._replace(terminals=terminals, title="hot\x1b[2J"))
        shown = b""
        while b"hot" not in shown:
            shown += os.read(ours, 1000)
        assert b"\a" in shown and b"hot" in shown and b"\x1b" not in shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    with pytest.raises(NotSent, match="no terminal"):
        send("bell:", outgoing())
