"""Judging: waiting, hysteresis, several subjects, unknown numbers, and a clock that jumps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.language import RuleError
from trainvitals.alerts.rules import parse_rule, parse_rules

T = 1_800_000_000.0


def engine(*rules: dict[str, Any], **more: Any) -> Engine:
    return Engine([parse_rule(rule, {"limit": 5.0}) for rule in rules], **more)


def train(found: Engine, losses: list[float], start: int = 0, rank: int = 0, dt: float = 1.0) -> list[Change]:
    changes = []
    for number, loss in enumerate(losses, start):
        changes += found.feed(Point("training", {"rank": rank}, {"loss": loss}, T + number * dt, number))
    return changes


def states(changes: list[Change]) -> list[tuple[str, int | None]]:
    return [(change.state, change.step) for change in changes if change.state != "pending"]


def test_a_rule_fires_when_its_condition_has_held_long_enough_and_resolves_after() -> None:
    found = engine({"name": "high", "when": "loss > $limit", "for": "3 steps"})
    changes = train(found, [1, 9, 9, 1, 9, 9, 9, 9, 1])
    assert states(changes) == [("firing", 6), ("resolved", 8)]
    assert [change.state for change in changes].count("pending") == 2


def test_time_can_be_waited_for_as_well() -> None:
    found = engine({"name": "high", "when": "loss > 5", "for": "10s"})
    assert states(train(found, [9] * 20)) == [("firing", 10)]


def test_the_threshold_to_clear_is_another_one() -> None:
    found = engine({"name": "hot", "when": "loss > 5", "clear": "loss < 3", "clear_for": "2 steps"})
    assert states(train(found, [6, 4, 6, 4, 2, 4, 2, 2, 6])) == [
        ("firing", 0),
        ("resolved", 7),
        ("firing", 8),
    ]


@pytest.mark.parametrize(
    ("selector", "fired"),
    [
        ("*", ["gpu 0", "gpu 1", "rank 1"]),
        ("1", ["gpu 1", "rank 1"]),
        ('"gpu=1"', ["gpu 1"]),
        ('"http://a/metrics"', ["gpu 0", "gpu 1"]),
        ("7", []),
    ],
)
def test_what_was_scraped_is_selected_by_its_labels(selector: str, fired: list[str]) -> None:
    found = engine({"name": "x", "when": f"openmetrics[{selector}].foo > 5"})
    changes = []
    for target, name, value in (("a", "gpu", "0"), ("a", "gpu", "1"), ("b", "rank", "1")):
        labels = {"target": f"http://{target}/metrics", name: value}
        changes += found.feed(Point("openmetrics", labels, {"foo": 9.0}, T))
    assert [f"{list(change.labels)[1]} {list(change.labels.values())[1]}" for change in changes] == fired


def test_a_label_of_another_name_is_another_thing() -> None:
    found = engine({"name": "x", "when": "openmetrics[*].foo > 5"})
    changes = []
    for name in ("gpu", "rank"):
        changes += found.feed(Point("openmetrics", {"target": "t", name: "0"}, {"foo": 9.0}, T))
    assert [dict(change.labels) for change in changes] == [{"target": "t", "gpu": "0"}, {"target": "t", "rank": "0"}]


@pytest.mark.parametrize(
    ("when", "hint"),
    [
        ("val/loss > 3", "`val/loss`"),
        ("2 * eval/my_score > 3", "`eval/my_score`"),
        ("eval/set/score > median(eval/set/score, 5)", "`eval/set/score`"),
        ("mine > `val/mine`", None),
        ("val / loss > 3", None),
        ("mine > 3", None),
    ],
)
def test_a_name_with_a_slash_is_hinted_at_where_it_was_taken_for_a_division(when: str, hint: str | None) -> None:
    found = engine({"name": "x", "when": when})
    train(found, [1.0])
    found.report_unknown()
    problems = " ".join(found.take_problems())
    assert "no metric" in problems
    assert (f"write it in backquotes: {hint}" in problems) if hint else ("backquotes" not in problems)


def test_every_gpu_is_judged_on_its_own() -> None:
    found = engine({"name": "hot", "when": "gpu[*].temperature_celsius > 80", "message": "GPU {gpu_index}"})
    changes = []
    for index, heat in ((0, 70), (1, 90), (2, 85)):
        changes += found.feed(Point("gpu", {"gpu_index": index}, {"temperature_celsius": heat}, T))
    assert [change.message for change in changes] == ["GPU 1", "GPU 2"]


def test_a_selection_looks_at_what_was_named_only() -> None:
    found = engine({"name": "hot", "when": "gpu[1].temperature_celsius > 80"})
    for index in (0, 1, 2):
        changes = found.feed(Point("gpu", {"gpu_index": index}, {"temperature_celsius": 90}, T))
        assert len(changes) == (1 if index == 1 else 0)


@pytest.mark.parametrize(
    ("selector", "slices"), [("0", [1, 2]), ('"0:2"', [2]), ('"MIG-1"', [1]), ("2", []), ("1", [])]
)
def test_slices_are_selected_by_their_gpu_or_by_themselves(selector: str, slices: list[int]) -> None:
    found = engine({"name": "hot", "when": f"gpu[{selector}].temperature_celsius > 80"})
    fired = []
    for part in (1, 2):
        labels = {"gpu_index": 0, "gpu_uuid": f"MIG-{part}", "mig_index": part}
        fired += found.feed(Point("gpu", labels, {"temperature_celsius": 90}, T))
    assert [change.labels["mig_index"] for change in fired] == slices


def test_two_gpus_can_be_compared() -> None:
    found = engine({"name": "apart", "when": "gpu[0].power_draw_watts - gpu[1].power_draw_watts > 100"})
    found.feed(Point("gpu", {"gpu_index": 0}, {"power_draw_watts": 400}, T))
    assert found.tick(T + 1) == []
    found.feed(Point("gpu", {"gpu_index": 1}, {"power_draw_watts": 100}, T + 1))
    assert [change.state for change in found.tick(T + 2)] == ["firing"]


def test_a_rule_may_look_over_all_ranks() -> None:
    rule = {"name": "slow", "when": "batch_time > 1.5 * median(rank[*].batch_time)"}
    found = engine(rule)
    changes = []
    for rank, seconds in ((0, 1.0), (1, 1.1), (2, 3.0)):
        changes += found.feed(Point("training", {"rank": rank}, {"batch_time": seconds}, T, 1))
    changes += found.tick(T + 1)
    slow = [change for change in changes if change.state == "firing"]
    assert [change.labels for change in slow] == [{"rank": 2}]


def test_a_rule_may_join_a_rank_with_its_host() -> None:
    found = engine({"name": "both", "when": "loss > 1 and system.memory_usage_percent > 90"})
    train(found, [5.0])
    found.feed(Point("system", {}, {"memory_usage_percent": 95}, T + 1))
    assert states(train(found, [5.0], start=2)) == [("firing", 2)]


def test_nan_is_data_and_is_spelled_as_the_journal_spells_it() -> None:
    found = engine({"name": "nan", "when": "not isfinite(loss)"}, {"name": "high", "when": "loss > 5"})
    changes = found.feed(Point("training", {"rank": 0}, {"loss": "NaN"}, T, 1))
    assert [(change.rule.name, change.state) for change in changes] == [("nan", "firing")]
    assert math.isnan(changes[0].values["loss"])  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ["n/a", [1.0], {"a": 1}, True])
@pytest.mark.promise("a program logs a text or a list under the name of a number", "rules still check the numbers")
def test_what_is_no_number_is_unknown_to_every_rule(odd: Any) -> None:
    rules = (
        "not isfinite(loss)",
        "loss > 5",
        "mean(loss, 3 steps) > 5",
        "abs(loss) * 2 > 10",
        "loss > 5 + 0 * max(rank[*].loss)",
    )
    found = engine(*({"name": f"r{place}", "when": when} for place, when in enumerate(rules)))
    changes = train(found, [1.0, odd, 1.0, odd])
    assert changes == []
    assert {change.rule.name for change in train(found, [math.inf, 99.0, 99.0, 99.0], start=4)} == {
        f"r{n}" for n in range(len(rules))
    }


def test_what_is_unknown_says_neither_yes_nor_no() -> None:
    found = engine({"name": "never", "when": "not (other > 1)"}, {"name": "either", "when": "other > 1 or loss > 0"})
    assert [change.rule.name for change in train(found, [1.0])] == ["either"]


def test_a_division_by_zero_is_told_once_and_is_no_answer() -> None:
    found = engine({"name": "ratio", "when": "loss / accuracy > 1"})
    for number in range(3):
        assert found.feed(Point("training", {"rank": 0}, {"loss": 1.0, "accuracy": 0.0}, T + number, number)) == []
    problems = found.take_problems()
    assert len(problems) == 1
    assert "ratio" in problems[0] and "division by zero" in problems[0]


def test_an_unknown_metric_is_told_and_told_again_when_it_appears() -> None:
    found = engine({"name": "mine", "when": "losss > 1"})
    train(found, [1.0])
    found.report_unknown()
    assert "did you mean 'loss'" in found.take_problems()[0]
    changes = found.feed(Point("training", {"rank": 0}, {"losss": 2.0}, T + 5, 5))
    assert [change.state for change in changes] == ["firing"]
    assert "is now logged" in found.take_problems()[0]


def test_a_template_with_a_missing_field_is_sent_all_the_same() -> None:
    found = engine({"name": "m", "when": "loss > 1", "message": "{loss:.1f} and {nothing:.1f}"})
    assert train(found, [2.0])[0].message == "2.0 and {nothing?}"
    assert "{nothing}" in found.take_problems()[0]


def test_the_numbers_that_decided_come_with_the_change() -> None:
    found = engine({"name": "m", "when": "loss > 2 * median(loss, 4)", "let": {"usual": "median(loss, 4)"}})
    change = train(found, [1.0, 1.0, 1.0, 9.0])[-1]
    assert (change.value, change.threshold, change.values["usual"]) == (9.0, 2.0, 1.0)


def test_other_spellings_of_a_known_metric_are_found() -> None:
    found = engine({"name": "m", "when": "loss > 2"})
    changes = found.feed(Point("training", {"rank": 0}, {"train/loss": 5.0}, T, 1))
    assert [change.state for change in changes] == ["firing"]


def test_silence_is_noticed_by_the_clock_alone() -> None:
    found = engine({"name": "quiet", "when": "stale(loss) > 30s"})
    train(found, [1.0])
    assert found.tick(T + 20, 20.0) == []
    assert [change.state for change in found.tick(T + 31, 31.0)] == ["firing"]
    assert [change.state for change in train(found, [1.0], start=40)] == ["resolved"]


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86400 * 365.0])
def test_a_clock_that_is_set_is_no_time_that_passed(jump: float) -> None:
    found = engine({"name": "quiet", "when": "stale(loss) > 30s"}, {"name": "long", "when": "loss > 1", "for": "1m"})
    monotonic, wall = 0.0, T
    fired = []
    for second in range(30):
        if second == 15:
            wall += jump
        wall, monotonic = wall + 1, monotonic + 1
        fired += found.feed(Point("training", {"rank": 0}, {"loss": 2.0}, wall, second))
        fired += found.tick(wall, monotonic)
    assert [change.rule.name for change in fired if change.state == "firing"] == []
    assert any("clock jumped" in text for text in found.take_problems())
    for second in range(30, 80):
        wall, monotonic = wall + 1, monotonic + 1
        fired += found.feed(Point("training", {"rank": 0}, {"loss": 2.0}, wall, second))
        fired += found.tick(wall, monotonic)
    assert [change.rule.name for change in fired if change.state == "firing"] == ["long"]


def test_a_clock_that_goes_back_in_a_recorded_run_does_not_freeze_the_rules() -> None:
    found = engine({"name": "long", "when": "loss > 1", "for": "10s"})
    assert states(train(found, [2.0] * 5)) == []
    changes = []
    for number in range(20):
        point = Point("training", {"rank": 0}, {"loss": 2.0}, T - 5000 + number, 5 + number)
        changes += found.feed(point)
    assert [state for state, _ in states(changes)] == ["firing"]


def test_files_of_several_ranks_that_are_read_one_after_the_other_are_no_clock_that_goes_back() -> None:
    found = engine({"name": "quiet", "when": "stale(loss) > 30s"})
    for rank in range(4):
        for number in range(100):
            point = Point("training", {"rank": rank}, {"loss": 1.0}, T + number, number)
            assert found.feed(point, judge=False) == []
    assert found.tick(T + 101, 1.0) == []


def test_an_engine_goes_on_where_another_ended() -> None:
    rule = {"name": "high", "when": "loss > 5"}
    first = engine(rule)
    fired = train(first, [9.0])
    second = engine(rule)
    second.restore({change.key: change.since for change in fired})
    assert states(train(second, [9.0, 9.0, 1.0], start=1)) == [("resolved", 3)]


def test_an_alert_goes_on_even_if_its_metric_is_not_in_the_first_lines() -> None:
    rule = {"name": "low", "when": "reward < 1"}
    (fired,) = engine(rule).feed(Point("training", {"rank": 0}, {"reward": 0.5}, T, 1))
    second = engine(rule)
    second.feed(Point("training", {"rank": 0}, {"loss": 1.0}, T + 1, 2))
    second.restore({fired.key: fired.since})
    assert [found.name for found, _, _ in second.firing()] == ["low"]
    (change,) = second.feed(Point("training", {"rank": 0}, {"reward": 2.0}, T + 2, 3))
    assert change.state == "resolved"


def test_an_alias_that_needs_company_counts_from_the_line_on_that_has_it() -> None:
    found = engine({"name": "far", "when": "rl_kl > 1"})
    lines = [{"kl": 5.0}, {"kl": 5.0, "response_length/mean": 10.0}, {"kl": 0.5}]
    changes = [found.feed(Point("training", {"rank": 0}, row, T + at, at)) for at, row in enumerate(lines)]
    assert [[change.state for change in line] for line in changes] == [[], ["firing"], ["resolved"]]


def test_history_fills_the_windows_and_fires_nothing() -> None:
    found = engine({"name": "spike", "when": "loss > 2 * median(loss, 20)"})
    for number in range(30):
        value = 50.0 if number == 25 else 1.0
        assert found.feed(Point("training", {"rank": 0}, {"loss": value}, T + number, number), judge=False) == []
    assert states(train(found, [5.0], start=30)) == [("firing", 30)]


def test_a_thousand_rules_are_judged() -> None:
    rules = [{"name": f"r{n}", "when": f"loss > {n} + median(loss, 50)"} for n in range(1000)]
    found = Engine(parse_rules(rules, {}))
    train(found, [0.0] * 50)
    fired = [change for change in train(found, [499.5], start=50) if change.state == "firing"]
    assert len(fired) == 500


def test_warm_up_is_not_judged() -> None:
    found = engine({"name": "high", "when": "loss > 5", "after": "10 steps"})
    assert states(train(found, [9.0] * 12)) == [("firing", 10)]


def test_two_tables_that_cannot_be_matched_are_an_error_at_the_start() -> None:
    with pytest.raises(RuleError, match="cannot match each gpu with each process"):
        engine({"name": "x", "when": "gpu[*].power_draw_watts > process[*].rss_mb"})
