from __future__ import annotations

import re

import pytest

from trainvitals import catalog
from trainvitals.conditions import Conditions
from trainvitals.views import panels
from trainvitals.views.data.dashboard import describe_panels
from trainvitals.views.panels import BY_ID, GROUPS, PANELS, Panel, find_names, levels_of, title_of


@pytest.mark.parametrize("panel", PANELS.own, ids=lambda panel: panel.id)
def test_a_panel_draws_metrics_of_the_catalog_that_share_a_unit(panel: Panel) -> None:
    metrics = [catalog.find(panel.table, name) for name in panel.metrics]
    assert None not in metrics
    assert {metric.name for metric in metrics if metric} == set(panel.metrics), "catalog names, not aliases"
    assert {metric.unit for metric in metrics if metric} == {panel.unit}
    assert len({metric.kind for metric in metrics if metric}) == 1, "rates and values do not share an axis"
    assert panel.limit is None or catalog.find(panel.table, panel.limit)


def test_ids_are_unique_and_can_stand_in_an_address() -> None:
    assert len(BY_ID) == len(PANELS)
    assert [name for name in BY_ID if not re.fullmatch(r"[a-z][a-z_]*", name)] == []


def test_every_panel_is_in_a_known_group_and_groups_stay_together() -> None:
    order = [name for name, _ in GROUPS]
    places = [order.index(panel.group) for panel in PANELS]
    assert places == sorted(places)


def test_a_panel_is_coloured_by_its_first_metric_that_has_levels() -> None:
    conditions = Conditions({"gpu_temperature_celsius": 70})
    assert [level.value for level in levels_of(BY_ID["gpu_temperature"], conditions)] == [70, 90]
    assert levels_of(BY_ID["pressure"], conditions) == conditions.levels_of("system", "pressure_memory_percent")
    assert levels_of(BY_ID["loss"], conditions) == ()


def test_a_panel_finds_its_metrics_under_other_frameworks_names() -> None:
    assert find_names(BY_ID["loss"], ["train/loss", "eval/loss"]) == ("train/loss", "eval/loss")
    assert find_names(BY_ID["loss"], ["train_loss", "loss"]) == ("loss",)
    assert find_names(BY_ID["step_phases"], ["forward_time", "data_time"]) == ("data_time", "forward_time")
    assert find_names(BY_ID["loss"], ["accuracy"]) == ()


def test_a_panel_that_has_only_validation_says_so() -> None:
    for logged, title in ((["train/loss", "val/loss"], "Loss"), (["train/loss"], "Loss"), (["val/loss"], "val/loss")):
        assert title_of(BY_ID["loss"], find_names(BY_ID["loss"], logged), logged) == title


def test_counters_are_drawn_as_rates() -> None:
    assert BY_ID["gpu_energy"].is_rate
    assert not BY_ID["gpu_power"].is_rate
    assert panels.BY_ID["gpu_power"].unit == "W"


def test_what_is_on_every_overview_is_what_matters_most_in_the_order_of_the_screen() -> None:
    ids = [panel.id for panel in panels.overview()]
    assert ids[:4] == ["rl_reward", "rl_entropy", "rl_response_length", "rl_phases"]  # which few runs have
    assert ids[4:8] == ["loss", "accuracy", "learning_rate", "gradient_norm"]
    assert all(panel.log_scale for panel in PANELS if panel.log_first)
    assert not any(panel.smooth for panel in PANELS if panel.table != "training" or panel.chart != "line")


def test_the_page_gets_every_rule_of_display_from_the_panel() -> None:
    served = {item["id"]: item for item in describe_panels(Conditions())["panels"]}
    for panel in PANELS:
        shown = served[panel.id]
        rules = (shown["importance"], shown["log"], shown["log_first"], shown["smooth"], shown["rate"])
        assert rules == (panel.importance, panel.log_scale, panel.log_first, panel.smooth, panel.is_rate)


def test_a_metric_of_the_users_own_is_smoothed_unless_it_is_scheduled() -> None:
    assert panels.own_panel("reward").smooth and not panels.own_panel("epoch").smooth
