"""The facts in run.json: true, complete, and without secrets."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import orjson
import psutil
import pytest
from waiting import PATIENCE

from trainvitals.settings import Settings, resolve
from trainvitals.trainer.facts import capture, correlation_id, find_imported, read_packages, select_environment

CANARY = "CaNaRy4711"


def settings_with(**arguments: object) -> Settings:
    return resolve(arguments, environ={}, folder=Path("/"))


def facts_of(
    tmp_path: Path,
    *,
    config: object = None,
    argv: list[str] | None = None,
    environ: dict[str, str] | None = None,
    **arguments: object,
) -> dict[str, object]:
    return capture(
        settings_with(**arguments),
        config=config,
        argv=argv or ["python", "train.py"],
        environ={"PATH": os.environ["PATH"], **(environ or {})},
        cwd=tmp_path,
    )


def test_the_facts_are_what_others_say_too(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, argv=["python", "train.py", "--name", "two words"], config={"lr": 0.1})
    assert facts["command"] == "python train.py --name 'two words'"
    assert facts["argv"] == ["python", "train.py", "--name", "two words"]
    assert facts["cwd"] == str(tmp_path)
    assert facts["config"] == {"lr": 0.1}
    assert facts["python"] == {
        "version": platform.python_version(),
        "implementation": "CPython",
        "executable": sys.executable,
    }
    host = facts["host"]
    assert isinstance(host, dict)
    assert host["name"] == socket.gethostname()
    assert host["os"] == platform.system()
    assert host["cpu_count"] == psutil.cpu_count()
    assert host["memory_total_mb"] == psutil.virtual_memory().total // 2**20
    assert json.loads(orjson.dumps(facts)) == facts


def test_what_is_not_there_or_not_wanted_is_absent(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, capture_git=False, capture_env="none")
    assert {"git", "config"}.isdisjoint(facts)
    assert facts["environment"] == {}
    assert "git" not in facts_of(tmp_path), "it is not in a repository"


def test_the_state_of_the_repository_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.trainer.git.STATUS_TIMEOUT", PATIENCE)
    subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "-q", str(tmp_path)], check=True)
    git = facts_of(tmp_path)["git"]
    assert isinstance(git, dict)
    assert git["root"] == str(tmp_path)
    assert git["dirty"] is False


def test_only_variables_on_the_list_are_recorded(tmp_path: Path) -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "SLURM_JOB_ID": "7",
        "HF_TOKEN": CANARY,
        "SLURM_JWT": CANARY,
        "USER": CANARY,
        "LOGNAME": CANARY,
    }
    facts = facts_of(tmp_path, environ=environ)
    assert facts["environment"] == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7"}


def test_names_on_the_list_may_have_a_star() -> None:
    environ = {"NCCL_A": "1", "NCCL": "2", "XNCCL_A": "3", "B": "4"}
    assert select_environment(environ, ["NCCL_*", "B"]) == {"B": "4", "NCCL_A": "1"}
    assert select_environment(environ, []) == {}


def test_no_planted_secret_reaches_the_facts(tmp_path: Path) -> None:
    config = {
        "api_key": CANARY,
        "nested": [{"auth": {"user": CANARY}}, {"name": "HF_TOKEN", "value": CANARY}],
        "url": f"postgres://me:{CANARY}@db/x",
        "text": f"use token={CANARY} here",
        f"hf_{CANARY}abcdefghijkl": 1,
        "long": "x " * 4995 + f"https://me:{CANARY}@host/",
        "site_word": CANARY,
    }
    argv = [
        "python",
        "-c",
        "x = 1",
        "--api-key",
        CANARY,
        f"--token={CANARY}",
        f"HF_TOKEN={CANARY}",
        "--lr",
        "1",
    ]
    environ = {"HF_TOKEN": CANARY, "NCCL_PASSWORD": CANARY, "TORCH_URL": f"https://{CANARY}@host/"}
    facts = facts_of(tmp_path, config=config, argv=argv, environ=environ, capture_env=["*"], redact=["site_*"])
    assert CANARY not in json.dumps(facts)
    assert facts["command"] == (
        "python -c 'x = 1' --api-key '[redacted]' '--token=[redacted]' 'HF_TOKEN=[redacted]' --lr 1"
    )
    assert facts["environment"]["NCCL_PASSWORD"] == "[redacted]"  # type: ignore[index]


def test_a_whole_program_on_the_command_line_is_cut(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, argv=["python", "-c", "x = 1\n" * 1_000_000])
    assert len(json.dumps(facts)) < 100_000


def test_a_config_of_any_kind_does_no_harm(tmp_path: Path) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert isinstance(facts_of(tmp_path, config=Odd())["config"], str)
    assert facts_of(tmp_path, config=[1, float("nan")])["config"] == [1, "NaN"]


# -- packages


def test_packages_are_those_that_python_itself_finds() -> None:
    packages = read_packages(sys.path)
    assert {"numpy", "trainvitals"} <= packages.keys()
    for name, version in packages.items():
        assert importlib.metadata.version(name) == version


def test_odd_folders_on_the_path_do_no_harm(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "torch-2.4.0+cu121.dist-info"),
        (first, "Flash_Attn-2.6.3.dist-info"),
        (first, "notes.dist-info"),
        (first, "unheard_of-1.0.dist-info"),
        (second, "torch-1.0.dist-info"),
        (second, "ray-2.9.egg-info"),
    ):
        (folder / name).mkdir(parents=True)
    (tmp_path / "archive.zip").write_bytes(b"PK")
    paths = [str(tmp_path / "missing"), str(tmp_path / "archive.zip"), str(first), str(second)]
    assert read_packages(paths) == {"flash-attn": "2.6.3", "ray": "2.9", "torch": "2.4.0+cu121"}


def test_what_was_imported_is_known_by_package_torch_first() -> None:
    packages = ("accelerate", "numpy", "pytorch-lightning", "scikit-learn", "torch")
    assert find_imported(packages, {"sklearn", "torch", "numpy"}) == ["torch", "numpy", "scikit-learn"]


def test_capturing_imports_none_of_the_packages(tmp_path: Path) -> None:
    program = (
        "import sys, os, pathlib; from trainvitals.settings import resolve\n"
        "from trainvitals.trainer.facts import capture\n"
        "capture(resolve(), config={'a': 1}, argv=sys.orig_argv, environ=os.environ, cwd=pathlib.Path.cwd())\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(roots & {'numpy', 'torch', 'psutil', 'yaml', 'orjson', 'duckdb', 'pynvml'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


# -- correlation


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TRAINVITALS_CORRELATION_ID": "job-7.a:b_c"}, "job-7.a:b_c"),
        ({"TRAINVITALS_CORRELATION_ID": "mine", "TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7-01"}, "mine"),
        ({"TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"TRACEPARENT": f"cc-{TRACE}-00f067aa0ba902b7-01-later"}, TRACE),
        ({"TRAINVITALS_CORRELATION_ID": "", "TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7-00"}, TRACE),
    ],
)
def test_a_correlation_id_is_taken_from_the_environment(environ: dict[str, str], expected: str) -> None:
    assert correlation_id(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TRAINVITALS_CORRELATION_ID": "two\nlines"},
        {"TRAINVITALS_CORRELATION_ID": "x" * 129},
        {"TRACEPARENT": ""},
        {"TRACEPARENT": f"ff-{TRACE}-00f067aa0ba902b7-01"},
        {"TRACEPARENT": f"00-{'0' * 32}-00f067aa0ba902b7-01"},
        {"TRACEPARENT": f"00-{TRACE}-{'0' * 16}-01"},
        {"TRACEPARENT": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"},
        {"TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7-01-more"},
        {"TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7"},
        {"TRACEPARENT": "nonsense"},
    ],
)
def test_without_a_valid_one_it_is_made(environ: dict[str, str]) -> None:
    first, second = correlation_id(environ), correlation_id(environ)
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first != second
    assert first != TRACE
