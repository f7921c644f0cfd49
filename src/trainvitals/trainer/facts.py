"""The facts about a run, for run.json: the command, environment, packages and machine. Everything redacted."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainvitals.ownership import user_name
from trainvitals.redaction import redact, redact_command
from trainvitals.runtime import host_name
from trainvitals.settings import Settings
from trainvitals.trainer.git import read_git
from trainvitals.trainer.jsonable import MAX_TEXT
from trainvitals.trainer.jsonable import make_jsonable as make_jsonable
from trainvitals.trainer.placement import read_job

# fmt: off
PACKAGES = frozenset({
    "torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "scikit-learn",
    "transformers", "tokenizers", "datasets", "accelerate", "peft", "trl", "diffusers", "timm", "safetensors",
    "lightning", "pytorch-lightning", "keras", "tensorflow", "jax", "jaxlib", "flax", "optax",
    "deepspeed", "ray", "verl", "nemo-rl", "nemo-toolkit", "megatron-core", "transformer-engine", "vllm",
    "sglang", "bitsandbytes", "flash-attn", "xformers", "triton", "torchao", "apex", "horovod", "mpi4py",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-ml-py",
    "xgboost", "lightgbm", "wandb", "mlflow", "tensorboard", "trainvitals",
})
# fmt: on
_MODULES = {"scikit-learn": "sklearn", "nvidia-ml-py": "pynvml", "megatron-core": "megatron", "nemo-toolkit": "nemo"}
"""Module names of packages that are imported under another name."""


def capture(
    settings: Settings,
    *,
    config: object,
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    modules: Collection[str] = (),
) -> dict[str, Any]:
    """Plain JSON for run.json. `argv` is the command as it was typed (`sys.orig_argv`), `modules` are those that the
    program has imported. What is unknown, or disabled by a setting, is absent."""
    words = _redact_words(settings, argv)
    facts: dict[str, Any] = {
        "command": shlex.join(words),
        "argv": words,
        "cwd": str(cwd),
        "user": user_name(os.getuid()) if hasattr(os, "getuid") else "",
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "host": read_host(),
        "environment": select_environment(environ, settings.capture_env),
        "job": read_job(environ, settings.pod_info),
        "packages": read_packages(sys.path),
    }
    facts["imported"] = find_imported(facts["packages"], modules)
    if settings.capture_git and (git := read_git(cwd, environ)):
        facts["git"] = git
    if config is not None:
        facts["config"] = config
    cleaned: dict[str, Any] = redact(make_jsonable(facts), extra=settings.redact)
    return cleaned


def format_command(settings: Settings, argv: Sequence[str]) -> str:
    """The command as `capture` records it."""
    cleaned: dict[str, str] = redact(make_jsonable({"command": shlex.join(_redact_words(settings, argv))}))
    return cleaned["command"]


def _redact_words(settings: Settings, argv: Sequence[str]) -> list[str]:
    # `python -c` has a whole program in one argument; more than this is cut anyway.
    return redact_command([word[: 2 * MAX_TEXT] for word in argv], extra=settings.redact)


def read_host() -> dict[str, object]:
    """The machine: its name, system and size."""
    system = platform.uname()
    host: dict[str, object] = {
        "name": host_name(),
        "os": system.system,
        "release": system.release,
        "machine": system.machine,
    }
    try:
        host["distribution"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        pass  # not a Linux distribution, or a bare container
    if cores := os.cpu_count():
        host["cpu_count"] = cores
    if hasattr(os, "sched_getaffinity"):
        host["cpu_available"] = len(os.sched_getaffinity(0))
    try:
        host["memory_total_mb"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (AttributeError, ValueError, OSError):
        pass  # Windows; the system source measures it there
    return host


def read_packages(paths: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that matter, by name; nothing is imported.

    The names of the installers' folders are enough (`torch-2.4.0.dist-info`), and listing them takes a tenth of
    the time of importlib.metadata, most of which is its import.
    """
    found: dict[str, str] = {}
    for folder in paths:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - names are enough, and there may be thousands
        except OSError:
            continue  # a zip file, or not there
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            package, _, version = name.rpartition(".")[0].partition("-")
            package = re.sub(r"[-_.]+", "-", package).lower()
            if package in PACKAGES and version:
                found.setdefault(package, version)  # the first on the path is the one that is imported
    return dict(sorted(found.items()))


def find_imported(packages: Iterable[str], modules: Collection[str]) -> list[str]:
    """The packages that have been imported, torch first."""
    found = [name for name in packages if _MODULES.get(name, name.replace("-", "_")) in modules]
    return sorted(found, key=lambda name: (name != "torch", name))


def select_environment(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The variables that match one of the patterns."""
    wanted = tuple(patterns)
    return {
        name: value for name, value in sorted(environ.items()) if any(fnmatchcase(name, pattern) for pattern in wanted)
    }


_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def correlation_id(environ: Mapping[str, str]) -> str:
    """The id that correlates log lines and events of one run: TRAINVITALS_CORRELATION_ID, else the trace id of a
    W3C TRACEPARENT, else 32 new hex digits."""
    given = environ.get("TRAINVITALS_CORRELATION_ID", "")
    if re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", given):  # it goes into every log line: plain and short only
        return given
    trace = _TRACEPARENT.fullmatch(environ.get("TRACEPARENT", ""))
    if trace and (trace[1] != "00" or trace[3] is None):  # version 00 has four parts, later ones may have more
        return trace[2]
    return os.urandom(16).hex()
