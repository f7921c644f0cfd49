"""Under which names a metric is found."""

from __future__ import annotations

import pytest
from rl_runs import NAMES

from trainvitals import catalog
from trainvitals.views import panels


def test_the_rate_of_a_counter_is_a_column_of_its_table() -> None:
    for table, counters in catalog.COUNTERS.items():
        columns = {metric.name for metric in catalog.TABLES[table]}
        assert {counter.rate for counter in counters if counter.rate} <= columns
        assert columns.isdisjoint(counter.name for counter in counters)


def test_a_metric_is_found_under_its_own_name_first_then_by_its_aliases() -> None:
    assert catalog.find_spelling("training", "loss", ["train/loss", "loss"]) == "loss"
    assert catalog.find_spelling("training", "loss", ["train/loss", "train_loss"]) == "train_loss"
    assert catalog.find_spelling("training", "loss", ["val/loss"]) is None
    assert catalog.find_spelling("training", "my/own", ["my/own"]) == "my/own"


def test_a_short_name_has_no_unit_and_spells_acronyms_as_people_do() -> None:
    names = ["cpu_usage_percent", "pss_mb", "disk_read_iops", "pcie_rx_mb_s", "batch_time", "loss", "actor/pg_loss"]
    shown = ["CPU usage", "PSS", "disk read IOPS", "PCIe RX", "batch", "loss", "actor/pg_loss"]
    assert [catalog.short_name(name) for name in names] == shown
    assert [catalog.title_name(name) for name in ("watch_time", "host_memory_mb")] == ["watch time", "host memory"]


@pytest.mark.parametrize("framework", NAMES)
def test_every_meaning_of_a_framework_is_found_in_what_it_logs(framework: str) -> None:
    names = NAMES[framework]
    logged = [*names.values(), "loss", "another/metric"]
    assert {meaning: catalog.find_spelling("training", meaning, logged) for meaning in names} == names


@pytest.mark.parametrize("name", ["kl", "entropy", "reward", "train/kl", "time/step", "optim/grad_norm", "truncated"])
def test_without_response_lengths_no_name_gets_a_meaning(name: str) -> None:
    logged = [name, "loss", "rewards/chosen", "rewards/rejected"]
    assert not [row.name for row in catalog.RL if catalog.find_spelling("training", row.name, logged)]
    assert [panel.id for panel in panels.PANELS if panels.find_names(panel, logged)] == ["loss"]
    assert catalog.find("training", name) is None


@pytest.mark.parametrize("meanings", [catalog.VALIDATION, catalog.RL])
def test_no_alias_has_two_meanings(meanings: tuple[catalog.Metric, ...]) -> None:
    gradients = catalog.find("training", "gradient_norm")
    assert gradients is not None
    # Of a framework that logs one gradient norm, it is that of the policy.
    shared = {gradients.name, *gradients.aliases}
    rows = [*catalog.TRAINING, *meanings]
    names = [name for row in rows for name in (row.name, *row.aliases) if row is gradients or name not in shared]
    assert len(set(names)) == len(names)


def test_usual_spellings_are_known_and_validation_keeps_its_name() -> None:
    usual = {
        "learning_rate": ("lr", "train/lr", "train/learning_rate"),
        "throughput_samples_per_sec": ("samples_per_sec", "samples_per_second", "train_samples_per_second"),
        "throughput_tokens_per_sec": ("tokens_per_sec", "train/tokens_per_second"),
        "validation_loss": ("val/loss", "val_loss", "validation/loss", "eval/loss", "eval_loss"),
        "validation_accuracy": ("val/acc", "val_accuracy", "eval/accuracy"),
    }
    for name, spellings in usual.items():
        assert [catalog.find_spelling("training", name, [spelling]) for spelling in spellings] == list(spellings)
    assert catalog.find("training", "val/loss") is None, "exported under the name it was logged with"


def test_the_only_gradient_norm_of_a_policy_in_training_is_the_policys() -> None:
    lengths = "completions/mean_length"
    for logged in ("gradient_norm", "grad_norm", "train/grad_norm"):
        assert catalog.find_spelling("training", "rl_gradient_norm", [logged, lengths]) == logged
        assert catalog.find_spelling("training", "gradient_norm", [logged, lengths]) == logged
        assert catalog.find_spelling("training", "rl_gradient_norm", [logged]) is None
    both = ["grad_norm", "actor/grad_norm", "response_length/mean"]
    assert catalog.find_spelling("training", "rl_gradient_norm", both) == "actor/grad_norm"


def test_of_several_names_that_a_pattern_matches_the_first_is_taken() -> None:
    logged = [
        "val-core/math/acc/mean@4",
        "val-core/aime/acc/mean@4",
        "val-core/aime/acc/best@4",
        "response_length/mean",
    ]
    assert catalog.find_spelling("training", "rl_validation_reward", logged) == "val-core/aime/acc/mean@4"
