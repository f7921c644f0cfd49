"""TransformersCallback with trainers of TRL, which inherit Transformers' Trainer."""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pandas as pd
import pytest
import torch
from datasets import Dataset
from programs import find_runs
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from trl.extras import profiling
from watching import lines, steps

import trainvitals
from trainvitals import catalog
from trainvitals.alerts import builtin
from trainvitals.alerts.replay import replay
from trainvitals.analysis.diagnosis import diagnose
from trainvitals.conditions import Conditions
from trainvitals.integrations import samples
from trainvitals.integrations.trl_phases import TrainerPhases
from trainvitals.integrations.trl_samples import TrainerSamples
from trainvitals.journal.media import list_rows
from trainvitals.journal.reader import RunReader
from trainvitals.trainer.run import Run
from trainvitals.views.data.diagnosis import read_measurements

torch.set_num_threads(1)


def test_what_a_trl_trainer_logs_is_logged(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        SFTConfig(
            str(tmp_path / "out"),
            max_steps=3,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            max_length=8,
        ),
        train_dataset=Dataset.from_dict({"text": ["a b c d e f g h"] * 8}),
        processing_class=fast,
        callbacks=[trainvitals.TransformersCallback(dir=tmp_path / "runs", agent=False)],
    )
    trainer.train()
    run = trainvitals.current_run()
    assert run is not None
    run.finish()
    assert [line["step"] for line in steps(run)] == [1, 2, 3]
    theirs = [row["mean_token_accuracy"] for row in trainer.state.log_history if "mean_token_accuracy" in row]
    assert theirs
    assert [line["mean_token_accuracy"] for line in lines(run) if "mean_token_accuracy" in line] == theirs
    assert run.config["training_arguments"]["max_length"] == 8


GRPO = Path(__file__).parents[2] / "examples" / "grpo.py"


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunReader]:
    """The example: a real GRPO training of a tiny model."""

    def run(*arguments: str) -> RunReader:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TRAINVITALS_AGENT", "0")
        monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
        monkeypatch.setattr(sys, "argv", [str(GRPO), "--output-dir", "out", *arguments])
        runpy.run_path(str(GRPO), run_name="__main__")
        trainvitals.finish()
        (found,) = find_runs(tmp_path)
        return RunReader(found)

    return run


def replay_rules(reader: RunReader) -> set[str]:
    found = replay(builtin.make_rules(Conditions()), lambda table: reader.rows(table), [], {})
    return {change.rule.name for change in found}


def test_a_healthy_grpo_run_has_no_alert_and_no_finding(train: Callable[..., RunReader]) -> None:
    reader = train("--max-steps", "60")
    names = reader.names()
    meanings = ("rl_reward", "rl_entropy", "rl_kl", "rl_clip_fraction", "rl_response_length", "rl_truncated")
    assert all(catalog.find_spelling("training", meaning, names) for meaning in (*meanings, "rl_dead_groups"))
    # A model as small as this one has hardly anything to train.
    assert {name for name in replay_rules(reader) if name.startswith("rl_")} <= {"rl_generation_bound"}
    found = diagnose(read_measurements(reader), Conditions())
    # What its steps do besides data and model is generation, and no overhead.
    of_steps = ("rl.", "step.other", "data.unseen")
    of_rl = {finding.rule for finding in found.findings if finding.rule.startswith(of_steps)}
    assert of_rl <= {"rl.generation_bound"}
    assert {"entropy collapse", "KL blow-up", "groups without a signal", "truncated responses"} <= set(found.fine)
    tables = [row for row in list_rows(reader.folder) if row["name"] == samples.TRAINING]
    assert [row["step"] for row in tables] == list(range(1, 61))
    for row in (tables[0], tables[-1]):
        table = json.loads((reader.folder / "media" / row["file"]).read_bytes())
        kept = pd.read_parquet(f"out/completions/completions_{row['step']:05d}.parquet")
        assert table["columns"] == ["prompt", "completion", "share_of_a", "advantage"]
        assert table["data"] == [list(item) for item in kept[table["columns"]].itertuples(index=False)]


def test_of_completions_the_newest_are_kept_and_messages_are_texts() -> None:
    class Kept:
        tables: ClassVar[list[tuple[str, int, Any]]] = []

        def log_table(self, name: str, data: Any, *, step: int, columns: Sequence[str]) -> None:
            self.tables.append((name, step, data))

    state = SimpleNamespace(global_step=0)
    picture = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it"}]}]
    logs = {"prompt": [picture], "completion": ["a cat"], "rewards": {"exact": [1.0]}, "advantages": [0.5]}
    trainer = SimpleNamespace(
        state=state,
        log_completions=True,
        accelerator=SimpleNamespace(is_main_process=True),
        model=SimpleNamespace(training=True),
        _logs=logs,
    )
    watching = TrainerSamples(cast(Any, Kept()), state)
    try:
        for state.global_step in range(1, 301):
            watching.take(trainer)
        trainer.log_completions = False
        watching.take(trainer)
    finally:
        watching.close()
    steps = [step for _, step, _ in Kept.tables]
    assert steps == [*range(1, 200), *range(201, 301, 2)]
    assert Kept.tables[0] == (samples.TRAINING, 1, [["user: <image> what is it", "a cat", 1.0, 0.5]])


def test_the_time_of_a_step_is_told_by_what_it_went_into(
    train: Callable[..., RunReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Run, "note_phase", lambda run, phase: notes.append(phase.name))
    reader = train("--max-steps", "6")
    rows = [row for row in reader.rows("training") if "rl_step_time" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    parts = ("rl_generation_time", "rl_reward_time", "rl_logprob_time", "rl_update_time")
    for row in rows:
        assert row["rl_step_time"] == row["step_time"]
        assert all(row[name] > 0 for name in parts) and sum(row[name] for name in parts) <= row["rl_step_time"]
    assert "rl_weight_sync_time" not in rows[0]  # nothing else generates
    began = notes.index("transformers.generate")
    step = ["transformers.generate", "", "_get_per_token_logps_and_entropies", "", "_calculate_rewards", "share_of_a"]
    assert notes[began : began + len(step)] == step and "compute_loss" in notes


def timed(*names: str) -> None:
    """As a trainer does these things, each within the one before."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(profiling.ProfilingContext(name, report_to=[]))


def test_each_second_is_of_one_part_of_a_step_and_those_of_an_evaluation_of_none() -> None:
    phases = TrainerPhases(lambda note: None)
    log = {"step_time": 1.0, "loss": 0.5}
    timed("MyTrainer._prepare_inputs", "MyTrainer.sync_weights", "VLLMGeneration.sync_weights")
    phases.discard()  # of an evaluation before the first step
    timed("MyTrainer._prepare_inputs", "MyTrainer.transformers.generate")
    phases.end_step()
    assert phases.take({"eval_loss": 1.0}) == {}
    found = phases.take(log)
    assert found.keys() == {"rl_step_time", "rl_update_time", "rl_generation_time"}
    assert 0 < found["rl_generation_time"] <= 1.0 - found["rl_update_time"]
    assert phases.take(log) == {}  # as at the end of the training
    # Responses that are used again take no time, what happens within another part is not counted again, and other
    # threads go on while the training waits.
    timed("MyTrainer._prepare_inputs")
    timed("MyTrainer.compute_loss", "MyTrainer._get_per_token_logps_and_entropies")
    thread = threading.Thread(target=timed, args=("MyTrainer.transformers.generate",))
    thread.start()
    thread.join()
    phases.end_step()
    again = phases.take(log)
    assert again.pop("rl_update_time") < 1.0
    assert again == {"rl_step_time": 1.0, "rl_generation_time": 0.0}
    phases.close()
    timed("MyTrainer._prepare_inputs", "MyTrainer.transformers.generate")  # another training's
    phases.end_step()
    assert phases.take(log)["rl_generation_time"] == 0.0


def test_a_reward_that_is_always_the_same_is_found(train: Callable[..., RunReader]) -> None:
    reader = train("--max-steps", "35", "--broken-reward")
    assert {"rl_reward_constant", "rl_groups_dead"} <= replay_rules(reader)
    found = diagnose(read_measurements(reader), Conditions())
    assert {"rl.reward_constant", "rl.dead_groups"} <= {finding.rule for finding in found.findings}
