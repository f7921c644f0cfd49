"""A finding that explains another comes before it, and is named by it."""

from __future__ import annotations

from trainvitals.analysis.diagnosis import DETECTORS
from trainvitals.analysis.findings import Finding
from trainvitals.analysis.story import EXPLAINED_BY, link
from trainvitals.conditions import Conditions, Severity


def finding(rule: str, severity: Severity = "warning", step: int | None = None, subject: str = "") -> Finding:
    return Finding(rule, severity, rule, (), "", subject=subject, step=step)


def told(*findings: Finding) -> list[tuple[str, str | None]]:
    return [(item.rule, item.cause) for item in link(findings)]


def test_the_cause_comes_first_and_what_follows_from_it_next() -> None:
    assert told(
        finding("loss.nonfinite", "critical", 520),
        finding("disk.full"),
        finding("grad.explode", step=500),
        finding("lr.jump", step=490),
    ) == [("lr.jump", None), ("loss.nonfinite", "lr.jump"), ("grad.explode", "lr.jump"), ("disk.full", None)]


def test_a_chain_is_told_from_its_beginning() -> None:
    assert told(finding("gpu.waste", "info"), finding("gpu.low_use"), finding("data.bound"), finding("io.bound")) == [
        ("io.bound", None),
        ("data.bound", "io.bound"),
        ("gpu.low_use", "data.bound"),
        ("gpu.waste", "gpu.low_use"),
    ]


def test_what_came_later_explains_nothing() -> None:
    found = told(finding("loss.divergence", step=1000), finding("lr.jump", step=3000))
    assert ("loss.divergence", None) in found and ("lr.jump", None) in found


def test_another_gpu_explains_nothing() -> None:
    assert told(finding("gpu.throttle", subject="GPU 1"), finding("gpu.hot", subject="GPU 0")) == [
        ("gpu.throttle", None),
        ("gpu.hot", None),
    ]
    assert told(finding("gpu.throttle", subject="GPU 1"), finding("gpu.hot", subject="GPU 1"))[0] == ("gpu.hot", None)


def test_the_worst_story_comes_first() -> None:
    assert [rule for rule, _ in told(finding("disk.full", "info"), finding("gpu.error", "critical"))] == [
        "gpu.error",
        "disk.full",
    ]


def test_what_is_over_comes_after_what_lasts() -> None:
    over = finding("loss.spike", "info", 100)._replace(until=102)
    assert [rule for rule, _ in told(over, finding("loss.never_learns", "info"))] == ["loss.never_learns", "loss.spike"]
    worse = over._replace(severity="warning")
    assert told(finding("disk.full", "info"), worse)[0] == ("loss.spike", None)


def test_findings_of_one_rule_are_all_kept() -> None:
    assert len(link([finding("gpu.hot", subject=f"GPU {n}") for n in range(4)] * 2)) == 8


def test_every_rule_of_the_table_exists_and_nothing_explains_itself() -> None:
    known = {rule for row in Conditions() for rule in row.findings}
    assert {detector.rule for detector in DETECTORS} <= known
    for rule, causes in EXPLAINED_BY.items():
        assert {rule, *causes} <= known

        def reach(name: str) -> set[str]:
            direct = EXPLAINED_BY.get(name, ())
            return {*direct, *(far for near in direct for far in reach(near))}

        assert rule not in reach(rule)
