"""How good the findings are: `python benchmarks/diagnosis.py [--seeds N] [--tuning] [--cases]`.

A corpus of labelled runs is made, written as run folders and diagnosed. A network in numpy is really trained, with one
fault switched on in its learning, its data or its pace, or on a machine with a fault; each faulty run is logged in four
styles (every step, every tenth, rounded, under other names). The healthy ones have many shapes: this network with every
schedule, the trainings and curves of tests/alerts, on machines in good health.

Faults of processes (a rank that is stopped, a worker that is killed, a rank that is missing) are real processes in
tests/agent and tests/analysis/test_endings.py, and not repeated here.

Even seeds are for tuning. Odd seeds are held out: whoever changes a detector looks at the even ones only (`--tuning`),
and at the sums over the odd ones when done. `--cases` prints every miss and every false finding.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "alerts"))

import curves
import held_out
import made_runs

from trainvitals.alerts import builtin
from trainvitals.alerts.engine import Engine, Point
from trainvitals.analysis.diagnosis import Diagnosis, diagnose
from trainvitals.analysis.wording import count_of
from trainvitals.conditions import Conditions
from trainvitals.journal.reader import open_run
from trainvitals.views.data.diagnosis import read_measurements

Row = dict[str, Any]
CONDITIONS = Conditions()
LIVE = {"loss.divergence": "loss_diverging", "step.fail_slow": "steps_slower"}
"""Findings that an alert must name as well."""
STEPS = 1600
AT = 900
"""Where a fault begins that is not there from the start."""
SECONDS = 900


@dataclass
class Made:
    """A run: lines by table, those of the training by rank."""

    training: list[list[Row]]
    gpu: list[Row] = field(default_factory=list)
    system: list[Row] = field(default_factory=list)
    process: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)


class Fault(NamedTuple):
    """What is wrong in a run, and what may rightly be named besides."""

    finding: str
    since: int | None
    """The step where it begins; None where that has no meaning."""
    make: Callable[[int], Made]
    besides: frozenset[str] = frozenset()


# -- a training


class Options(NamedTuple):
    rate: float = 2e-3
    schedule: str = "constant"
    batch: int = 32
    points: int = 3000
    shuffled_labels: bool = False
    jump: float = 1.0
    """Times the learning rate from AT on."""
    resumed: bool = False
    """At AT the schedule begins again: its state was not restored."""
    nan_at: int | None = None
    frozen: bool = False
    kill_units: bool = False
    bad_every: int = 0
    """One batch in so many has absurd inputs and wrong labels."""
    weight_decay_up: float = 0.0
    """From AT on, weights shrink by this share in a step: the loss rises slowly."""
    steps: int = STEPS


def rate_at(options: Options, step: int) -> float:
    share = (step - AT if options.resumed and step >= AT else step) / options.steps
    shape = {
        "constant": 1.0,
        "warm-up": min(1.0, (step + 1) / 200),
        "cosine": 0.5 * (1 + math.cos(math.pi * share)) + 1e-3,
        "restarts": 0.5 * (1 + math.cos(math.pi * (share * 4 % 1))) + 1e-3,
    }[options.schedule]
    return options.rate * shape * (options.jump if step >= AT else 1.0)


def train(seed: int, options: Options) -> list[Row]:
    """A classifier of points by angle with ReLUs; Adam. Layers are looked at every 25 steps as by `watch`, held-out
    data every 100."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (options.points + 500, 2))
    kinds = (np.floor(np.arctan2(x[:, 1], x[:, 0]) / math.pi * 2) % 4).astype(int)
    kinds = np.where(random.random(len(kinds)) < 0.05, random.integers(0, 4, len(kinds)), kinds)
    if options.shuffled_labels:
        kinds = random.integers(0, 4, len(kinds))
    held, trained = slice(options.points, None), options.points
    w = held_out._layers(random, 2, 32, 32, 4)
    optimizer = held_out.Optimizer("adam", w)
    rows: list[Row] = []
    for step in range(options.steps):
        pick = random.integers(0, trained, options.batch)
        inputs = x[pick].copy()
        bad = options.bad_every and step % options.bad_every == options.bad_every - 10
        if bad:
            inputs *= 40
        if options.nan_at is not None and step >= options.nan_at:
            inputs[:] = np.nan
        if options.kill_units and step == AT:
            w[1][:] = -50.0
        states = _forward(w, inputs)
        labels = (kinds[pick] + 2) % 4 if bad else kinds[pick]
        loss, d = held_out.softmax_loss(states[-1], labels)
        gradients = _backward(w, states, d)
        if options.frozen:
            gradients[0][:] = 0
            gradients[1][:] = 0
        before = [weight.copy() for weight in w] if step % 25 == 0 else None
        rate = rate_at(options, step)
        norm = optimizer.step(gradients, rate)
        if options.weight_decay_up and step >= AT:
            for weight in w:
                weight *= 1 - options.weight_decay_up
        row: Row = {"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
        if before is not None:
            for n in range(0, len(w), 2):
                size, name = float(np.linalg.norm(before[n])), f"layer{n // 2}"
                row[f"gradient_norm/{name}"] = float(np.linalg.norm(gradients[n]))
                row[f"weight_norm/{name}"] = size
                row[f"update_ratio/{name}"] = float(np.linalg.norm(w[n] - before[n])) / max(size, 1e-12)
                if n + 2 < len(w):
                    row[f"activation_dead/{name}"] = float((states[n // 2 + 1] <= 0).all(0).mean())
        if step % 100 == 99:
            out = _forward(w, x[held])[-1]
            row["val_loss"] = held_out.softmax_loss(out, kinds[held])[0]
            row["val_accuracy"] = float((out.argmax(1) == kinds[held]).mean())
        rows.append(row)
    return rows


def _forward(w: held_out.Arrays, x: np.ndarray) -> held_out.Arrays:
    states = [x]
    for n in range(0, len(w), 2):
        z = states[-1] @ w[n] + w[n + 1]
        states.append(np.maximum(z, 0) if n + 2 < len(w) else z)
    return states


def _backward(w: held_out.Arrays, states: held_out.Arrays, d: np.ndarray) -> held_out.Arrays:
    gradients: held_out.Arrays = [np.zeros(0)] * len(w)
    for n in range(len(w) - 2, -1, -2):
        if n + 2 < len(w):
            d = d * (states[n // 2 + 1] > 0)
        gradients[n], gradients[n + 1] = states[n // 2].T @ d, d.sum(0)
        d = d @ w[n].T
    return gradients


# -- its pace, and the machine


def paced(seed: int, rows: list[Row], change: Callable[[int, Row, np.random.Generator], None] | None = None) -> Made:
    """The same lines with the phases of each step; `change` may make some of them longer."""
    random = np.random.default_rng(seed + 1)
    pace, jitter = 10 ** random.uniform(-1.3, -0.3), random.uniform(0.005, 0.03)
    for row in rows:
        usual = {
            "data_time": 0.04,
            "forward_time": 0.3,
            "backward_time": 0.55,
            "optimizer_time": 0.08,
            "other_time": 0.03,
        }
        for name, share in usual.items():
            row[name] = pace * share * float(np.exp(jitter * random.normal()))
        if change is not None:
            change(row["step"], row, random)
        row["batch_time"] = sum(row[name] for name in usual)
    return Made([rows], *machine(seed))


def machine(seed: int, **changed: Any) -> tuple[list[Row], list[Row], list[Row]]:
    """A GPU, the host and the processes in good health, once a second; `changed` are values, or functions of the
    second."""
    random = np.random.default_rng(seed + 2)
    tables: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    for second in range(SECONDS):
        usual = (
            {
                "gpu_index": 0, "gpu_uuid": "GPU-0", "utilization_percent": min(100.0, 90 + 5 * random.normal()),
                "memory_percent": 60.0, "memory_total_mb": 81920.0, "temperature_celsius": 62 + random.normal(),
                "temperature_limit_celsius": 90, "throttle_thermal_seconds": 0.0, "throttle_hardware_seconds": 0.0,
                "graphics_clock_mhz": 1900.0, "xid_errors_total": 0, "ecc_uncorrected_total": 0, "row_remap_failed": 0,
            },
            {
                "cpu_usage_percent": 45 + 10 * random.normal(), "cpu_iowait_percent": 1.0, "memory_total_mb": 128000.0,
                "disk_free_gb": 400 - 0.001 * second,
            },
            {"rank": 0, "main_cpu_percent": 60.0, "rss_mb": 5000 * (1 - math.exp(-second / 60)) + 20 * random.normal()},
        )  # fmt: skip
        for table, values in zip(tables, usual, strict=True):
            more = {
                name: value(second) if callable(value) else value for name, value in changed.items() if name in values
            }
            table.append({**values, **more, **_xid(changed, second)} if table is tables[0] else {**values, **more})
    return tables


def _xid(changed: Mapping[str, Any], second: int) -> Row:
    return {"xid_last": 79} if "xid_errors_total" in changed and second >= SECONDS // 2 else {}


def with_machine(**changed: Any) -> Callable[[int], Made]:
    def make(seed: int) -> Made:
        made = paced(seed, train(seed, Options()))
        made.gpu, made.system, made.process = machine(seed, **changed)
        return made

    return make


def learned(**options: Any) -> Callable[[int], Made]:
    return lambda seed: paced(seed, train(seed, Options(**options)))


def slowed(change: Callable[[int, Row, np.random.Generator], None]) -> Callable[[int], Made]:
    return lambda seed: paced(seed, train(seed, Options()), change)


def _slower(share: float) -> Callable[[int, Row, np.random.Generator], None]:
    def change(step: int, row: Row, random: np.random.Generator) -> None:
        if step >= AT:
            for name in ("forward_time", "backward_time", "optimizer_time", "data_time", "other_time"):
                row[name] *= 1 + share

    return change


def _waits_for_data(step: int, row: Row, random: np.random.Generator) -> None:
    row["data_time"] = row["backward_time"] * random.uniform(1, 3)


def _saves(step: int, row: Row, random: np.random.Generator) -> None:
    if step % 50 == 40:
        row["other_time"] += 8 * row["backward_time"]


def _checkpoint_storm(seed: int) -> Made:
    made = slowed(_saves)(seed)
    made.events = [{"event": "checkpoint", "step": step} for step in range(40, STEPS, 50)]
    return made


def _slow_rank(seed: int) -> Made:
    made = slowed(lambda step, row, random: None)(seed)
    random = np.random.default_rng(seed + 3)
    first = made.training[0]
    for rank in range(1, 4):
        times = 1.6 if rank == 2 else 1.0
        rows = [
            {name: row[name] for name in ("step", "batch_time", "data_time", "forward_time")}
            for row in map(dict, first)
        ]
        for row in rows:
            row["forward_time"] *= times * math.exp(0.03 * random.normal())
        made.training.append(rows)
    return made


def _leak(seed: int) -> Made:
    made = learned()(seed)
    for row in made.training[0]:
        row["memory_allocated_mb"] = 8000 + 2.0 * row["step"] + 50 * math.sin(row["step"])
    return made


def _collapsing_scale(seed: int) -> Made:
    made = learned()(seed)
    for row in made.training[0]:
        row["loss_scale"] = 65536.0 / 2 ** max(0, min((row["step"] - AT) // 15, 14)) if row["step"] >= AT else 65536.0
    return made


HALF = SECONDS // 2
DIVERGED = frozenset(
    {"loss.divergence", "lr.too_high", "grad.explode", "loss.spike", "loss.overfit", "loss.oscillation"}
)
STUCK = frozenset({"loss.plateau", "loss.never_learns", "units.dead", "grad.vanish", "loss.overfit"})
FAULTS: dict[str, Fault] = {
    "learning rate x 500": Fault("lr.too_high", 0, learned(rate=1.0), DIVERGED | STUCK),
    "learning rate / 10,000": Fault("lr.too_low", 0, learned(rate=2e-7), STUCK),
    "learning rate x 100 at a step": Fault("lr.jump", AT, learned(jump=100.0), DIVERGED | STUCK | {"loss.nonfinite"}),
    "schedule begins again": Fault("lr.jump", AT, learned(schedule="cosine", resumed=True), DIVERGED),
    "labels shuffled": Fault("loss.never_learns", 0, learned(shuffled_labels=True), STUCK),
    "NaN at a step": Fault("loss.nonfinite", AT, learned(nan_at=AT), frozenset({"grad.nonfinite", "loss.overfit"})),
    "frozen layer": Fault("grad.vanish", None, learned(frozen=True), frozenset({"loss.plateau"})),
    "dead ReLUs": Fault("units.dead", None, learned(kill_units=True), DIVERGED | STUCK),
    "slow divergence": Fault(
        "loss.divergence", AT, learned(weight_decay_up=0.01, batch=128), frozenset({"loss.overfit"})
    ),
    "bad batch in every pass": Fault(
        "data.bad_batch", 190, learned(bad_every=200), frozenset({"loss.spike", "grad.explode"})
    ),
    "over-fitting": Fault("loss.overfit", None, learned(points=60, rate=5e-3), frozenset({"loss.divergence"})),
    "loss scale collapses": Fault("amp.scale_collapse", AT, _collapsing_scale),
    "waits for data": Fault("data.bound", None, slowed(_waits_for_data)),
    "6 % slower": Fault("step.fail_slow", AT, slowed(_slower(0.06))),
    "25 % slower": Fault("step.fail_slow", AT, slowed(_slower(0.25))),
    "checkpoint storm": Fault("step.periodic", None, _checkpoint_storm, frozenset({"step.other"})),
    "one slow rank": Fault("straggler.rank", None, _slow_rank),
    "tensors leak": Fault("gpu.memory_leak", None, _leak),
    "host memory leaks": Fault("host.memory_leak", None, with_machine(rss_mb=lambda s: 5000 + 20.0 * s)),
    "GPU at 20 %": Fault(
        "gpu.low_use", None, with_machine(utilization_percent=lambda s: 20.0 + s % 7), frozenset({"gpu.waste"})
    ),
    "CPU hog": Fault(
        "cpu.bound", None, with_machine(cpu_usage_percent=99.0, utilization_percent=lambda s: 25.0 + s % 9),
        frozenset({"gpu.low_use", "gpu.waste"}),
    ),
    "heat": Fault(
        "gpu.hot", None, with_machine(temperature_celsius=91.0, throttle_thermal_seconds=lambda s: 0.3 * s),
        frozenset({"gpu.throttle"}),
    ),
    "power brake": Fault("gpu.throttle", None, with_machine(throttle_hardware_seconds=lambda s: 0.2 * s)),
    "Xid 79": Fault("gpu.error", None, with_machine(xid_errors_total=lambda s: int(s >= HALF))),
    "ECC error": Fault("gpu.error", None, with_machine(ecc_uncorrected_total=lambda s: int(s >= HALF))),
}  # fmt: skip


def healthy(seed: int) -> Iterator[tuple[str, Made]]:
    """Runs in which nothing is wrong."""
    for schedule in ("constant", "warm-up", "cosine", "restarts"):
        yield f"classifier, {schedule}", learned(schedule=schedule)(seed)
    yield "classifier, batches of 4", learned(batch=4)(seed)
    others = dict(held_out.make_all(seed, 0.4))
    others |= {
        f"curve, {shape}": lambda s=shape: curves.varied(seed, s, 0.3) for shape in curves.SHAPES if shape != "bump"
    }  # type: ignore[misc]
    others |= {"generator's loss": lambda: generator_loss(seed), "harder in stages": lambda: in_stages(seed)}
    for name, make in others.items():
        yield name, paced(seed, [{"step": step, **row} for step, row in enumerate(make())], _evaluates)


def generator_loss(seed: int) -> list[Row]:
    """Rises from the start while the discriminator learns, then wanders."""
    random = np.random.default_rng([seed, 4])
    wandering, rows = 0.0, []
    for step in range(STEPS):
        wandering = 0.98 * wandering + 0.016 * random.normal()
        rows.append({"loss": 1.4 - 0.6 * math.exp(-step / 300) + wandering + 0.05 * random.normal()})
    return rows


def in_stages(seed: int) -> list[Row]:
    """A harder task every 500 steps: the loss jumps, falls again and ends a little higher."""
    random = np.random.default_rng([seed, 5])
    levels = (1 + 0.75 * math.exp(-(step % 500) / 110) + 0.12 * (step // 500) for step in range(STEPS))
    return [{"loss": level * (1 + 0.03 * random.normal())} for level in levels]


def _evaluates(step: int, row: Row, random: np.random.Generator) -> None:
    if step % 500 == 499:
        row["other_time"] += 2 * row["backward_time"]


# -- how it is logged

RENAMED = {"loss": "train/loss", "learning_rate": "lr", "gradient_norm": "grad_norm"}


def _rounded(row: Row) -> Row:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}


STYLES: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "every step": list,
    "every tenth": lambda rows: [row for row in rows if row["step"] % 10 == 0 or "val_loss" in row],
    "rounded": lambda rows: [_rounded(row) for row in rows],
    "renamed": lambda rows: [{RENAMED.get(key, key): value for key, value in row.items()} for row in rows],
}


def judge(folder: Path, made: Made, style: str) -> Diagnosis:
    """Written as a run folder and read again."""
    made_runs.make_run(folder, world_size=len(made.training))
    for rank, rows in enumerate(made.training):
        stem = "training_metrics_20260101_000000" + (f".rank{rank}" if rank else "")
        made_runs.write(folder, STYLES[style](rows), stem)
    tables = {"gpu": made.gpu, "system": made.system, "process": made.process}
    for table, rows in tables.items():
        made_runs.write(folder, [{"host": "node", **row} for row in rows], f"{table}_metrics_20260101_000000.host-node")
    made_runs.write(folder, made.events, "events_20260101_000000")
    return diagnose(read_measurements(open_run(folder)), CONDITIONS)


def first_alert(made: Made, style: str, rule: str) -> int | None:
    """The step at which the built-in rule fires."""
    engine = Engine([item for item in builtin.make_rules(CONDITIONS) if item.name == rule])
    for number, row in enumerate(STYLES[style](made.training[0])):
        values = {key: value for key, value in row.items() if key != "step"}
        for change in engine.feed(Point("training", {"rank": 0}, values, 1e9 + number, row["step"])):
            if change.state == "firing":
                return change.step
    return None


# -- scores


@dataclass
class Score:
    """Of one fault, over seeds and styles."""

    cases: int = 0
    found: int = 0
    first: int = 0
    wrong: int = 0
    named: list[float] = field(default_factory=list)
    dated: list[float] = field(default_factory=list)
    alerts: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def bench_faults(seeds: Sequence[int], styles: Sequence[str], place: Path) -> dict[str, Score]:
    scores: dict[str, Score] = defaultdict(Score)
    for name, fault in FAULTS.items():
        for seed in seeds:
            made = fault.make(seed)
            for style in styles:
                score = scores[name]
                found = judge(place / f"{len(scores)}-{seed}-{style.replace(' ', '-')}", made, style).findings
                _count(score, fault, found, f"{name}, seed {seed}, {style}")
                if fault.finding in LIVE and fault.since is not None:
                    step = first_alert(made, style, LIVE[fault.finding])
                    score.alerts.append(math.inf if step is None else step - fault.since)
    return scores


def _count(score: Score, fault: Fault, found: Sequence[Any], title: str) -> None:
    score.cases += 1
    right = [item for item in found if item.rule == fault.finding]
    serious = [item for item in found if item.severity != "info"]
    wrong = [item for item in serious if item.rule != fault.finding and item.rule not in fault.besides]
    score.found += bool(right)
    score.first += bool(found) and found[0].rule == fault.finding
    score.wrong += len(wrong)
    if not right:
        score.notes.append(f"missed: {title}: {[item.rule for item in found]}")
    elif found[0].rule != fault.finding:
        score.notes.append(f"not first: {title}: {[item.rule for item in found]}")
    score.notes += [f"wrong: {title}: {item.rule}: {item.title}" for item in wrong]
    if right and fault.since is not None:
        if right[0].step is not None:
            score.dated.append(abs(right[0].step - fault.since))
        if right[0].named_at is not None:
            score.named.append(right[0].named_at - fault.since)


def bench_healthy(seeds: Sequence[int], styles: Sequence[str], place: Path) -> tuple[int, int, list[str]]:
    """Runs, findings that are warnings or worse, and which."""
    runs, notes = 0, []
    for seed in seeds:
        for name, made in healthy(seed):
            for style in styles:
                runs += 1
                found = judge(place / f"{seed}-{runs}", made, style).findings
                notes += [
                    f"{name}, seed {seed}, {style}: {item.rule}: {item.title}"
                    for item in found
                    if item.severity != "info"
                ]
    return runs, len(notes), notes


def bench(title: str, seeds: Sequence[int], styles: Sequence[str], cases: bool) -> Table:
    with tempfile.TemporaryDirectory() as place:
        scores = bench_faults(seeds, styles, Path(place) / "faulty")
        runs, false, notes = bench_healthy(seeds, styles[:2], Path(place) / "healthy")
    rows = [_line(name, FAULTS[name].finding, score) for name, score in scores.items()]
    total = Score(
        *(sum(getattr(score, key) for score in scores.values()) for key in ("cases", "found", "first", "wrong"))
    )
    rows.append(_line("all", "", total))
    if cases:
        print("\n".join(note for score in scores.values() for note in score.notes))
        print("\n".join(f"false: {note}" for note in notes))
    return Table(
        f"Findings, {title}",
        ["fault", "finding", "recall", "precision", "first cause", "named after, steps", "dated within", "alert after"],
        rows,
        goal="recall and precision 0.95, first cause 0.8, alerts within 200 steps, no warning on a healthy run",
        note=f"{len(seeds)} seeds, logged {', '.join(styles)}. Medians; of alerts the latest. "
        f"{runs} healthy runs: {count_of(false, 'finding')} of a warning or worse.",
    )


def _line(name: str, finding: str, score: Score) -> list[Any]:
    def middle(values: list[float]) -> str:
        return f"{np.median(values):.0f}" if values else ""

    latest = max(score.alerts, default=math.nan)
    return [
        name,
        f"`{finding}`" if finding else "",
        score.found / score.cases,
        score.found / max(score.found + score.wrong, 1),
        score.first / score.cases,
        middle(score.named),
        middle(score.dated),
        "" if math.isnan(latest) else "never" if math.isinf(latest) else f"{latest:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="how many, half of them held out")
    parser.add_argument("--tuning", action="store_true", help="only the seeds for tuning")
    parser.add_argument("--cases", action="store_true", help="print every miss and every false finding")
    given = parser.parse_args()
    print(bench("tuning seeds", range(0, given.seeds, 2), list(STYLES), given.cases).markdown())
    if not given.tuning:
        print(bench("held-out seeds", range(1, given.seeds, 2), list(STYLES), cases=False).markdown())


if __name__ == "__main__":
    main()
