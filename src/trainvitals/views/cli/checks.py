"""What `doctor` looks at: one function per subject, each gives findings and changes nothing.
Tested in tests/views/cli/test_doctor.py."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trainvitals import runtime, sources
from trainvitals.agent.late_exports import list_unsent
from trainvitals.agent.shipping import list_unshipped
from trainvitals.agent.wanted import find_pages
from trainvitals.analysis.wording import count_of
from trainvitals.conditions import Conditions
from trainvitals.errors import SettingError, TrainvitalsError
from trainvitals.exporters import registry as exporters
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.latest import read_agent, read_latest
from trainvitals.plugins import Registry
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings, resolve
from trainvitals.settings.resolution import describe_unknown
from trainvitals.sources import SourceRow
from trainvitals.sources.sysfs import list_displays
from trainvitals.views.data import quantities
from trainvitals.views.data.row_exports import describe_export, list_exports
from trainvitals.views.data.shipments import describe_shipment

State = Literal["ok", "note", "none", "fail"]
"""Works; works, but worth knowing; not there, and need not be; should work and does not."""

PATIENCE = 10.0
"""Seconds for a driver to answer."""
SHARED_FILE_SYSTEMS = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb",
    "fuse.sshfs",
    "glusterfs",
    "9p",
)
COMMON_NAMES = frozenset({"localhost", "debian", "ubuntu", "linux", "archlinux", "fedora", "raspberrypi"})
"""Host names of systems that nobody has named."""
CLOCK_SLACK = 2.0
CONTRACTS: tuple[exporters.Contract, ...] = get_args(exporters.Contract)


class Checked(NamedTuple):
    """One thing that was looked at."""

    subject: str
    state: State
    text: str
    fix: str | None = None
    """What to type."""


def read_settings() -> tuple[Settings, list[Checked]]:
    """The settings in force, or the defaults with the reason why."""
    try:
        settings = resolve()
        Conditions(settings.alerts_thresholds)  # a threshold that does not exist
    except SettingError as error:
        return resolve(environ={}, folder=Path(os.sep)), [Checked("settings", "fail", error.message, error.hint)]
    origins = sorted({row.origin.rpartition(":")[0] or row.origin for row in settings if row.origin != "default"})
    text = f"from {', '.join(origins)}" if origins else "all defaults"
    unknown = [
        Checked("settings", "note", describe_unknown(name), f"unset {name}") for name in settings.unknown_environment
    ]
    ignored = [Checked("settings", "note", text, "trainvitals config") for text in settings.ignored_files]
    return settings, [Checked("settings", "ok", text), *unknown, *ignored]


def check_python(_: Settings) -> Iterator[Checked]:
    from trainvitals.views.cli.version import read_versions

    found = read_versions()
    yield Checked("python", "ok", f"{found['python']}, {sys.executable}")
    for name in ("orjson", "psutil", "nvidia-ml-py", "numpy", "duckdb", "pyyaml"):
        if found[name] is None:
            yield Checked("packages", "fail", f"{name} is not installed", f"{sys.executable} -m pip install {name}")
    known = [
        f"{name} {text}" for name, text in found.items() if text and name not in ("trainvitals", "python", "platform")
    ]
    yield Checked("packages", "ok", ", ".join(known))


# -- hardware


def check_sources(settings: Settings) -> Iterator[Checked]:
    problems: list[str] = []
    pages = find_pages(settings, os.environ.get, problems.append)
    for text in problems:
        yield Checked("openmetrics", "fail", text)
    looked_at = sources.World(
        openmetrics_urls=pages,
        simulated_gpus=settings.simulate_gpus,
        disk_path=lambda: str(settings.dir),
    )
    for row in sources.REGISTRY:
        if settings.sources is not None and row.name not in settings.sources:
            yield Checked(row.name, "none", "disabled by the setting 'sources'")
        elif not row.is_asked_for(settings):
            yield Checked(row.name, "none", row.note or f"off (setting '{row.setting}')")
        elif row.note is not None and row.setting is None:
            yield Checked(row.name, "ok", row.note)
        else:
            yield from _check_source(row, looked_at)


def _check_source(row: SourceRow, looked_at: sources.World) -> Iterator[Checked]:
    answer = ask_in_time(lambda: _question_source(row.name, looked_at))
    if answer is None:
        text = f"no response for {PATIENCE:.0f} s: the driver hangs"
        yield Checked(row.name, "fail", text, "sudo dmesg | tail -50")
    elif isinstance(answer, sources.SourceUnavailable):
        yield _explain_absence(row, answer, looked_at.sysfs_root)
    elif isinstance(answer, Exception):
        yield Checked(row.name, "fail", f"{type(answer).__name__}: {answer}")
    else:
        units, facts = answer
        yield Checked(row.name, "ok", _describe_source(row, units, facts))


def _explain_absence(row: SourceRow, absence: sources.SourceUnavailable, sysfs_root: str) -> Checked:
    """A card without its driver should work and does not; one that sleeps only sleeps; none is none."""
    is_on_bus = row.pci_vendor is not None and bool(list_displays(sysfs_root, row.pci_vendor))
    text, command = str(absence), absence.command or row.command
    if absence.kind == "asleep":
        return Checked(row.name, "note", text, absence.command)
    if absence.kind == "incomplete":
        return Checked(row.name, "note", text, command)
    if absence.kind == "broken" and (is_on_bus or row.pci_vendor is None):
        return Checked(row.name, "fail", text, command)
    if is_on_bus:
        return Checked(row.name, "note", f"there is such a GPU in this machine, but {text}", command)
    return Checked(row.name, "none", text)


def _question_source(name: str, looked_at: sources.World) -> tuple[int, Mapping[str, Any]] | Exception:
    try:
        source = sources.create(name, looked_at)
        units = source.discover()
        facts = source.describe()
        for unit in units:
            unit.close()
    except Exception as error:  # noqa: BLE001 - the boundary around a source: what went wrong is the finding
        return error
    return len(units), facts


def ask_in_time(question: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """The answer, or None if it takes too long; the question is then left alone."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(question()), daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else None


def _describe_source(row: SourceRow, units: int, facts: Mapping[str, Any]) -> str:
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        names = [str(gpu.get("name") or gpu.get("gpu_name") or "GPU") for gpu in gpus if isinstance(gpu, Mapping)]
        counted = [f"{names.count(item)} x {item}" if names.count(item) > 1 else item for item in dict.fromkeys(names)]
        return "; ".join(filter(None, (", ".join(counted), quantities.format_driver(facts))))
    if row.kind == "gpu":
        return f"{count_of(units, 'GPU')}, {row.name}"
    if row.kind == "host":
        cores, memory = facts.get("cpu_count"), facts.get("memory_total_mb")
        return f"{facts.get('cpu_model') or 'CPU'}, {cores} cores, {quantities.format_mb(memory)} memory"
    return ", ".join(map(str, facts.get("targets", ()))) or f"{units} found"


def check_exporters(settings: Settings) -> Iterator[Checked]:
    asked = {wish.exporter.name: wish for contract in CONTRACTS for wish in exporters.wishes_of(settings, contract)}
    for row in exporters.REGISTRY:
        wish = asked.get(row.name)
        if wish is not None and not row.is_installed:
            yield Checked(row.name, "fail", f"{row.needs} is not installed", row.install)
        elif wish is not None:
            yield Checked(row.name, "ok", f"exports {_EXPORTED[row.contract]} to {redact_text(wish.target)}")
        else:
            usage = row.usage or f'TRAINVITALS_EXPORT=\'{{"{row.name}": "..."}}\''
            yield Checked(row.name, "none", f"off; to export {_EXPORTED[row.contract]}: {usage}")
    for text in exporters.explain_unusable(settings):
        yield Checked("export", "fail", text, "trainvitals config")


_EXPORTED = {"families": "metrics", "rows": "rows of runs"}


def check_mirrors(_: Settings) -> Iterator[Checked]:
    """How far each exporter of rows is with the runs that are watched, and with those that ended before it had all."""
    latest = read_latest() if runtime.agent_is_alive() else None
    live = (Path(run.folder) for run in (latest.runs if latest is not None else ()))
    for folder in dict.fromkeys((*live, *list_unsent())):
        for name, export in list_exports(run_folder.read_statuses(folder)):
            state: State = "note" if export.trouble else "ok"
            yield Checked(name, state, f"{folder.name}: {describe_export(export)}")


def check_gateway(settings: Settings) -> Iterator[Checked]:
    """Whether it can be reached, and how far it is with runs that it does not have as a whole."""
    if settings.gateway is None:
        yield Checked("gateway", "none", "off; to ship every run: TRAINVITALS_GATEWAY=https://HOST")
    else:
        late = Checked("gateway", "fail", f"{redact_text(settings.gateway)} does not respond", "trainvitals config")
        yield ask_in_time(lambda: _ask_gateway(settings)) or late
    for folder in list_unshipped():
        for status in run_folder.read_statuses(folder):
            if status.shipment.is_due:
                state: State = "note" if status.shipment.trouble or status.shipment.left_out else "ok"
                yield Checked("shipping", state, f"{folder.name}: {describe_shipment(status.shipment)}")


def _ask_gateway(settings: Settings) -> Checked:
    from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, GatewayError

    try:
        access = GatewayAccess.find(settings, os.environ)
        assert access is not None
        FarGateway(access).ask(settings.project, "doctor")
    except (GatewayError, SettingError) as error:
        return Checked("gateway", "fail", f"{redact_text(settings.gateway or '')}: {error}", "trainvitals config")
    return Checked("gateway", "ok", f"{access.shown} takes runs of project {settings.project}")


def check_plugins(_: Settings) -> Iterator[Checked]:
    """What other packages add, each with its package, version and state."""
    from trainvitals import integrations
    from trainvitals.alerts import builtin
    from trainvitals.settings import channels
    from trainvitals.trackers import registry as importers
    from trainvitals.views import panels
    from trainvitals.views.cli.main import COMMANDS

    registries: tuple[Registry[Any], ...] = (
        sources.REGISTRY,
        exporters.REGISTRY,
        importers.REGISTRY,
        channels.REGISTRY,
        integrations.REGISTRY,
        builtin.REGISTRY,
        panels.PANELS,
        COMMANDS,
    )
    for registry in registries:
        for plugin in registry.plugins():
            text = f"{registry.group}: {plugin.name}, from {plugin.package} {plugin.version}"
            if plugin.error is None:
                yield Checked("plugin", "ok", text)
            else:
                fix = f"{sys.executable} -m pip install --upgrade {plugin.package}"
                yield Checked("plugin", "fail", f"{text}, failed to load: {plugin.error}", fix)


def check_container(settings: Settings) -> Iterator[Checked]:
    """What a container or job may really use."""
    from trainvitals.sources.cgroup import read_cgroup, read_cpu_quota, read_memory_limit

    world = sources.World()
    group = read_cgroup(world.procfs_root, world.sysfs_root)
    parts = []
    if group is not None:
        limit, quota = read_memory_limit(group), read_cpu_quota(group)
        parts += [f"memory limit {quantities.format_bytes(limit[0])}"] if limit else []
        parts += [f"{quota:g} CPU cores"] if quota else []
    found = ", ".join(parts) or "no memory or CPU limit (cgroup)"
    contained = any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv"))
    yield Checked("limits", "ok", f"{found}, in a container" if contained else found)


def check_stacks(settings: Settings) -> Iterator[Checked]:
    """Whether the stacks of programs that do not import trainvitals can be read."""
    if sys.platform == "win32":
        return
    own = Path(sys.executable).with_name("py-spy")
    if not own.exists() and shutil.which("py-spy") is None:
        text = "py-spy is not installed: stacks are recorded only of ranks that use trainvitals.init(), once they hang"
        yield Checked("stacks", "none", text, f"{sys.executable} -m pip install 'trainvitals[stacks]'")
        return
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope != "0" and os.geteuid() != 0:
        text = f"py-spy can read programs that use trainvitals.init(); no others here (ptrace_scope {scope})"
        if scope != "1":
            text = f"py-spy is installed, but the kernel does not let it read programs (ptrace_scope {scope})"
        yield Checked("stacks", "note", text, "sudo sysctl kernel.yama.ptrace_scope=0")
    else:
        yield Checked("stacks", "ok", "py-spy can read the stacks of all your programs")


# -- folders and processes


def check_runtime(_: Settings) -> Iterator[Checked]:
    try:
        folder = runtime.runtime_dir()
        runtime.measure_file_clock(folder)
    except (OSError, TrainvitalsError) as error:
        hint = "export TRAINVITALS_RUNTIME_DIR=$HOME/.cache/trainvitals"
        yield Checked("runtime", "fail", f"not writable: {error}", hint)
        return
    kind = read_file_system(folder)
    if kind.startswith(SHARED_FILE_SYSTEMS):
        text = f"{folder} is on {kind}: it must be on a local disk"
        yield Checked("runtime", "fail", text, "export TRAINVITALS_RUNTIME_DIR=/tmp/trainvitals-$USER")
    else:
        yield Checked("runtime", "ok", str(folder))


def check_agent(_: Settings) -> Iterator[Checked]:
    import trainvitals

    try:
        about = read_agent()
    except (OSError, TrainvitalsError):
        return  # reported by check_runtime
    if about is None:
        yield Checked("agent", "ok", "not running; starts with a run")
    elif about.pid is None:
        yield Checked("agent", "ok", "starting or stopping")
    elif about.version not in ("", trainvitals.__version__):
        text = f"process {about.pid} has version {about.version}, this is {trainvitals.__version__}"
        yield Checked("agent", "note", text, "trainvitals agent stop")
    else:
        yield Checked("agent", "ok", f"running as process {about.pid}")


def check_root(settings: Settings) -> Iterator[Checked]:
    root = Path(settings.dir).absolute()
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        skew = runtime.measure_file_clock(place)
    except OSError as error:
        hint = "export TRAINVITALS_DIR=$HOME/trainvitals_runs"
        yield Checked("runs", "fail", f"cannot write to {root}: {error.strerror}", hint)
        return
    free = shutil.disk_usage(place).free
    kind = read_file_system(place)
    text = f"{root}, {quantities.format_bytes(free)} free" + (f" on {kind}" if kind else "")
    if free < Conditions(settings.alerts_thresholds).thresholds["disk_free_gb"] * (1 << 30):
        yield Checked("runs", "note", f"{text}: low disk space", "trainvitals runs clean --max-age 30d --dry-run")
    elif kind.startswith(SHARED_FILE_SYSTEMS):
        yield Checked("runs", "ok", f"{text}: a shared file system is fine, each process writes its own files")
    else:
        yield Checked("runs", "ok", text)
    if abs(skew) > CLOCK_SLACK:
        yield Checked(
            "clock",
            "note",
            f"the clock of the file system of {root} is off by {skew:+.0f} s",
            "timedatectl",
        )


def check_clock(_: Settings) -> Iterator[Checked]:
    # Nothing of this program was written before this day, so an earlier clock is wrong.
    if time.time() < 1_700_000_000:
        text = f"the clock is wrong: {time.strftime('%Y-%m-%d')}"
        yield Checked("clock", "fail", text, "sudo timedatectl set-ntp true")
    else:
        yield Checked("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def check_host(settings: Settings) -> Iterator[Checked]:
    """Where many machines are seen together, one is told from another by its name."""
    pushes = settings.prometheus_remote_write or settings.prometheus_otlp or settings.gateway
    name = settings.prometheus_host or runtime.host_name()
    if pushes and name.partition(".")[0].lower() in COMMON_NAMES:
        text = f"the name of this machine is {name}, as that of others may be: what they send would be mixed"
        yield Checked("host", "note", text, "sudo hostnamectl set-hostname NAME")


def read_file_system(path: Path, mounts: str = "/proc/mounts") -> str:
    """The kind of file system, such as `ext4` or `nfs4`; empty if unknown."""
    try:
        text = Path(mounts).read_text()
    except OSError:
        return ""
    return parse_mounts(text, str(path.resolve()))


def parse_mounts(text: str, path: str) -> str:
    """The kind of the file system that holds `path`: that of the longest mount point above it, the newest of equal
    ones."""
    best, kind = "", ""
    for line in text.splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


CHECKS: tuple[Callable[[Settings], Iterator[Checked]], ...] = (
    check_python,
    check_sources,
    check_exporters,
    check_mirrors,
    check_gateway,
    check_plugins,
    check_container,
    check_stacks,
    check_runtime,
    check_agent,
    check_root,
    check_clock,
    check_host,
)
