"""What watching a training from inside costs.

    python benchmarks/watch_overhead.py [--rounds 4] [--blocks 20]
    python benchmarks/watch_overhead.py --programs [--sizes 2] [--quick]

With `--programs`: whole programs with steps of 2, 5, 20 and 50 ms, unchanged, as people run them: plain, under
`trainvitals run`, under TraceML's launcher, with `wandb.watch`. All of them are alive at the same time and train in
turn, a tenth of a second each, so a machine with other work on it disturbs all alike; what counts is the ratio to the
plain one of the same turn, in processor time and on the clock. The median of each round's ratios is one value; shown
are the median of the rounds and their range. A second plain program shows the noise. With `--quick`, which takes some
minutes for one size, one round of ours and the plain ones only; the range is then that of the middle half of its turns.

Without: a small GPT on the CPU, in blocks of ten steps, watched and not.

Each tool runs in a process of its own and trains two equal models in turn, ten steps one, ten steps the other; only
one is watched: the second made, in every other round the first, because where a model lies in memory makes up to a few
percent. What counts is the processor time of the process, all its threads together, and of that the median of (a
watched block / the bare block beside it), so that a machine with other work on it disturbs both sides alike; then the
mean of the rounds. Processes that a tool starts beside the training are not counted, in its favour. Looks that come
every ten steps are in every block. Tools that are not installed are named as skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apart  # noqa: F401
from table import Table

PROGRAMS = {2: (256, 64), 5: (384, 96), 20: (1024, 96), 50: (1536, 128)}
"""Milliseconds of a step on one quiet core: width of an MLP of seven layers, size of a batch."""
TURN_SECONDS = 0.1

VOCABULARY, CONTEXT, WIDTH, LAYERS, BATCH = 256, 64, 128, 4, 8
BLOCK = 10
WARM_UP = 2


def make_gpt() -> tuple[Any, Any]:
    """(model, optimizer): decoder blocks with attention written out, as in a hundred repositories."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.feed(self.norm2(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    model = Gpt()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4)


class Tool:
    """How a tool watches: `start` once, `around` and `after` every step."""

    def start(self, model: Any, optimizer: Any, folder: Path) -> None: ...
    def around(self) -> Any:
        return contextlib.nullcontext()

    def after(self, step: int, loss: Any) -> None: ...
    def pause(self, paused: bool) -> None: ...
    def command(self, script: str, folder: str, *arguments: str) -> list[str]:
        return [sys.executable, script, *arguments]


class Trainvitals(Tool):
    def __init__(self, **options: Any) -> None:
        self._options = options

    def start(self, model: Any, optimizer: Any, folder: Path) -> None:
        import trainvitals

        run = trainvitals.init(dir=folder, agent=False, capture_git=False)
        self._watch = run.watch(model, optimizer, **self._options)

    def pause(self, paused: bool) -> None:
        self._watch.moments.alive = not paused  # the other model's backward is none of its business


class TraceMl(Tool):
    """Its own launcher brings the process that it sends its numbers to; without one it does nothing."""

    def command(self, script: str, folder: str, *arguments: str) -> list[str]:
        launcher = str(Path(sys.executable).parent / "traceml")
        options = ["--logs-dir", f"{folder}/logs", "--no-save-training-output"]
        return [launcher, "run", *options, script, "--args", *arguments]

    def start(self, model: Any, optimizer: Any, folder: Path) -> None:
        import traceml_ai

        self._traceml = traceml_ai
        traceml_ai.init(mode="auto")
        self._model = model

    def around(self) -> Any:
        return self._traceml.trace_step(self._model)


class TrainScope(Tool):
    def __init__(self, **options: Any) -> None:
        self._options = options

    def start(self, model: Any, optimizer: Any, folder: Path) -> None:
        from trainscope import TrainScope, TrainScopeConfig

        self._scope = TrainScope(
            model, optimizer, config=TrainScopeConfig(run_dir=str(folder), **self._options)
        ).attach()

    def after(self, step: int, loss: Any) -> None:
        self._scope.step(loss.item(), batch_index=step)


class WandbWatch(Tool):
    def __init__(self, log: str) -> None:
        self._log = log

    def start(self, model: Any, optimizer: Any, folder: Path) -> None:
        os.environ.update({"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)})
        import wandb

        self._run = wandb.init(project="bench", dir=str(folder))
        self._run.watch(model, log=self._log, log_freq=BLOCK)

    def after(self, step: int, loss: Any) -> None:
        self._run.log({"loss": loss.item()})


OFF = {"gradients_every": 0, "layers_every": 0, "memory_every": 0}
EVERYTHING = {
    "gradients_every": 1,
    "layers_every": BLOCK,
    "histograms_every": BLOCK,
    "activations": ["*"],
    "activations_every": BLOCK,
    "memory_every": 1,
}
TOOLS: dict[str, tuple[str, Callable[[], Tool]]] = {
    "nothing": ("", Tool),
    "trainvitals: phases": ("phases", lambda: Trainvitals(**OFF)),
    "TraceML": ("phases", TraceMl),
    "trainvitals: phases, gradients of every layer each 10 steps": (
        "gradients",
        lambda: Trainvitals(**{**OFF, "gradients_every": BLOCK, "layers_every": BLOCK, "budget_percent": 0}),
    ),
    'wandb.watch(log="gradients", log_freq=10)': ("gradients", lambda: WandbWatch("gradients")),
    "trainvitals: everything each 10 steps, norm and memory each step": (
        "everything",
        lambda: Trainvitals(**EVERYTHING, budget_percent=0),
    ),
    'wandb.watch(log="all", log_freq=10)': ("everything", lambda: WandbWatch("all")),
    "trainscope: everything each 10 steps": (
        "everything",
        lambda: TrainScope(
            trace_every_n_steps=BLOCK, histogram_every_n_steps=BLOCK, activation_metrics_every_n_steps=BLOCK
        ),
    ),
    "trainscope: as it comes": ("everything", TrainScope),
}
"""What is measured: what it covers, and how to make it."""


def measure(name: str, blocks: int, folder: Path, *, first: bool) -> dict[str, list[float]]:
    """In this process; `first`: the model that is watched is made first."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    watched, bare = make_gpt(), make_gpt()
    if not first:
        watched, bare = bare, watched
    tool = TOOLS[name][1]()
    tool.start(*watched, folder)
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1))
    number = 0

    def step(model: Any, optimizer: Any, after: Any) -> None:
        nonlocal number
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if after is not None:
            after(number, loss)
            number += 1
        optimizer.step()

    def run_bare() -> float:
        tool.pause(True)
        begin = time.process_time()
        for _ in range(BLOCK):
            step(*bare, None)
        return time.process_time() - begin

    def run_watched() -> float:
        tool.pause(False)
        begin = time.process_time()
        for _ in range(BLOCK):
            with tool.around():
                step(*watched, tool.after)
        return time.process_time() - begin

    ratios, times = [], []
    for block in range(blocks + WARM_UP):
        pair = (run_bare(), run_watched()) if block % 2 else (run_watched(), run_bare())[::-1]
        if block >= WARM_UP:
            ratios.append(pair[1] / pair[0])
            times.append(pair[0] / BLOCK)
    return {"ratios": ratios, "milliseconds": [1e3 * seconds for seconds in times]}


def bench(rounds: int = 4, blocks: int = 20) -> Table:
    results: dict[str, list[dict[str, list[float]]]] = {name: [] for name in TOOLS}
    skipped: dict[str, str] = {}
    for turn in range(rounds):
        for name in TOOLS:
            if name in skipped:
                continue
            with tempfile.TemporaryDirectory() as folder:
                arguments = ["--one", name, "--blocks", str(blocks), "--folder", folder]
                arguments += ["--first"] if turn % 2 else []
                command = TOOLS[name][1]().command(str(Path(__file__).absolute()), folder, *arguments)
                words = []
                try:
                    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
                    words = done.stderr.strip().splitlines()
                    results[name].append(json.loads((Path(folder) / "result.json").read_text()))
                except FileNotFoundError as error:
                    skipped[name] = (words or [f"{error.filename} is missing"])[-1][:100]
    costs = {
        name: statistics.mean(statistics.median(result["ratios"]) for result in found) - 1
        for name, found in results.items()
        if found
    }
    rows = []
    for name, (coverage, _) in TOOLS.items():
        if name in skipped:
            rows.append([name, coverage, "skipped", skipped[name]])
            continue
        ours = min(
            (costs[other] for other in costs if other.startswith("trainvitals") and TOOLS[other][0] == coverage),
            default=0,
        )
        times = f"{costs[name] / ours:.0f}x" if coverage and not name.startswith("trainvitals") and ours > 0 else ""
        rows.append([name, coverage, f"{100 * costs[name]:+.2f} %", times])
    milliseconds = statistics.median(
        time for found in results.values() for result in found for time in result["milliseconds"]
    )
    return Table(
        "Watching a training from inside",
        ["tool", "like coverage", "steps take longer by", "times ours"],
        rows,
        goal="under 1 % with phases and gradients every 10 steps, under 5 % with everything; peers at least 5x ours",
        note=f"A GPT of {LAYERS} layers and width {WIDTH}, one thread, {milliseconds:.0f} ms of processor time per "
        "step. `nothing` shows the noise.",
    )


# -- whole programs


class Program(NamedTuple):
    """How one of the programs is started."""

    name: str
    command: Callable[[list[str], Path], list[str]]
    """From the command of the plain one, and a folder for what the tool writes."""
    wandb: bool = False


def _start_traceml(command: list[str], folder: Path) -> list[str]:
    launcher = str(Path(sys.executable).parent / "traceml")
    return [launcher, "run", "--logs-dir", f"{folder}/logs", command[1], "--args", *command[2:]]


PROGRAM_TOOLS = (
    Program("plain", lambda command, _: command),
    Program("plain again", lambda command, _: command),
    Program("trainvitals run", lambda command, _: [sys.executable, "-m", "trainvitals", "run", "--", *command]),
    Program("traceml run", _start_traceml),
    Program('wandb.watch(log="gradients")', lambda command, _: command, wandb=True),
)


def train_in_turns(milliseconds: int, address: str, *, with_wandb: bool) -> None:
    """A program: trains as many steps as it is asked for over the socket, and answers with what they took."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, size = PROGRAMS[milliseconds]
    hidden = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(32 * size, width), torch.randint(0, 10, (32 * size,)))
    loader = torch.utils.data.DataLoader(data, batch_size=size)
    batches = (batch for _ in itertools.count() for batch in loader)
    run: Any = None
    if with_wandb:
        import wandb

        run = wandb.init(project="bench", mode="offline")
        run.watch(model, log="gradients", log_freq=BLOCK)

    def train(steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(batches)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if run is not None:
                run.log({"loss": loss.item()})

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    train(150)  # what a tool does only in the beginning is over
    with connection.makefile("rw") as channel:
        channel.write("ready\n")
        channel.flush()
        for line in channel:
            processor, clock = time.process_time(), time.perf_counter()
            train(int(line))
            channel.write(f"{time.process_time() - processor} {time.perf_counter() - clock}\n")
            channel.flush()


Ratios = dict[str, list[tuple[float, float]]]
"""By tool, one pair for each turn: to the plain program in processor time and on the clock."""


def measure_programs(tools: Sequence[Program], milliseconds: int, turns: int) -> Ratios:
    """One round."""
    steps = max(round(1e3 * TURN_SECONDS / milliseconds), 1)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        channels: dict[str, Any] = {}
        for number, tool in enumerate(tools):
            address = f"{name}/{number}.sock"
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            plain = [sys.executable, str(Path(__file__).absolute()), "--train", str(milliseconds), "--folder", address]
            command = tool.command(plain + (["--wandb"] if tool.wandb else []), folder)
            try:
                program = subprocess.Popen(command, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            except FileNotFoundError:
                continue  # not installed
            stack.callback(program.wait)
            server.settimeout(1)
            while program.poll() is None:
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    connection.settimeout(None)
                    channels[tool.name] = stack.enter_context(connection.makefile("rw"))
                    stack.callback(connection.shutdown, socket.SHUT_RDWR)
                    channels[tool.name].readline()
                    break
        ratios: Ratios = {tool: [] for tool in channels}
        for turn in range(turns):
            found = {}
            for tool in list(channels)[:: -1 if turn % 2 else 1]:
                channels[tool].write(f"{steps}\n")
                channels[tool].flush()
                found[tool] = [float(text) for text in channels[tool].readline().split()]
            for tool, (processor, clock) in found.items():
                ratios[tool].append((processor / found["plain"][0], clock / found["plain"][1]))
    return ratios


def bench_programs(
    rounds: int = 2, turns: int = 40, sizes: Sequence[int] = tuple(PROGRAMS), *, quick: bool = False
) -> Table:
    tools = PROGRAM_TOOLS[:3] if quick else PROGRAM_TOOLS
    rows = []
    for milliseconds in sizes:
        found = [
            measure_programs(tools[::-1] if number % 2 else tools, milliseconds, turns)
            for number in range(1 if quick else rounds)
        ]
        for tool in tools[1:]:
            each = [result[tool.name] for result in found if tool.name in result]
            columns = [[[pair[column] - 1 for pair in pairs] for pairs in each] for column in (0, 1)]
            shown = [_spread(column) if column else "not installed" for column in columns]
            rows.append([f"{milliseconds} ms", tool.name, *shown])
    return Table(
        "Whole programs, unchanged, by the length of their steps",
        ["step", "tool", "processor time", "clock"],
        rows,
        goal="trainvitals run: at most 2 % at 2 ms, 1 % at 50 ms",
        note="Median of the rounds and their range; of a single round, the middle half of its turns. "
        "`plain again` shows the noise.",
    )


def _spread(rounds: Sequence[Sequence[float]]) -> str:
    medians = [statistics.median(shares) for shares in rounds]
    low, high = min(medians), max(medians)
    if len(rounds) == 1:
        low, _, high = statistics.quantiles(rounds[0], n=4)
    return f"{100 * statistics.median(medians):+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="4, with --programs 2")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--one")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--train", type=int)
    parser.add_argument("--wandb", action="store_true")
    arguments = parser.parse_args()
    if arguments.train:
        train_in_turns(arguments.train, str(arguments.folder), with_wandb=arguments.wandb)
    elif arguments.programs:
        turns = (6 if arguments.quick else 2) * arguments.blocks
        print(bench_programs(arguments.rounds or 2, turns, arguments.sizes, quick=arguments.quick).markdown())
    elif arguments.one:
        figures = measure(arguments.one, arguments.blocks, arguments.folder, first=arguments.first)
        (arguments.folder / "result.json").write_text(json.dumps(figures))
    else:
        print(bench(arguments.rounds or 4, arguments.blocks).markdown())
