"""A child process as the parent sees it."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from trainvitals.bench import process_memory
from trainvitals.bench.child import ChildFailure, ModelProcess
from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.plan import Plan


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def start(target: str, inputs: str, work: Path, variant: str = "fp32", **more: Any) -> ModelProcess:
    plan = Plan(target, inputs=parse_inputs(inputs) if inputs else (), **more)
    return ModelProcess(plan, variant, 1, sorted(os.sched_getaffinity(0))[:1], work)


def test_it_is_pinned_and_what_the_model_prints_is_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, torch\nprint('noise')\n"
        "def make():\n    os.write(1, b'{\"failed\": 1}\\n')\n    return torch.nn.Linear(3, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    with start("noisy:make", "1x3", tmp_path) as child:
        assert child.load()["parameters"] == 12
        assert len(os.sched_getaffinity(child.pid)) == 1
        assert len(child.ask("round", batch=1, seconds=0.0, most=3)["ms"]) == 1


HEAVY_MODULE = """
import torch
library = bytearray(b"x" * (200 << 20))
loaded = torch.nn.Linear(5000, 5000)  # 100 MB

def make():
    return torch.nn.Linear(3, 3)
"""


def measure_peak(target: str, inputs: str, work: Path, **more: Any) -> float:
    """MB, as the table of results has it."""
    with start(target, inputs, work, **more) as child:
        child.load()
        child.ask("warm_up", batch=1, seconds=0.0)
        return float(child.ask("memory")["peak"])


def test_the_memory_of_libraries_is_not_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    if not process_memory.reset_peak():
        pytest.skip("this kernel does not reset the peak")
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=100)).save_pretrained(tmp_path / "gpt")
    program = torch.export.export(torch.nn.Linear(3, 3).eval(), (torch.zeros(1, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "heavy.py").write_text(HEAVY_MODULE)
    monkeypatch.chdir(tmp_path)
    assert measure_peak("gpt", "", tmp_path, prompt=8) < 60
    assert measure_peak("model.pt2", "", tmp_path) < 40
    assert measure_peak("heavy:make", "1x3", tmp_path) < 40
    assert measure_peak("heavy:loaded", "1x5000", tmp_path) >= 95  # the import of its module is what makes it


def test_a_model_that_reads_standard_input_finds_its_end_and_not_the_next_question(tmp_path: Path) -> None:
    with start("some_models:Curious", "1x3", tmp_path) as child:
        child.load()
        with pytest.raises(ChildFailure, match="EOFError"):
            child.ask("outputs", batch=1, path=str(tmp_path / "a.npz"))
        assert child.ask("memory")


@pytest.mark.promise("a model that kills its process", "the benchmark continues and reports why that variant failed")
def test_a_process_that_dies_is_a_failure_with_the_reason(tmp_path: Path) -> None:
    with start("some_models:Deadly", "1x3", tmp_path) as child:
        child.load()
        with pytest.raises(ChildFailure, match="killed, most likely out of memory") as caught:
            child.ask("outputs", batch=1, path=str(tmp_path / "a.npz"))
        assert caught.value.out_of_memory
        with pytest.raises(ChildFailure):
            child.ask("memory")


def put_trap_into(path: Path, trap: Path) -> None:
    """The same exported program, with its first weight as a pickle."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    config = next(name for name in content if name.endswith("model_weights_config.json"))
    described = json.loads(content[config])
    first = next(iter(described["config"].values()))
    first["use_pickle"] = True
    content[config] = json.dumps(described).encode()
    buffer = io.BytesIO()
    torch.save(Trap(trap), buffer)
    content[next(name for name in content if name.endswith(f"/{first['path_name']}"))] = buffer.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


@pytest.mark.promise("an exported program (.pt2) with a pickle in it", "no code in it runs without --trust")
def test_a_pickle_inside_an_exported_program_is_not_loaded(tmp_path: Path) -> None:
    path, trap = tmp_path / "model.pt2", tmp_path / "sprung"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 3), (torch.zeros(1, 3),)), path)
    put_trap_into(path, trap)
    with start(str(path), "", tmp_path) as child, pytest.raises(ChildFailure):
        child.load()
    assert not trap.exists()
    with start(str(path), "", tmp_path, trust=True) as child, pytest.raises(ChildFailure):
        child.load()
    assert trap.exists()  # the trap works, so the first half of this test means something
