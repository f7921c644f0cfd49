"""A finding that explains another comes before it, and is named by it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from trainvitals.analysis.diagnosis import DETECTORS
from trainvitals.analysis.findings import Finding, RankPlace
from trainvitals.analysis.story import EXPLAINED_BY, link
from trainvitals.conditions import Conditions, Severity


def finding(rule: str, severity: Severity = "warning", step: int | None = None, subject: str = "") -> Finding:
    return Finding(rule, severity, rule, (), "", subject=subject, step=step)


def told(*findings: Finding, places: Mapping[str, RankPlace] | None = None) -> list[tuple[str, str | None]]:
    return [(item.rule, item.cause) for item in link(findings, places or {})]


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


PLACES = {"rank 3": RankPlace("node1", frozenset({"GPU 3"})), "rank 5": RankPlace("node2", frozenset({"GPU 5"}))}


@pytest.mark.parametrize(
    ("effect", "cause", "elsewhere"),
    [
        ("straggler.rank", finding("gpu.throttle", subject="GPU 3"), True),
        ("end.gpu_memory", finding("gpu.memory_full", subject="GPU 1, GPU 3")._replace(about=("GPU 1", "GPU 3")), True),
        ("end.gpu_error", finding("gpu.error", subject="GPU 3"), True),
        ("end.disk_full", finding("disk.full", subject="node1"), True),
        ("end.hang", finding("gpu.error", subject="GPU 3"), False),
    ],
)
def test_what_a_rank_ran_on_explains_what_became_of_it(effect: str, cause: Finding, elsewhere: bool) -> None:
    """`elsewhere`: whether it explains nothing of a rank that ran on something else."""
    for rank, places, linked in (("rank 3", PLACES, True), ("rank 5", PLACES, not elsewhere), ("rank 5", {}, True)):
        found = link([finding(effect, "critical", 100, f"{rank}, node")._replace(about=(rank,)), cause], places)
        assert {item.rule: item.cause for item in found}[effect] == (cause.rule if linked else None)


def test_memory_that_another_rank_of_the_host_leaks_explains_a_kill() -> None:
    kill = finding("end.host_memory", "critical", subject="rank 3")
    leak = finding("host.memory_leak", subject="rank 4")
    beside = PLACES | {"rank 4": RankPlace("node1")}
    assert told(kill, leak, places=beside) == [("host.memory_leak", None), ("end.host_memory", "host.memory_leak")]
    assert ("end.host_memory", None) in told(kill, leak, places=PLACES | {"rank 4": RankPlace("node2")})


def test_a_slow_rank_explains_the_gpus_of_those_that_wait_for_it() -> None:
    waiting = finding("gpu.low_use", subject="GPU 0, GPU 1")
    assert told(waiting, finding("straggler.rank", subject="rank 3"), places=PLACES) == [
        ("straggler.rank", None),
        ("gpu.low_use", "straggler.rank"),
    ]


def test_one_of_several_hot_gpus_throttles() -> None:
    hot = finding("gpu.hot", subject="GPU 0, GPU 1")._replace(about=("GPU 0", "GPU 1"))
    assert told(finding("gpu.throttle", subject="GPU 0"), hot)[0] == ("gpu.hot", None)


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
