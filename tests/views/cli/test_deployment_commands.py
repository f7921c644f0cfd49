"""`grafana`, `prometheus` and `stack` as a user types them, and the flags that ask for metrics."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from waiting import PATIENCE, free_port, wait_until

PROGRAM = (sys.executable, "-m", "trainvitals")


def trainvitals(*words: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, cwd=cwd, env={**kept, **environ}, check=False
    )


@pytest.mark.parametrize("name", ["training", "fleet", "node"])
def test_grafana_prints_a_dashboard(name: str) -> None:
    done = trainvitals("grafana", "dashboard", name)
    assert done.returncode == 0 and json.loads(done.stdout)["uid"] == f"trainvitals-{name}"


def test_grafana_prints_base_units() -> None:
    assert "gpu_memory_used_bytes" in trainvitals("grafana", "dashboard", "--names", "base").stdout


def test_a_dashboard_that_is_none_is_an_error_with_a_suggestion() -> None:
    done = trainvitals("grafana", "dashboard", "flet")
    assert done.returncode == 2 and "did you mean 'fleet'" in done.stderr


def test_prometheus_prints_rules_that_promtool_accepts(tmp_path: Path) -> None:
    for units in ("mb", "base"):
        path = tmp_path / f"{units}.yml"
        path.write_text(trainvitals("prometheus", "rules", "--names", units).stdout)
        assert subprocess.run(["promtool", "check", "rules", path], capture_output=True, check=False).returncode == 0


def test_prometheus_prints_a_scrape_configuration_that_promtool_accepts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    done = trainvitals(
        "prometheus", "scrape-config", "gpu-01", "gpu-02:9101", "--token-file", tmp_path / "token", "--tls"
    )
    (tmp_path / "prometheus.yml").write_text(done.stdout)
    job = yaml.safe_load(done.stdout)["scrape_configs"][0]
    assert job["static_configs"][0]["targets"] == ["gpu-01:9090", "gpu-02:9101"] and job["scheme"] == "https"
    checked = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_addresses_of_the_newer_kind_get_brackets_and_a_port() -> None:
    done = trainvitals("prometheus", "scrape-config", "::1", "[fd00::2]", "[fd00::3]:9101", "10.0.0.1")
    (job,) = yaml.safe_load(done.stdout)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["[::1]:9090", "[fd00::2]:9090", "[fd00::3]:9101", "10.0.0.1:9090"]


def test_a_target_that_is_none_is_an_error() -> None:
    done = trainvitals("prometheus", "scrape-config", "gpu-01:http")
    assert done.returncode == 2 and "gpu-01:http" in done.stderr


def test_stack_init_makes_everything_with_passwords_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        assert trainvitals("stack", "init", folder, "--no-nvidia").returncode == 0
    for name in ("compose.yaml", "Dockerfile", ".env", "prometheus/trainvitals.rules.yml", "grafana/provisioning"):
        assert (first / name).exists(), name
    assert len(list((first / "grafana" / "dashboards").glob("*.json"))) == 3
    passwords = [(folder / "secrets" / "grafana_admin_password").read_text() for folder in (first, second)]
    assert passwords[0] != passwords[1] and len(passwords[0]) >= 20
    assert stat.S_IMODE((first / "secrets").stat().st_mode) == 0o700
    assert "compose.nvidia.yaml" not in (first / ".env").read_text()
    for mount in ("./prometheus", "./alertmanager", "./grafana/provisioning", "./grafana/dashboards"):
        assert mount in (first / "compose.yaml").read_text() and (first / mount).is_dir()


def test_with_gpus_the_second_compose_file_is_used(tmp_path: Path) -> None:
    trainvitals("stack", "init", tmp_path / "stack", "--nvidia")
    assert "COMPOSE_FILE=compose.yaml:compose.nvidia.yaml" in (tmp_path / "stack" / ".env").read_text()


def test_stack_init_says_that_the_image_needs_a_package_and_how_to_get_one(tmp_path: Path) -> None:
    without = trainvitals("stack", "init", tmp_path / "without", "--no-nvidia").stdout
    assert "not on PyPI yet" in without and f"pip wheel --no-deps --wheel-dir {tmp_path / 'without'}" in without
    assert without.index("pip wheel") < without.index("docker compose up")
    absent = trainvitals("stack", "init", tmp_path / "absent", "--package", tmp_path / "absent.whl")
    assert absent.returncode == 1 and "no such file" in absent.stderr and not (tmp_path / "absent").exists()


@pytest.mark.parametrize("how", ["flag", "variable"])
@pytest.mark.parametrize(
    "package", ["trainvitals-0.1.0-py3-none-any.whl", "trainvitals-0.1.0.tar.gz", "trainvitals==0.1.0"]
)
def test_one_variable_says_what_the_image_installs(how: str, package: str, tmp_path: Path) -> None:
    is_file = "==" not in package
    if is_file:
        (tmp_path / package).write_bytes(b"")
    given = str(tmp_path / package) if is_file else package
    flags, environ = (("--package", given), {}) if how == "flag" else ((), {"TRAINVITALS_PACKAGE": given})
    done = trainvitals("stack", "init", tmp_path / "stack", "--no-nvidia", *flags, **environ)
    assert "PyPI" not in done.stdout and "docker compose up" in done.stdout, done.stderr
    assert f"\nTRAINVITALS_PACKAGE='{package}'\n" in (tmp_path / "stack" / ".env").read_text()
    assert (tmp_path / "stack" / package).exists() == is_file


def test_stack_init_never_writes_over_anything(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    done = trainvitals("stack", "init", tmp_path)
    assert done.returncode == 1 and "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# -- the flags


def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = trainvitals("monitor", "--prometheus-port", port, "--duration", 1, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr and f"--prometheus-port {port + 1}" in done.stderr


def test_a_program_runs_though_its_metrics_cannot_be_served(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        flags = ("--no-agent", "--prometheus-port", other.getsockname()[1])
        done = trainvitals("run", *flags, "--", sys.executable, "-c", "print('ran')", cwd=tmp_path)
    assert done.returncode == 0 and "ran" in done.stdout and "is in use" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--prometheus-port", "0"), "prometheus.port"),
        (("--prometheus-port", "99999"), "prometheus.port"),
        (("--prometheus-port", "9", "--prometheus-address", "0.0.0.0"), "token or a password"),
        (("--prometheus-port", "9", "--prometheus-token", "hunter2"), "never the secret itself"),
        (("--prometheus-port", "9", "--prometheus-token", "env:NO_SUCH"), "NO_SUCH is not set"),
        (("--names", "metric"), "one of mb, base"),
        (("--compat", "dcgn"), "dcgm, nvidia_smi"),
        (("--prometheus-remote-write", "example.org"), "http://"),
        (("--prometheus-remote-write", "http://joe:pass@example.org/"), "env:NAME"),
    ],
)
def test_flags_that_cannot_be_used_say_what_can(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = trainvitals("monitor", *flags, "--duration", 1, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    done = trainvitals("config", cwd=tmp_path, TRAINVITALS_PROMETHEUS_TOKEN=f"file:{tmp_path / 'token'}")
    assert "hunter2" not in done.stdout + done.stderr and f"file:{tmp_path / 'token'}" in done.stdout


@pytest.mark.parametrize("how", ["agent", "monitor"])
def test_a_command_with_a_port_serves_the_page(how: str, tmp_path: Path) -> None:
    port = free_port()
    environ = {"TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"), "TRAINVITALS_DIR": str(tmp_path / "runs")}
    flags = ("--prometheus-port", port, "--names", "base", "--simulate-gpus", 1)
    started = None
    if how == "agent":
        done = trainvitals("agent", "start", *flags, cwd=tmp_path, **environ)
        assert done.returncode == 0, done.stderr
        again = trainvitals("agent", "start", *flags, cwd=tmp_path, **environ)
        assert again.returncode == 1 and "is already running" in again.stderr
    else:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
        started = subprocess.Popen(
            [*PROGRAM, "monitor", *map(str, flags), "--no-console"], cwd=tmp_path, env={**kept, **environ}
        )
    try:

        def read_page() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                    page = str(answer.read().decode())
            except OSError:
                return ""
            return page if "gpu_memory_used_bytes{" in page else ""

        page = wait_until(read_page, "a GPU on the page")
        assert 'gpu_memory_used_bytes{gpu="0"' in page and "gpu_memory_used_mb" not in page
    finally:
        if started is not None:
            started.terminate()
            started.wait(PATIENCE)
        trainvitals("agent", "stop", **environ)
