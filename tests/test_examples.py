"""Every example runs as its first lines say, on a CPU, with no download, and leaves a run with numbers in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import GENTLE_EXIT, PATIENCE, free_port, wait_until

EXAMPLES = Path(__file__).parent.parent / "examples"
PYTHON = (sys.executable,)


class Case(NamedTuple):
    """How an example is run, and what its run must have."""

    example: str
    arguments: tuple[str, ...]
    steps: int
    names: tuple[str, ...]
    before: tuple[str, ...] = PYTHON
    ranks: int = 1
    environment: tuple[tuple[str, str], ...] = ()


def torchrun(count: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")


PHASES = ("batch_time", "forward_time", "backward_time", "optimizer_time")
CASES = (
    Case("pytorch_classifier.py", ("--epochs", "1"), 32, ("loss", "gradient_norm", "eval/accuracy", *PHASES)),
    Case(
        "small_gpt.py",
        ("--steps", "8", "--width", "16", "--layers", "1"),
        8,
        ("loss", "eval/loss", "flops_per_sec", "throughput_tokens_per_sec", *PHASES),
    ),
    Case(
        "transformers_trainer.py",
        ("--max-steps", "4", "--output-dir", "out"),
        4,
        ("loss", "eval/loss", "gradient_norm", *PHASES),
    ),
    Case(
        "qlora_finetune_monitored.py",
        ("--model-config", "tiny", "--max-steps", "10", "--output-dir", "out", "--monitoring-log-dir", "runs"),
        10,
        ("loss", "gradient_norm", "gpu/utilization_percent", *PHASES),
        environment=(("TRAINVITALS_SIMULATE_GPUS", "1"),),
    ),
    Case(
        "grpo.py",
        ("--max-steps", "4", "--output-dir", "out"),
        4,
        ("reward", "entropy", "kl", "completions/mean_length", "gradient_norm", *PHASES),
    ),
    Case(
        "lightning_classifier.py",
        ("--epochs", "1", "--output-dir", "out"),
        32,
        ("loss", "train_loss", "val_accuracy", "best/val_loss", *PHASES),
    ),
    Case(
        "keras_classifier.py",
        ("--epochs", "1", "--output-dir", "out"),
        26,
        ("loss", "accuracy", "eval/accuracy", "batch_time"),
        environment=(("KERAS_BACKEND", "jax"),),
    ),
    Case("accelerate_loop.py", ("--epochs", "1"), 16, ("loss", "gradient_norm", *PHASES)),
    Case("ddp.py", ("--epochs", "1"), 16, ("loss", *PHASES), before=torchrun(2), ranks=2),
    Case("ddp.py", ("--epochs", "1"), 8, ("loss", *PHASES), before=torchrun(4), ranks=4),
)


def start(folder: Path, case: Case, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*case.before, str(EXAMPLES / case.example), *case.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(folder / "runs"),
            "HF_HUB_OFFLINE": "1",
            "KERAS_HOME": str(folder / "keras"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
            **(GENTLE_EXIT if case.ranks > 1 else {}),
            **dict(case.environment),
            **environment,
        },
    )


def rows_of(folder: Path, rank: int | None) -> list[dict[str, Any]]:
    pattern = "training_metrics*" if rank is None else f"training_metrics*.rank{rank}.jsonl"
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.example}-{case.ranks}" for case in CASES])
def test_an_example_leaves_a_run_with_every_step(tmp_path: Path, case: Case) -> None:
    process = start(tmp_path, case)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/*/run.json")]
    assert f"recorded in {folder}" in output
    for rank in range(case.ranks):
        rows = rows_of(folder, rank if case.ranks > 1 else None)
        assert len({row["step"] for row in rows if "loss" in row}) == case.steps
        found = {name for row in rows for name in row}
        assert set(case.names) <= found
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "finished"
    assert run["config"]


def test_the_fine_tuning_says_which_kind_it_is_and_serves_its_metrics(tmp_path: Path) -> None:
    port = free_port()
    case = next(case for case in CASES if case.example == "qlora_finetune_monitored.py")
    metrics = ("--enable-prometheus", "--prometheus-port", str(port), "--gpu-index", "0")
    case = case._replace(arguments=(*case.arguments, *metrics, "--max-steps", "100000"))
    process = start(tmp_path, case, TRAINVITALS_AGENT="1", TRAINVITALS_AGENT_IDLE_TIMEOUT="1")
    try:
        page = _wait_for_loss(process, port)
    finally:
        process.terminate()
        output, _ = process.communicate()
    assert "plain LoRA: " in output
    assert "trainable params" in output
    assert 'project="qlora"' in page


def _wait_for_loss(process: subprocess.Popen[str], port: int) -> str:
    def read_page() -> str:
        assert process.poll() is None, "the example ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                page = str(answer.read().decode())
        except OSError:
            return ""
        return page if "training_loss{" in page else ""

    return wait_until(read_page, f"a loss on port {port}")


def test_every_example_is_run_by_a_test() -> None:
    in_a_cluster = {"ray_train.py"}  # tests/integrations/test_ray.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == {case.example for case in CASES} | in_a_cluster
