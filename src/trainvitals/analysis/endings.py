"""How a run ended, if it did not end well: out of memory, a lost rank, a wrong shape, somebody's kill.

Every way to end is a row of `FAMILIES`, the more specific first; the last ones take everything. Patterns are of what
PyTorch, NCCL, gloo, Python, the kernel and schedulers print.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainvitals.analysis.findings import Device, Finding, Measurements, NotJudged, RunEnding
from trainvitals.analysis.frames import Frames, find_collective, find_odd, find_own_frame, parse_traceback
from trainvitals.analysis.wording import percent, show, span
from trainvitals.conditions import Conditions
from trainvitals.journal.documents.cause import (
    CANCELLED,
    CPU_LIMIT,
    NODE_FAILED,
    OUT_OF_MEMORY,
    PREEMPTED,
    REQUEUED,
    SHELL_SIGNAL,
    TIME_LIMIT,
)
from trainvitals.journal.documents.run import BAD_ENDS
from trainvitals.journal.encoding import Real
from trainvitals.journal.identity import Participant

HUNG = "hung"
FRAGMENTED_SHARE = 0.1
"""Reserved but unallocated memory of this share of what PyTorch holds is worth an advice of its own, if the request
would have fitted into it."""
MOST_NAMED = 8
LAST_LINES = 3
"""Of what was printed, where nothing else explains the end."""

_UNITS = {"bytes": 1 / 1024**3, "KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0, "TiB": 1024.0}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("requested_gib", "tried to allocate {}", f"[Tt]ried to allocate {_SIZE}"),
    ("free_gib", "{} free", rf"{_SIZE}(?: is)? free"),
    ("total_gib", "of {}", rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capaci?ty)"),
    ("process_gib", "{} in use by the process", f"this process has {_SIZE} memory in use"),
    ("allocated_gib", "{} allocated by PyTorch", rf"{_SIZE} (?:is allocated by PyTorch|already allocated)"),
    ("unallocated_gib", "{} reserved but unallocated", f"{_SIZE} is reserved by PyTorch but unallocated"),
)
"""What the allocator reports: the name of the number, the evidence, and the pattern in its message."""

Facts = tuple[list[str], dict[str, Real]]
"""Evidence in words, and its numbers."""


class Clue(NamedTuple):
    """What a family is studied with."""

    ending: RunEnding
    measured: Measurements
    text: str
    """In which its pattern was found."""


class Family(NamedTuple):
    """A way to end. It is recognised by any of these."""

    finding: str
    pattern: str = ""
    """Of the exception, of those it came from, or of what was printed last."""
    kinds: tuple[str, ...] = ()
    """Of the cause, where that says all."""
    signals: tuple[str, ...] = ()
    """Where there is nothing better to go by."""
    confirm: Callable[[str], bool] | None = None
    """What must also hold of a text in which the pattern was found."""
    below: str = ""
    """A file that must be in the traceback, too."""
    study: Callable[[Clue], Facts] | None = None
    """More evidence."""


def detect_ending(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Why the run failed, was killed or hangs."""
    ending = measured.ending
    if ending is None:
        raise NotJudged("the status of the run")
    if ending.status not in (*BAD_ENDS, HUNG):
        return []
    family, text = recognise(ending)
    row = next(row for row in conditions if family.finding in row.findings)
    said, values = family.study(Clue(ending, measured, text)) if family.study is not None else ([], {})
    where = f" at step {ending.step:,}" if ending.step is not None else ""
    return [
        Finding(
            family.finding,
            row.severity,
            f"{row.title[0].upper()}{row.title[1:]}{where}",
            (*_describe(ending), *said),
            row.advice,
            subject=", ".join(part for part in (_participant_of(ending), ending.host) if part),
            about=(_participant_of(ending),) if _participant_of(ending) else (),
            step=ending.step,
            time=ending.time,
            values=values,
        )
    ]


def recognise(ending: RunEnding) -> tuple[Family, str]:
    """The family of a bad ending, and the text by which it was recognised."""
    if ending.status == HUNG:
        return HANG, ""
    certain = next((family for family in FAMILIES if ending.cause.kind in family.kinds), None)
    if certain is not None:
        return certain, ""
    # Lines without an indent are the exceptions; the others are source code.
    chain = "\n".join(line for line in ending.traceback.splitlines() if line[:1].strip())
    # What was printed and survived explains nothing where the exception that ended the run is known.
    printed = "" if ending.cause.exception or ending.cause.is_interruption else ending.printed
    for text in (ending.cause.detail, chain, printed):
        for family in FAMILIES:
            if _fits(family, text) and family.below in ending.traceback:
                return family, text
    if ending.stall is not None:
        return HANG, ""
    number = _signal_of(ending)
    by_signal = next((family for family in FAMILIES if number in family.signals), None)
    return by_signal or (EXCEPTION if ending.cause.exception else UNEXPLAINED), ""


def _fits(family: Family, text: str) -> bool:
    found = bool(family.pattern) and re.search(family.pattern, text) is not None
    return found and (family.confirm is None or family.confirm(text))


def _signal_of(ending: RunEnding) -> str | None:
    code = ending.cause.exit_code
    if ending.cause.is_interruption:
        return "SIGINT"
    if ending.cause.signal is None and code is not None and code > SHELL_SIGNAL:
        return next((item.name for item in signal.Signals if item == code - SHELL_SIGNAL), None)
    return ending.cause.signal


def _participant_of(ending: RunEnding) -> str:
    return ending.cause.participant.title if ending.cause.rank is not None or ending.world_size > 1 else ""


def _describe(ending: RunEnding) -> list[str]:
    """What holds for every family: the message, where, and when."""
    found = [str(ending.cause)] if str(ending.cause) else [f"the run is {ending.status}"]
    own = find_own_frame(parse_traceback(ending.traceback))
    if own is not None:
        found.append(f"raised below {own}" if own != parse_traceback(ending.traceback)[0] else f"raised at {own}")
    started = f", {span(ending.seconds)} after the start" if ending.seconds is not None else ""
    last = f"last step logged: {ending.step:,}" if ending.step is not None else "no step was logged"
    return [*found, last + started]


# -- more evidence


def parse_figures(text: str) -> dict[str, float]:
    """What the allocator of a GPU reports when it fails, in GiB; figures that are not in the text are left out."""
    found = {}
    for name, _, pattern in _FIGURES:
        match = re.search(pattern, text)
        if match is not None:
            size, unit = (group for group in match.groups() if group is not None)
            found[name] = float(size) * _UNITS[unit]
    return found


def _is_fragmented(text: str) -> bool:
    known = parse_figures(text)
    idle = known.get("unallocated_gib", 0.0)
    held = idle + known.get("allocated_gib", 0.0)
    return idle >= known.get("requested_gib", float("inf")) and idle > FRAGMENTED_SHARE * held


def _study_gpu_memory(clue: Clue) -> Facts:
    known = parse_figures(clue.text) or parse_figures(clue.ending.traceback)
    words = [words.format(f"{show(known[name])} GiB") for name, words, _ in _FIGURES if name in known]
    said = [", ".join(words)] if words else []
    full = [f"{title} at {percent(value / 100)}" for title, value in _last_values(clue.measured.gpus, "memory_percent")]
    return said + ([f"memory in the last sample: {', '.join(full[:MOST_NAMED])}"] if full else []), dict(known)


def _study_host_memory(clue: Clue) -> Facts:
    hosts = [
        f"memory of {title} at {percent(value / 100)} in the last sample"
        for title, value in _last_values(clue.measured.hosts, "memory_usage_percent")
    ]
    largest = max(_last_values(clue.measured.processes, "rss_mb"), key=lambda item: item[1], default=None)
    if largest is None:
        return hosts, {}
    title, size = largest
    return [*hosts, f"{title} and its children held {show(size / 1024)} GiB in the last sample"], {"rss_mb": size}


def _last_values(devices: Sequence[Device], name: str) -> list[tuple[str, float]]:
    curves = ((device.title, device.curves[name].finite()) for device in devices if name in device.curves)
    return [(title, float(curve.y[-1])) for title, curve in curves if len(curve.y)]


def _study_collective(clue: Clue) -> Facts:
    """Which rank did not come: by gloo's own words, by who else complained, or by where each of them was."""
    text = f"{clue.text}\n{clue.ending.printed}"
    named = {
        int(number) for group in re.findall(r"Ranks? ([\d, ]+) failed to pass", text) for number in _numbers(group)
    }
    waited = {
        int(rank): int(count) for rank, count in re.findall(r"\[Rank (\d+)\] Watchdog caught.*?SeqNum=(\d+)", text)
    }
    if not named and waited:
        named = set(range(clue.ending.world_size)) - waited.keys()
        if not named and len(set(waited.values())) > 1:
            named = {rank for rank, count in waited.items() if count == min(waited.values())}
    odd = [Participant(rank=rank) for rank in sorted(named)] or list(find_odd(clue.ending.stacks))
    said = [f"missing: {_name(odd)}"] if odd else _suspect(clue.ending)
    operation = re.search(r"OpType=(\w+)", text)
    if operation is not None:
        said.append(f"in {operation[1]}, for which {_name([Participant(rank=rank) for rank in sorted(waited)])} waited")
    return said + _describe_places(clue.ending), {}


def _suspect(ending: RunEnding) -> list[str]:
    """Those that raised nothing while others gave up waiting, if they are few: a launcher ended them afterwards."""
    ranks = [Participant(rank=rank) for rank in range(ending.world_size)]
    silent = [rank for rank in ranks if rank not in ending.raised]
    if len(silent) == len(ranks) or not 0 < len(silent) <= len(ranks) // 2:
        return []
    return [f"missing, as far as is known: {_name(silent)}, which raised nothing while the others gave up waiting"]


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _name(participants: Sequence[Participant]) -> str:
    named = ", ".join(item.title for item in participants[:MOST_NAMED])
    return f"{named} and {len(participants) - MOST_NAMED} more" if len(participants) > MOST_NAMED else named


def _study_hang(clue: Clue) -> Facts:
    ending = clue.ending
    said = [f"before: {ending.stall}"] if ending.stall is not None and ending.stall != ending.cause else []
    return said + _describe_places(ending) + [f"flight recorder: {note}" for note in ending.flight_records], {}


def _describe_places(ending: RunEnding) -> list[str]:
    """Where the odd ones were, and in what the others waited for them."""
    odd = find_odd(ending.stacks)
    waiting = [participant for participant in sorted(ending.stacks) if participant not in odd]
    operation = next((found for item in waiting if (found := find_collective(ending.stacks[item]))), None)
    said = [f"{item.title} was at {_place(ending.stacks[item])}" for item in odd[:MOST_NAMED]]
    return [*said, f"{_name(waiting)} waited in {operation}"] if odd and operation else said


def _place(frames: Frames) -> str:
    return find_own_frame(frames) or frames[0]


def _study_shape(clue: Clue) -> Facts:
    steps = clue.ending.step
    return (["at the first step"] if steps is None or steps <= 1 else [f"after {steps:,} steps that went well"]), {}


def _study_worker(clue: Clue) -> Facts:
    said, values = _study_host_memory(clue)
    return [*(["the kernel killed a process of this run for memory"] if clue.ending.oom_kills else []), *said], values


def _study_sender(clue: Clue) -> Facts:
    """By whom it was ended, as far as that is known."""
    ending = clue.ending
    if ending.stopped_by:
        return [f"SIGTERM was sent by {ending.stopped_by}"], {}
    if re.search(r"[Ss]ending process \d+ closing signal", ending.printed):
        return ["the launcher ended it because another rank failed"], {}
    return ([f"it ran in {ending.job}, which ends jobs in this way"] if ending.job else []), {}


def _study_unexplained(clue: Clue) -> Facts:
    """What the program printed last, where nothing else says why it ended."""
    lines = [line.strip() for line in clue.ending.printed.splitlines() if line.strip()]
    return ([f"printed last: {' / '.join(lines[-LAST_LINES:])}"] if lines else []), {}


def _study_kill(clue: Clue) -> Facts:
    said, values = _study_host_memory(clue)
    return [*_study_sender(clue)[0], *said], values


# -- the table

_GPU_MEMORY = (
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|OutOfMemoryError|(?:CUDA|HIP)(?: \w+)? error: out of memory|"
    r"(?:CU|HIP)(?:DNN|BLAS|SPARSE|FFT|SOLVER)_STATUS_(?:ALLOC|ALLOCATION)_FAILED|CUDA_ERROR_OUT_OF_MEMORY|"
    r"cudaErrorMemoryAllocation|Cuda failure (?:\d+ )?'out of memory'|"
    r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|OOM when allocating tensor(?!.*device:CPU)"
)

HANG = Family("end.hang", study=_study_hang)
EXCEPTION = Family("end.exception")
UNEXPLAINED = Family("end.unexplained", study=_study_unexplained)

FAMILIES: tuple[Family, ...] = (
    Family("end.host_memory", kinds=(OUT_OF_MEMORY,), study=_study_host_memory),
    Family("end.time_limit", r"DUE TO TIME LIMIT|walltime .*exceeded", (CPU_LIMIT, TIME_LIMIT), ("SIGXCPU",)),
    Family("end.preempted", r"DUE TO (?:PREEMPTION|NODE FAILURE|JOB REQUEUE)", (PREEMPTED, NODE_FAILED, REQUEUED)),
    Family("end.gpu_fragmented", _GPU_MEMORY, confirm=_is_fragmented, study=_study_gpu_memory),
    Family("end.gpu_memory", _GPU_MEMORY, study=_study_gpu_memory),
    # Not the "device-side assertions" that PyTorch recommends below every other error of CUDA.
    Family("end.gpu_assert", r"device-side assert triggered|cudaErrorAssert|CUDA_ERROR_ASSERT"),
    Family("end.gpu_illegal_access", r"illegal memory access|misaligned address|cudaErrorIllegalAddress"),
    Family(
        "end.collective_timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for \w+ operation|"
        r"failed to pass monitoredBarrier|Application timeout caused pair closure|wait timeout after \d+ ?ms|"
        r"Timed out after \d+ seconds waiting for clients|[Ss]ocket [Tt]imeout|DistStoreError",
        study=_study_collective,
    ),
    Family("end.gpu_shared", r"Duplicate GPU detected"),
    Family("end.port_in_use", r"EADDRINUSE|[Aa]ddress already in use"),
    # What NCCL was told, and what a GPU did below it, says nothing of other ranks.
    Family("end.exception", r"ncclInvalid(?:Usage|Argument)|NCCL error.*invalid (?:usage|argument)"),
    Family("end.gpu_error", r"ncclUnhandledCudaError|NCCL error.*unhandled cuda error"),
    Family(
        "end.peer_lost",
        r"ncclRemoteError|ncclSystemError|gloo.*(?:Connection closed by peer|Connection reset by peer|Broken pipe)|"
        r"NCCL error|DistNetworkError|DistBackendError",
        study=_study_collective,
    ),
    Family(
        "end.gpu_error",
        r"CUDA error:|HIP error:|cuDNN error|CU(?:DNN|BLAS|SPARSE|FFT|SOLVER)_STATUS_|Torch not compiled with CUDA|"
        r"Found no NVIDIA driver|No CUDA GPUs are available|GPU is lost|uncorrectable ECC",
    ),
    Family("end.open_files", r"Too many open files|received \d+ items of ancdata"),
    Family(
        "end.shared_memory",
        r"insufficient shared memory|out of shared memory|[Bb]us error.*(?:shm|shared memory)|"
        r"unable to (?:open|mmap|write|resize).*/?torch_\d+|No space left on device.*/dev/shm",
        signals=("SIGBUS",),
    ),
    Family(
        "end.loader_worker",
        r"DataLoader worker \(pid.*(?:killed by signal|exited unexpectedly)",
        study=_study_worker,
    ),
    Family(  # the loader was just receiving a batch from it
        "end.loader_worker",
        r"^(?:ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)",
        below="/torch/utils/data/dataloader.py",
        study=_study_worker,
    ),
    Family(
        "end.disk_full",
        r"No space left on device|Disk quota exceeded|inline_container\.cc.*unexpected pos|PytorchStreamWriter failed",
    ),
    Family(
        "end.python_memory",
        r"^(?:\w+\.)*_?(?:Array)?MemoryError|can't allocate memory|not enough memory: you tried|Cannot allocate memory|"
        r"std::bad_alloc|OOM when allocating tensor",
        study=_study_host_memory,
    ),
    Family(
        "end.shape_mismatch",
        r"shapes cannot be multiplied|must match the (?:size of tensor|existing size)|Sizes of tensors must match|"
        r"shape '.*' is invalid for input|Expected input batch_size|size mismatch|expected input.* but got|"
        r"should contain \d+ elements not \d+|stack expects each tensor to be equal size|"
        r"must be the same as input size|could not be broadcast|[Dd]imension out of range|"
        r"Expected size for first two dimensions|must be equal to input\.size",
        study=_study_shape,
    ),
    Family(
        "end.tensor_mismatch",
        r"to be on the same device|not on the expected device|same dtype|expected (?:scalar type|m1 and m2)|"
        r"Input type \(.*\) and (?:weight|bias) type|following scalar types|not implemented for '\w+'|"
        r"can't be cast to the desired output type|Found dtype",
    ),
    Family("end.recursion", r"RecursionError|maximum recursion depth exceeded"),
    Family("end.missing_module", r"ModuleNotFoundError|ImportError|cannot open shared object file|undefined symbol"),
    Family("end.missing_file", r"FileNotFoundError|NotADirectoryError|IsADirectoryError|No such file or directory"),
    Family("end.permission", r"PermissionError|[Pp]ermission denied|Read-only file system"),
    Family(
        "end.native_crash", r"Segmentation fault|Fatal Python error", (), ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE")
    ),
    Family("end.terminated", kinds=(CANCELLED,), signals=("SIGTERM", "SIGHUP", "SIGQUIT"), study=_study_sender),
    Family("end.killed", signals=("SIGKILL",), study=_study_kill),
    Family("end.interrupted", signals=("SIGINT",)),
)
