"""The place of this process in a Ray job: which launch it is part of, its role and rank, and where its run is.

Nothing here imports Ray: it is asked if the program has imported it and is connected to a cluster. What the processes
of a job agree on is in the cluster's key-value store, for they may be on other machines and in other folders.

    ray session_… job 01000000                    the driver and its actors and tasks
    ray session_… job 01000000 train NAME         the workers and the controller of a Ray Train run
    ray session_… job 01000000 trial ID           one trial of Ray Tune

Tested in tests/integrations/test_ray.py.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal.identity import role_of_class

DRIVER = "driver"
"""The role of the process that started the job."""
ACTOR = "actor"
"""The role of an actor or task whose class or function has no name."""
_NAMESPACE = "trainvitals"


class RayPlace(NamedTuple):
    """What Ray knows of this process."""

    launch: str
    role: str | None = None
    """Of an actor or task: its class or function. None for a trainer."""
    member: str = ""
    """Of an actor or task: its id, which stays the same when Ray restarts it."""
    is_driver: bool = False
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    group: str = ""
    """The workers that Ray Train started together: another group of the same launch is another attempt."""


_assigned: list[str] = []
"""The launch that a callback of ours has put this process into."""


def assign(launch: str) -> None:
    """This process is part of that launch, whatever else Ray knows of it."""
    _assigned[:] = [launch]


def find_own() -> RayPlace | None:
    """The place of this process; None outside of Ray, or if Ray does not respond as expected."""
    ray = _connected()
    if ray is None:
        return None
    try:
        return _find_place(ray)
    except Exception:  # noqa: BLE001 - another package's internals; without it the process is one like any other
        return None


def is_in_actor() -> bool:
    """Whether this process is an actor or a task of Ray, and not a worker of Ray Train or Tune."""
    place = find_own()
    return place is not None and bool(place.member)


def _connected() -> Any:
    """The module, if this process is connected to a cluster."""
    ray = sys.modules.get("ray")
    is_initialized = getattr(ray, "is_initialized", None)
    return ray if is_initialized is not None and is_initialized() else None


def _find_place(ray: Any) -> RayPlace:
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return RayPlace(job_launch(ray), is_driver=True)
    train = _find_train_context()
    if train is not None:
        return RayPlace(
            train_launch(ray, train.get_experiment_name()),
            rank=train.get_world_rank(),
            world_size=train.get_world_size(),
            local_rank=train.get_local_rank(),
            local_world_size=train.get_local_world_size(),
            group=context.get_placement_group_id() or "",
        )
    trial = _find_trial()
    if _assigned or trial is not None:
        return RayPlace(_assigned[0] if _assigned else trial_launch(ray, str(trial)))
    actor = context.get_actor_id()
    # `module.Class.method` or `module.function`
    names = (context.get_task_function_name() or "").split(".")
    name = names[-2] if actor is not None and len(names) > 1 else names[-1]
    role = role_of_class(name) if name else ACTOR
    return RayPlace(job_launch(ray), role, actor or context.get_worker_id())


def job_launch(ray: Any) -> str:
    context = ray.get_runtime_context()
    return f"ray {context.get_session_name()} job {context.get_job_id()}"


def job_id_of(launch: str) -> str:
    """Ray's id of the job that a launch belongs to."""
    return launch.split(" ")[3]


def is_job(launch: str) -> bool:
    """Whether it is a whole job, not one training or trial of it."""
    return len(launch.split(" ", 4)) == 4


def train_launch(ray: Any, experiment: str) -> str:
    return f"{job_launch(ray)} train {experiment}"


def trial_launch(ray: Any, trial: str) -> str:
    return f"{job_launch(ray)} trial {trial}"


def _find_train_context() -> Any:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return context if context.get_world_size() else None
    except Exception:  # noqa: BLE001 - it raises, of several classes, where there is no training
        return None


def _find_trial() -> str | None:
    tune, sessions = sys.modules.get("ray.tune"), sys.modules.get("ray.train._internal.session")
    if tune is None or sessions is None:
        return None
    try:
        if sessions.get_session() is None:  # else it would warn that it is asked in vain
            return None
        return tune.get_context().get_trial_id() or None
    except Exception:  # noqa: BLE001 - the same
        return None


# -- what the processes of a launch agree on


def meet(launch: str, offer: Path, is_open: Callable[[Path], bool]) -> Path:
    """The folder of the launch's run: the newest that `is_open`, else the one on `offer`."""
    _, found = _claim_first(f"{launch} run", str(offer), lambda text: is_open(Path(text)))
    return Path(found)


def number_of(launch: str, role: str, member: str) -> int:
    """The number of an actor, task or node within its role, by order of joining; by its id, so that it keeps it."""
    number, _ = _claim_first(f"{launch} role {role}", member)
    return number - 1


def find_attempt(launch: str, folder: Path, group: str) -> int:
    """Which attempt of the run this group of workers is; all of them find the same."""
    number, _ = _claim_first(f"{launch} attempt of {folder.name}", group)
    return number


def note_logging(launch: str) -> None:
    """The workers of this launch log for themselves."""
    _claim(f"{launch} logs", "1")


def logs_itself(launch: str) -> bool:
    """Whether workers of this launch log for themselves, so that what they report has to be told apart."""
    return _store()._internal_kv_get(f"{launch} logs", namespace=_NAMESPACE) is not None


def _claim_first(what: str, value: str, accepts: Callable[[str], bool] = lambda found: False) -> tuple[int, str]:
    """The first number that has this value, is accepted as it is, or is free and gets this value; and its value."""
    for number in itertools.count(1):
        found = _claim(f"{what} {number}", value)
        if found == value or accepts(found):
            return number, found
    raise AssertionError  # never reached


def _claim(key: str, value: str) -> str:
    """Put the value unless there is one; the one that is there now. The own one where the store does not respond."""
    try:
        store = _store()
        store._internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)
        return str(store._internal_kv_get(key, namespace=_NAMESPACE), "utf-8")
    except Exception:  # noqa: BLE001 - errors of Ray's transport; the training comes first
        return value


def _store() -> Any:
    return sys.modules["ray"].experimental.internal_kv


# -- the driver, and folders


def _read_job() -> dict[str, Any]:
    """What Ray keeps of this job, empty where that cannot be had: it is meant for debugging."""
    ray = _connected()
    try:
        job_id = ray.get_runtime_context().get_job_id()
        return next(dict(item) for item in ray._private.state.jobs() if item["JobID"] == job_id)
    except Exception:  # noqa: BLE001 - internals
        return {}


def find_driver() -> int | None:
    """The process of this job's driver, if it is on this machine and another one than this."""
    job = _read_job()
    pid, address = job.get("DriverPid"), job.get("DriverIPAddress")
    if not isinstance(pid, int) or pid == os.getpid() or address != _connected().util.get_node_ip_address():
        return None
    return pid if runtime.process_start(pid) is not None else None


def find_raylet() -> int | None:
    """The process of this node's raylet, which is the parent of its workers; None if it cannot be found. A driver may
    be anywhere: above it after `ray.init()`, below it as a submitted job, or beside it."""
    try:
        option = f"--raylet_socket_name={sys.modules['ray']._private.worker.global_worker.node.raylet_socket_name}"
    except (AttributeError, KeyError):  # not connected, or another version
        return None
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = place.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if option in command[1:]:
            return int(place.parent.name)
    return None


def find_command() -> list[str]:
    """How the driver was started; empty if that is unknown."""
    try:
        return shlex.split(str(_read_job().get("Entrypoint") or ""))
    except ValueError:  # an unbalanced quote
        return []


def own_devices(visible: Mapping[str, str]) -> dict[str, str]:
    """The variables that hide GPUs, with those that Ray gave to this process: Ray Train makes all GPUs of the workers
    on a node visible to each of them."""
    try:
        ids = _connected().get_runtime_context().get_accelerator_ids().get("GPU") or []
    except Exception:  # noqa: BLE001 - another package; the variables are what the program sees
        ids = []
    return {name: ",".join(map(str, ids)) or value for name, value in visible.items()}


def home() -> Path:
    """The folder that relative paths are meant from: Ray Train and Tune move their workers to a folder of the trial."""
    moved = _find_train_context() is not None or _find_trial() is not None
    original = os.environ.get("PWD") if moved else None
    return Path(original) if original else Path.cwd()


# -- the end of a training loop


class LoopEnd(NamedTuple):
    """A training loop is over."""

    error: BaseException | None


class _LastBreath:
    """Kept in a thread's local storage, so that it goes with the thread."""

    def __init__(self, end: Callable[[BaseException | None], None]) -> None:
        self._end = end
        self._thread = threading.current_thread()

    def __del__(self) -> None:
        found = find_loop_end(self._thread)
        self._end(found.error if found is not None else None)


_local = threading.local()


def at_loop_end(end: Callable[[BaseException | None], None]) -> None:
    """Call `end` with the exception, if any, when the training loop that this is called from has returned.

    Ray runs the loop in a thread, keeps its exception for itself, and ends the process without a Python exit.
    """
    if threading.current_thread() is not threading.main_thread():
        _local.breath = _LastBreath(end)


def find_loop_end(thread: threading.Thread | None = None) -> LoopEnd | None:
    """How the training loop of this process ended; None while it is running. `thread` is the one that it ran in: Ray
    Tune's has its exception, and is still alive when it is asked in its last moment."""
    internals = sys.modules.get("ray.train.v2._internal.execution.context")
    try:
        if internals is not None and _find_train_context() is not None:
            runner = internals.get_train_context().execution_context.training_thread_runner
            if thread is None and runner.is_running():
                return None
            return LoopEnd(unwrap(runner.get_error()))
        errors = getattr(thread, "_error_queue", None)
        return LoopEnd(unwrap(errors.queue[0] if errors is not None and errors.queue else None))
    except Exception:  # noqa: BLE001 - internals
        return None


def unwrap(error: Any) -> BaseException | None:
    """The exception of the program inside of Ray's."""
    while error is not None and type(error).__name__ in ("UserExceptionWithTraceback", "StartTraceback"):
        error = getattr(error, "_base_exc", None) or error.__cause__
    return error if isinstance(error, BaseException) else None
