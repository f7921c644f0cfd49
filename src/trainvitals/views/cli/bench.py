"""`trainvitals bench`: how fast, large and exact a model and its variants are.

The figures are also a run: its rows, its document, and what the agent saw of the hardware meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.plan import BY_NAME, MOST_SECONDS, PRECISION, PROCESSES, TOLERANCE, Plan
from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.benchmark import FAILED, MEASURED, UNAVAILABLE, Benchmark
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import BENCHMARK, MONITOR, new_run
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser, UsageError, duration, number, resolve_settings
from trainvitals.views.cli.start_run import FLAG, create_folder, register, write_run
from trainvitals.views.cli.terminal import Cell, Paint, columns_of, draw_table, is_terminal, print_json, width
from trainvitals.views.data import quantities

DESCRIPTION = (
    "Measure a model: latency with its interval, throughput, memory, size, and how far each variant's answers are from "
    "those of the first one. Every variant runs in its own process, in interleaved rounds. MODEL is a .pt2, .onnx or "
    "TorchScript file, the folder of a Transformers model, or module:callable, a function that makes the model."
)
EXAMPLES = """
trainvitals bench model.pt2 --batch 1,8,32 --variants fp32,bf16,onnx,int8-ort
trainvitals bench my_models:make_model --weights best.safetensors --input 4x512
trainvitals bench ./my-llm --prompt 128 --generate 64
trainvitals bench new.onnx --against old.onnx --fail-on-regression
trainvitals bench my_models:make_model --input 4x512 --against-commit main --fail-on-regression
"""
EXIT_REGRESSION = 3
AGENT_SECONDS = 1.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="file, folder, or module:callable")
    parser.add_argument("--weights", metavar="FILE", help="state dict or safetensors to load into module:callable")
    parser.add_argument(
        "--input", metavar="SPEC", help="inputs, such as 1x3x224x224 or ids=int64:1x128<50257 (default: from the file)"
    )
    parser.add_argument("--batch", type=integers, default=(), metavar="LIST", help="batch sizes, such as 1,8,32")
    parser.add_argument("--threads", type=integers, default=(1,), metavar="LIST", help="CPU threads (default: 1)")
    parser.add_argument(
        "--variants",
        metavar="LIST",
        help=f"any of {', '.join(BY_NAME)}; the first is the reference (default: fp32, or onnx for an ONNX file)",
    )
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu or cuda (default: cpu)")
    parser.add_argument(
        "--time", type=duration, default=MOST_SECONDS, metavar="SECONDS",
        help=f"time limit per variant and batch, excluding loading (default: {MOST_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--processes", type=number(1, whole=True), default=PROCESSES, metavar="N",
        help=f"processes per variant, one after another; verdicts need at least 3 (default: {PROCESSES})",
    )  # fmt: skip
    parser.add_argument(
        "--precision", type=number(0, above=True), default=PRECISION * 100, metavar="PERCENT",
        help=f"stop when the interval of the median is this narrow (default: {PRECISION * 100:g} %%)",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=number(0), default=TOLERANCE * 100, metavar="PERCENT",
        help=f"do not rank variants with a larger relative error (default: {TOLERANCE * 100:g} %%)",
    )  # fmt: skip
    parser.add_argument(
        "--metric", metavar="MODULE:FUNCTION", help="your own metric: a function called with each variant"
    )
    parser.add_argument("--prompt", type=number(1, whole=True), metavar="N", help="prompt tokens for text generation")
    parser.add_argument("--generate", type=number(2, whole=True), metavar="N", help="tokens to generate")
    parser.add_argument(
        "--size", action="store_true", help="parameters and bytes from the file; nothing is loaded or timed"
    )
    parser.add_argument("--largest-batch", action="store_true", help="find the largest batch that fits in memory")
    parser.add_argument(
        "--against", metavar="MODEL", help="another model, timed in the same rounds, or an earlier benchmark run"
    )
    parser.add_argument(
        "--against-commit",
        metavar="COMMIT",
        help="the same model with the code of another commit, timed in the same rounds",
    )
    parser.add_argument(
        "--fail-on-regression", action="store_true", help="exit with code 3 if anything is slower than the baseline"
    )
    parser.add_argument("--trust", action="store_true", help="load pickles, which can run arbitrary code")
    parser.add_argument("--json", action="store_true", help="print JSON, with every timed call")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table, for a README")
    parser.add_settings("dir")
    parser.add_config()


def integers(text: str) -> tuple[int, ...]:
    """A type for argparse: positive integers separated by commas."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of positive integers, such as 1,8,32")
    return found


def execute(arguments: argparse.Namespace) -> int:
    # A CI job that takes too long gets SIGTERM: as with Ctrl-C, processes end and temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if arguments.against and arguments.against_commit:
        raise UsageError("use one of --against and --against-commit")
    settings = resolve_settings(arguments)
    earlier = _find_earlier(arguments, Path(settings.dir))
    plan = make_plan(arguments, against=None if earlier is not None else arguments.against)
    if arguments.against_commit is None:
        return _bench(arguments, settings, plan, earlier)
    from trainvitals.bench.commits import check_out

    with tempfile.TemporaryDirectory(prefix="trainvitals-commit-") as place:
        code = check_out(arguments.against_commit, Path(place))
        return _bench(arguments, settings, replace(plan, against_code=code), earlier)


def _bench(arguments: argparse.Namespace, settings: Settings, plan: Plan, earlier: list[Benchmark] | None) -> int:
    from trainvitals.bench.measuring import measure
    from trainvitals.views.data.benchmark import make_csv, make_markdown

    for model in (plan.target, plan.against):
        _check_model(model)
    run = BenchRun(plan, settings)
    run.begin()
    try:
        found = measure(plan, BenchProgress(sys.stderr), seen=run.read_hardware, power=run.read_power)
    except BaseException:
        run.end("failed")
        raise
    finally:
        BenchProgress(sys.stderr).clear()
    run.write(found)
    references = [row for row in found.results if row.reference]
    is_failed = bool(references) and all(row.state in (FAILED, UNAVAILABLE) for row in references)
    run.end("failed" if is_failed else "finished")
    if arguments.json:
        print_json(found.as_json())
    elif arguments.csv or arguments.markdown:
        text = make_csv(found) if arguments.csv else make_markdown(found)
        if is_terminal(sys.stdout):
            text = "".join(f"{one_line(line)}\n" for line in text.splitlines())
        sys.stdout.write(text)
    else:
        columns = width(sys.stdout) if is_terminal(sys.stdout) else None
        print(draw_benchmark(found, Paint(sys.stdout), columns))
    slower = _report_earlier(found, earlier) if earlier is not None else _slower_rows(found)
    print_line(f"all values are in {run.folder}")
    if is_failed:
        raise TrainvitalsError(
            f"{plan.target} could not be measured",
            hint=f"it was called with --input {found.inputs}" if found.inputs else None,
        )
    return EXIT_REGRESSION if arguments.fail_on_regression and slower else 0


def make_plan(arguments: argparse.Namespace, *, against: str | None) -> Plan:
    """What the command line asks for."""
    if arguments.fail_on_regression and not (arguments.against or arguments.against_commit):
        raise UsageError(
            "--fail-on-regression needs --against or --against-commit",
            hint="a model, an earlier run of this command, or a commit",
        )
    if sum((arguments.json, arguments.csv, arguments.markdown)) > 1:
        raise UsageError("use one of --json, --csv and --markdown")
    usual = "onnx" if arguments.model.endswith(".onnx") else "fp32"
    names = (arguments.variants or usual).split(",")
    return Plan(
        target=arguments.model,
        weights=arguments.weights,
        inputs=parse_inputs(arguments.input) if arguments.input else (),
        batches=arguments.batch,
        threads=arguments.threads,
        variants=tuple(dict.fromkeys(name.strip() for name in names)),
        device=arguments.device,
        seconds=arguments.time,
        processes=arguments.processes,
        precision=arguments.precision / 100,
        tolerance=arguments.tolerance / 100,
        metric=arguments.metric,
        prompt=arguments.prompt,
        generate=arguments.generate,
        trust=arguments.trust,
        largest_batch=arguments.largest_batch,
        only_size=arguments.size,
        against=against,
    )


def _check_model(model: str | None) -> None:
    """Before there is a run, and before torch is imported. What has a colon may be a module and its function."""
    if model is not None and ":" not in model and not Path(model).exists():
        raise TrainvitalsError(
            f"no such file or folder: {one_line(model)}", hint="a function that makes the model: module:callable"
        )


def _find_earlier(arguments: argparse.Namespace, root: Path) -> list[Benchmark] | None:
    """The benchmarks of the run that `--against` names; None if it names a model."""
    from trainvitals.journal.benchmarks import read_benchmarks

    name = arguments.against
    if name is None or ":" in name or (Path(name).exists() and not run_folder.is_run(name)):
        return None
    found = read_benchmarks(run_folder.find(name, root))
    if not found:
        raise TrainvitalsError(f"the run '{name}' has no benchmark", hint="list the runs: trainvitals runs")
    return found


def _report_earlier(found: Benchmark, earlier: list[Benchmark]) -> bool:
    """Print how each row compares with the earlier run; whether any is slower."""
    from trainvitals.views.data.benchmark import compare_benchmarks

    verdicts = compare_benchmarks(earlier, [found])
    for item in verdicts:
        print_line(f"{item.metric.partition('/')[2]} against the earlier run: {item.reason}")
    if not verdicts:
        print_line("the earlier run has no variant and batch in common with this one")
    return any(item.word == "worse" for item in verdicts)


def _slower_rows(found: Benchmark) -> bool:
    return any(row.ratio_low is not None and row.ratio_low > 1 and "slower" in row.verdict for row in found.results)


class BenchProgress:
    """One line on a terminal that says what is being done and how long it takes; elsewhere nothing."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream if is_terminal(stream) else None

    def __call__(self, what: str, left: float | None) -> None:
        if self._stream is not None:
            more = f", about {quantities.format_duration(left)} left" if left is not None else ""
            self._stream.write(f"\r\x1b[K{one_line(what)}{more}")
            self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class BenchRun:
    """The run folder of a benchmark, in which the agent writes what the hardware does."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        name = Path(plan.target.replace(":", "-")).name
        self.folder = Path(settings.dir).absolute() / "bench" / run_folder.new_run_id(name)
        self._plan = plan
        self._settings = settings
        self._name = name
        self._registered: Path | None = None

    def begin(self) -> None:
        """Write the run down and, unless that is switched off, have the agent sample into it."""
        from trainvitals.trainer import facts

        config = {key: value for key, value in self._plan.as_json().items() if value not in (None, (), False)}
        if (code := self._plan.against_code) is not None:
            config["against_code"] = code.commit  # its files are gone in a moment
        self._run = new_run(
            self.folder.name,
            kind=BENCHMARK,
            project="bench",
            name=self._name,
            facts=facts.capture(self._settings, config=config, argv=sys.orig_argv, environ=os.environ, cwd=Path.cwd()),
            pid=os.getpid(),
            correlation_id=facts.correlation_id(os.environ),
        )
        create_folder(self.folder, self._settings, FLAG)
        write_run(self.folder, self._run, self._settings, FLAG)
        if not self._settings.agent:
            return
        try:
            self._registered = register(
                new_registration(
                    self.folder,
                    os.getpid(),
                    run_id=self._run.id,
                    attempt=1,
                    kind=MONITOR,  # for the agent: hardware, and no steps to wait for
                    correlation_id=self._run.correlation_id,
                    settings=self._settings.as_json(),
                )
            )
            runtime.ensure_agent(wait=AGENT_SECONDS)
        except TrainvitalsError as error:
            print_line(f"the hardware is not recorded: {error.message}")

    def read_hardware(self) -> Mapping[str, float]:
        """The highest value of what the agent measured until now, of counters the increase."""
        from trainvitals.bench.machine import read_hardware
        from trainvitals.journal.reader import RunReader

        return read_hardware(RunReader(self.folder))

    def read_power(self, start: float, end: float) -> float | None:
        """Mean watts of the only GPU between two moments."""
        from trainvitals.bench.machine import read_power
        from trainvitals.journal.reader import RunReader

        return read_power(RunReader(self.folder), start, end)

    def write(self, found: Benchmark) -> None:
        from trainvitals.journal.benchmarks import write_benchmark, write_rows

        write_benchmark(self.folder, found)
        write_rows(self.folder, found)

    def end(self, status: str) -> None:
        before, self._run = self._run, self._run.end(status)
        write_run(self.folder, self._run, self._settings, FLAG, before)
        if self._registered is not None:
            self._registered.unlink(missing_ok=True)


# -- the table


def draw_benchmark(found: Benchmark, paint: Paint, columns: int | None) -> str:
    """The results as text: a table, the rows without figures among them, remarks and warnings."""
    from trainvitals.views.data.benchmark import (
        choose_columns,
        explain_unranked,
        key_columns,
        remarks_of,
        warnings_of,
    )

    shown = choose_columns(found.results)
    keys = len(key_columns(shown))
    cells = [[one_line(column.show(row)) for column in shown] for row in found.results]
    ranked = [row.state == MEASURED for row in found.results]
    # Names are as wide in rows that have no figures, so that these continue the table.
    widths = [max(columns_of(line[at]) for line in [[c.title for c in shown], *cells]) for at in range(keys)]
    padded = [[*(_pad(line[at], widths[at], at > 0) for at in range(keys)), *line[keys:]] for line in cells]
    titles = [column.title for column in shown]
    header = [*(_pad(titles[at], widths[at], at > 0) for at in range(keys)), *titles[keys:]]
    right = [at for at, column in enumerate(shown) if column.title not in ("variant", "latency (95 %)", "verdict")]
    optional = [titles.index(title) for title in _OPTIONAL]
    times = [line for line, has_times in zip(padded, ranked, strict=True) if has_times]
    room = _room_for_verdicts([header, *times], optional, columns)
    broken = [_break(line[-1], room) for line in times]
    rows = [
        [*(line[:-1] if at == 0 else [""] * (len(line) - 1)), Cell(part, _style(line[-1]))]
        for line, parts in zip(times, broken, strict=True)
        for at, part in enumerate(parts)
    ]
    table = draw_table(header, rows, paint=paint, columns=columns, right=right, optional=optional, indent=" ")
    drawn = iter(table.splitlines())
    lines = [next(drawn, "")] if rows else []
    heights = iter(map(len, broken))
    for row, line, has_times in zip(found.results, padded, ranked, strict=True):
        unranked = paint("dim", one_line(explain_unranked(row)))
        named = f" {'  '.join(line[:keys])}  {unranked}"
        lines += itertools.islice(drawn, next(heights)) if has_times else [named]
    lines += [paint("dim", f" {one_line(text)}") for text in remarks_of(found)]
    lines += [paint("yellow", f" ! {one_line(text)}") for text in warnings_of(found)]
    return "\n".join(lines)


_OPTIONAL = ("p99", "peak MB", "disk MB", "items/s")
"""Columns that a narrow terminal does without, the first one first."""
_SHORTEST_VERDICT = 24


def _room_for_verdicts(lines: Sequence[Sequence[str]], optional: Sequence[int], columns: int | None) -> int | None:
    """Columns left for the verdict beside what is always shown; longer ones continue on the next line. The last of the
    optional columns is given up only if they would be squeezed."""
    if columns is None:
        return None

    def left_without(dropped: Sequence[int]) -> int:
        kept = [at for at in range(len(lines[0]) - 1) if at not in dropped]
        return columns - 1 - sum(max(columns_of(line[at]) for line in lines) + 2 for at in kept)

    room = left_without(optional[:-1])
    return room if room >= _SHORTEST_VERDICT else max(left_without(optional), _SHORTEST_VERDICT // 2)


def _break(verdict: str, room: int | None) -> list[str]:
    """Into lines, but not between a number and its %."""
    together = verdict.replace(" %", "\xa0%")
    lines = textwrap.wrap(together, room) if room is not None else [together]
    return [line.replace("\xa0", " ") for line in lines] or [""]


def _pad(text: str, size: int, right: bool) -> str:
    space = " " * (size - columns_of(text))
    return space + text if right else text + space


def _style(verdict: str) -> str:
    return "green" if "faster" in verdict else "red" if "slower" in verdict else "dim" if verdict == "reference" else ""
