"""Rules from a configuration: what is wrong is said with the rule's name; built-in ones can be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals import settings
from trainvitals.alerts import builtin, template
from trainvitals.alerts.language import RuleError
from trainvitals.alerts.rules import Wait, parse_rule
from trainvitals.conditions import Conditions
from trainvitals.errors import SettingError

YAML = """
alerts:
  notify: ["slack://TokenAAAA/TokenBBBB/TokenCCCC", "ntfy://phone-topic"]
  rules:
    - name: High loss spike
      when: loss > 2 * median(loss, 200)
      for: 3 steps
      severity: warning
      message: "Loss spike: {loss:.2f} at step {step}"
      cooldown: 300s
  thresholds: {cpu_usage_percent: 85, memory_usage_percent: 80, grad_norm_exploded: 10, learning_rate_too_low: 1e-8}
"""


def read(tmp_path: Path, text: str) -> settings.Settings:
    (tmp_path / "trainvitals.yaml").write_text(text)
    return settings.resolve(environ={}, folder=tmp_path)


def test_the_configuration_of_the_documentation_is_understood(tmp_path: Path) -> None:
    found = read(tmp_path, YAML)
    rules = {rule.name: rule for rule in builtin.rules_of(found)}
    built_in = {rule.name: rule for rule in builtin.make_rules(Conditions())}
    spike = rules["High loss spike"]
    assert spike.wait == Wait(steps=3)
    assert spike.cooldown == 300
    assert rules["memory_high"].condition != built_in["memory_high"].condition
    assert "80" in repr(rules["memory_high"].condition)
    assert [address.name for address in found.alerts_notify] == ["slack", "ntfy"]


def test_the_example_is_understood() -> None:
    example = Path(__file__).parents[2] / "examples" / "trainvitals.yaml"
    found = settings.resolve(environ={"TRAINVITALS_CONFIG": str(example)}, folder=Path("/"))
    rules = {rule.name: rule for rule in builtin.rules_of(found)}
    assert rules["High loss spike"].notify == ("team",)
    assert "loss_plateau" not in rules
    assert found.alerts_escalate_notify == ("boss",)
    assert [address.name for address in found.alerts_notify] == ["team", "phone", "boss", "here"]
    assert all(address.is_open for address in found.alerts_notify if address.name != "boss")


def test_a_secret_in_the_file_is_neither_shown_nor_passed_on(tmp_path: Path) -> None:
    found = read(tmp_path, YAML)
    shown = repr(found.as_json()) + "".join(row.text for row in found) + repr(found.alerts_notify)
    assert "TokenAAAA" not in shown
    reference = found.as_json()["alerts.notify"]["slack"]  # type: ignore[index]
    assert reference == f"config:{tmp_path / 'trainvitals.yaml'}#alerts.notify#slack"


def test_the_agent_finds_the_address_by_its_reference(tmp_path: Path) -> None:
    from trainvitals.settings.addresses import read_address

    given = read(tmp_path, YAML).as_json()
    again = settings.resolve(given, environ={}, folder=Path("/"))
    urls = [read_address(address.url) for address in again.alerts_notify]
    assert urls == ["slack://TokenAAAA/TokenBBBB/TokenCCCC", "ntfy://phone-topic"]
    assert [address.name for address in again.alerts_notify] == ["slack", "ntfy"]


def test_a_secret_in_an_argument_is_refused_because_nobody_else_could_find_it() -> None:
    with pytest.raises(settings.table.SettingError, match="env:NAME") as caught:  # type: ignore[attr-defined]
        settings.resolve({"alerts.notify": ["slack://TokenAAAA/TokenBBBB/TokenCCCC"]}, environ={}, folder=Path("/"))
    assert "TokenAAAA" not in str(caught.value)


def test_references_to_secrets(tmp_path: Path) -> None:
    from trainvitals.settings.addresses import read_address

    (tmp_path / "password").write_text("pa55\n")
    environment = {"TOPIC": "ntfy://secret-topic", "USER_NAME": "me"}.get
    assert read_address("env:TOPIC", environment) == "ntfy://secret-topic"
    mixed = f"mailto://${{env:USER_NAME}}:${{file:{tmp_path / 'password'}}}@host"
    assert read_address(mixed, environment) == "mailto://me:pa55@host"
    with pytest.raises(settings.table.SettingError, match="NOT_THERE is not set"):  # type: ignore[attr-defined]
        read_address("env:NOT_THERE", environment)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"name": "a", "when": "loss >"}, "rule 'a', when: missing value"),
        ({"when": "loss > 1"}, "needs a name"),
        ({"name": "a"}, "a condition is missing"),
        ({"name": "a", "when": "loss > 1", "for": "3"}, "use '3 steps' or '3s'"),
        ({"name": "a", "when": "loss > 1", "for": "soon"}, "for: 'soon' is not a duration"),
        ({"name": "a", "when": "loss > 1", "severity": "bad"}, "not one of info, warning, critical"),
        ({"name": "a", "when": "loss > 1", "messsage": "x"}, "did you mean 'message'"),
        ({"name": "a", "when": "loss > 1", "message": "{loss.__class__}"}, "not a valid name"),
        ({"name": "a", "when": "loss > 1", "message": "{loss!r}"}, "not a valid name"),
        ({"name": "a", "when": "loss > 1", "message": "{0}"}, "not a valid name"),
        ({"name": "a", "when": "loss > 1", "message": "{loss"}, "message: "),
        ({"name": "a", "when": "loss > 1", "message": "{loss:>{loss}}"}, "invalid format"),
        ({"name": "a", "when": "loss > 1", "message": "{loss:9999999}"}, "invalid format"),
        ({"name": "a", "when": "loss > 1", "actions": ["explode"]}, "not one of stop"),
        ({"name": "a", "when": "loss > 1", "actions": ["exec"]}, "needs 'command:'"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(rule: dict[str, object], says: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule(rule, {})
    assert says in str(caught.value)


def test_a_rule_without_a_name_is_said_by_its_number_and_the_place_it_stands_in(tmp_path: Path) -> None:
    found = read(tmp_path, "alerts:\n  rules:\n    - {name: a, when: loss > 3}\n    - {when: loss > 4}\n")
    with pytest.raises(RuleError, match=r"trainvitals\.yaml:2\), rule 2 of 2: a rule needs a name; when: loss > 4"):
        builtin.rules_of(found)


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ("[ntfy://a-secret-topic, nonsense, 'bell:']", "'nonsense' is not an address such as"),
        ("{team: slack://a/b/c, phone: 7}", "'7' is not an address such as"),
        ("['bell:', A2c4E6g8I0k2M4o6Q8s0]", "'A2c4E6g8I0k2...' is not an address such as"),
    ],
)
def test_of_several_addresses_the_one_that_is_wrong_is_shown_alone(tmp_path: Path, notify: str, said: str) -> None:
    with pytest.raises(SettingError) as raised:
        read(tmp_path, f"alerts: {{notify: {notify}}}")
    assert said in str(raised.value)
    assert "ntfy" not in str(raised.value).split(" is not ")[0] and "slack" not in str(raised.value)


def test_a_threshold_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'cpu_usage_percent'"):
        builtin.rules_of(read(tmp_path, "alerts: {thresholds: {cpu_usage: 3}}"))


def test_rules_are_switched_off_replaced_and_made_louder(tmp_path: Path) -> None:
    own = "rules: [{name: loss_spike, when: loss > 9}]"
    text = f"alerts: {{disable: [gpu_idle], thresholds: {{cpu_usage_percent: 50}}, {own}}}"
    rules = {rule.name: rule for rule in builtin.rules_of(read(tmp_path, text))}
    assert "gpu_idle" not in rules
    assert rules["loss_spike"].when == "loss > 9"
    assert rules["cpu_high"].severity == "warning"
    with pytest.raises(RuleError, match="did you mean 'gpu_idle'"):
        builtin.rules_of(read(tmp_path, "alerts: {disable: [gpu_idel]}"))


def test_every_built_in_rule_has_a_message_and_advice() -> None:
    for rule in builtin.make_rules(Conditions()):
        assert rule.message and rule.advice, rule.name
        assert len(rule.advice) > 25 or rule.name == "gpu_xid", rule.name


def test_a_template_never_fails_when_it_is_filled() -> None:
    assert template.fill("{a:.2f} {b:d} {c}", {"a": "text", "b": 1.5, "c": None}) == ("text 1.5 {c?}", ["c"])
    assert template.fill("{{x}}", {}) == ("{x}", [])
