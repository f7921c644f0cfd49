"""Programs in the shape of those that people run, plain and under `trainvitals run`: the same output and weights, and
the loss and steps that the program itself prints. Several losses of a step are a dict of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from waiting import GENTLE_EXIT

START = """
import hashlib, json, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(64, 8)
Y = torch.randint(0, 3, (64,))
printed = []

def end(*models):
    weights = b"".join(p.detach().numpy().tobytes() for model in models for p in model.parameters())
    print(json.dumps([printed, hashlib.sha256(weights).hexdigest()]))
"""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

PROGRAMS = {
    "mnist: a loader, a schedule, an evaluation after each epoch": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
for epoch in range(20):
    model.train()
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(x), 1), y)
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=16):
            model(x)
    schedule.step()
end(model)
""",
    "nanoGPT: no loader, accumulation, clipping, the next batch before backward": """
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def get_batch():
    rows = torch.randint(64, (8,))
    return X[rows], Y[rows]

x, y = get_batch()
for iteration in range(150):
    losses = []
    for micro in range(3):
        loss = F.cross_entropy(model(x), y) / 3
        losses.append(loss.item())
        x, y = get_batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    printed.append(sum(losses))
end(model)
""",
    "an optimizer per parameter that steps inside of backward, a thread that infers": """
import threading
from torch.utils.checkpoint import checkpoint

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
over = threading.Event()
other = nn.Linear(8, 3)

def infer():
    while not over.is_set():
        other(X)

thread = threading.Thread(target=infer)
thread.start()
for step in range(20):
    loss = F.cross_entropy(checkpoint(model, X, use_reentrant=False), Y)
    loss.backward()
    printed.append(loss.item())
over.set()
thread.join()
end(model)
""",
    "two threads that train, and make their first update at once": """
import threading

model = nn.Linear(8, 3)
at_once = threading.Barrier(2)

def train(model, printed):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        if not step:
            if printed is not None:
                other.start()
            at_once.wait()
        optimizer.step()
        optimizer.zero_grad()
        if printed is not None:
            printed.append(loss.item())

other = threading.Thread(target=train, args=(nn.Linear(8, 3), None))
train(model, printed)
other.join()
end(model)
""",
    "time_sequence_prediction: a closure": """
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
for step in range(8):
    first = []
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), X.sum(1, keepdim=True))
        first.append(loss.item())
        loss.backward()
        return loss
    optimizer.step(closure)
    printed.append(first[0])
end(model)
""",
    "word_language_model: weights updated by hand": """
model = nn.Linear(8, 3)
for step in range(30):
    model.zero_grad()
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.5)
    printed.append(loss.item())
end(model)
""",
    "reinforce: an update per episode, rollouts before it": """
policy = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(150):
    chosen, rewards = [], []
    for t in range(4):
        distribution = torch.distributions.Categorical(logits=policy(X[t : t + 1]))
        action = distribution.sample()
        chosen.append(distribution.log_prob(action))
        rewards.append(float(action == Y[t]) - 0.5)
    optimizer.zero_grad()
    loss = torch.cat([-c * r for c, r in zip(chosen, rewards)]).sum()
    loss.backward()
    optimizer.step()
    printed.append(loss.item())
end(policy)
""",
    "torchtitan: the iterator by hand, losses by token over two micro-batches, an evaluation in between": """
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        numbers = torch.Generator().manual_seed(1)
        while True:
            tokens = torch.randint(0, 16, (7,), generator=numbers)
            yield {"input": tokens[:-1]}, tokens[1:]

block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(16, 8), block, nn.Linear(8, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5))
iterator = iter(DataLoader(Endless(), batch_size=4))
for step in range(130):
    optimizer.zero_grad()
    micro_batches = [next(iterator) for _ in range(2)]
    tokens = sum(labels.numel() for _, labels in micro_batches)
    losses = []
    for inputs, labels in micro_batches:
        loss = F.cross_entropy(model(inputs["input"]).flatten(0, 1), labels.flatten(), reduction="sum") / tokens
        loss.backward()
        losses.append(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    printed.append(float(torch.stack(losses).sum()))
    if step % 20 == 0:
        model.eval()
        with torch.no_grad():
            next(iterator)
            model(torch.randint(0, 16, (4, 6)))
        model.train()
end(model)
""",
    "stable-baselines3: rollouts, then epochs over them": """
policy = nn.ModuleDict({"body": nn.Linear(8, 16), "pi": nn.Linear(16, 3), "value": nn.Linear(16, 1)})
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5)

def evaluate(x):
    hidden = torch.tanh(policy["body"](x))
    return torch.distributions.Categorical(logits=policy["pi"](hidden)), policy["value"](hidden).flatten()

for rollout in range(15):
    policy.train(False)
    with torch.no_grad():
        played = []
        for t in range(32):
            distribution, value = evaluate(X[t : t + 1])
            action = distribution.sample()
            played.append((X[t], action[0], distribution.log_prob(action)[0], value[0], float(action == Y[t])))
    x, actions, before, values, rewards = (torch.stack([torch.as_tensor(v) for v in column]) for column in zip(*played))
    policy.train(True)
    for epoch in range(3):
        for rows in torch.randperm(32).split(8):
            distribution, value = evaluate(x[rows])
            ratio = (distribution.log_prob(actions[rows]) - before[rows]).exp()
            gain = (rewards - values)[rows]
            policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
            loss = policy_loss + 0.5 * F.mse_loss(rewards[rows], value) - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            printed.append(loss.item())
end(policy)
""",
    "dcgan: a critic that learns from real and fake, and a generator": """
netG = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(16, 4)
for epoch in range(15):
    for i, (real, _) in enumerate(DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)):
        netD.zero_grad()
        errD_real = criterion(netD(real).flatten(), torch.ones(8))
        errD_real.backward()
        fake = netG(torch.randn(8, 4))
        errD_fake = criterion(netD(fake.detach()).flatten(), torch.zeros(8))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake).flatten(), torch.ones(8))
        errG.backward()
        optimizerG.step()
        printed.append({"loss/netD": (errD_real + errD_fake).item(), "loss/netG": errG.item()})
        if i == 0:
            with torch.no_grad():
                netG(fixed_noise)
end(netG, netD)
""",
    "timm: mixed precision, skipped steps, a smaller last group, clipping, an average of the weights": """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=30)
loader = DataLoader(TensorDataset(X, Y), batch_size=12)  # six batches, the last one of four
skipped = 0
for epoch in range(60):
    model.train()
    losses = []
    for index, (x, y) in enumerate(loader):
        group = min(4, len(loader) - index // 4 * 4)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y, reduction="sum")
        losses.append(loss.item())
        scaler.scale(loss / group).backward()
        if len(losses) < group:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad()
        average.update_parameters(model)
        printed.append(sum(losses) / len(losses))
        losses = []
    average.eval()
    with torch.no_grad():
        average(X)
assert 1 < skipped < 20, skipped
end(model, average)
""",
    "cleanrl's dqn: a forward thrown away in each step of the game, a target, an update in every second": """
network, target = nn.Linear(8, 3), nn.Linear(8, 3)
target.load_state_dict(network.state_dict())
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for step in range(300):
    network(X[step % 64]).argmax().item()
    if step > 20 and step % 2 == 0:
        rows = torch.randint(64, (16,))
        with torch.no_grad():
            wanted = Y[rows] + 0.9 * target(X[rows]).max(dim=1).values
        old = network(X[rows]).gather(1, Y[rows, None]).squeeze()
        loss = F.mse_loss(wanted, old)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    if step % 50 == 0:
        target.load_state_dict(network.state_dict())
end(network)
""",
    "minGPT: workers, an endless iterator, clipping, an evaluation after the first iteration": """
class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x, y):
        logits = self.body(x)
        return logits, F.cross_entropy(logits, y)

model = Trained()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, num_workers=2, persistent_workers=True, shuffle=True)
model.train()
iterator = iter(loader)
for number in range(130):
    try:
        x, y = next(iterator)
    except StopIteration:
        iterator = iter(loader)
        x, y = next(iterator)
    logits, loss = model(x, y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    printed.append(loss.item())
    if number % 50 == 0:
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(TensorDataset(X, Y), batch_size=32):
                model(x, y)
        model.train()
end(model)
""",
    "nanoGPT --compile": """
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
compiled = torch.compile(model, backend="eager")
for step in range(130):
    rows = torch.randint(64, (8,))
    loss = F.cross_entropy(compiled(X[rows]), Y[rows])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    printed.append(loss.item())
end(model)
""",
}

RANKS = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
mesh = init_device_mesh("cpu", (2,))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = torch.utils.data.DistributedSampler(TensorDataset(X, Y))
loader = DataLoader(TensorDataset(X, Y), batch_size=6, sampler=sampler)  # six batches, the last one of two
for epoch in range(40):
    sampler.set_epoch(epoch)
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.item())
        (loss / 2).backward()
        if len(losses) == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            printed.append(sum(losses) / 2)
            losses = []
weights = b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters())
everything = [None, None]
dist.all_gather_object(everything, printed)
if dist.get_rank() == 0:
    print(json.dumps([everything, hashlib.sha256(weights).hexdigest()]))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_SUMMARY", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR", "TRAINVITALS_ROLE"):
        monkeypatch.delenv(name, raising=False)


def start(*command: str, **env: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_with_and_without_us_and_its_own_loss_at_every_step(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(START + textwrap.dedent(PROGRAMS[name]))
    plain = start(sys.executable, str(script))
    assert start(sys.executable, "-m", "trainvitals", "run", "--", sys.executable, str(script)) == plain
    printed, _ = json.loads(plain)
    assert losses_of(tmp_path, 0) == [pytest.approx(as_losses(step), rel=1e-6) for step in printed]


def test_sharded_ranks_give_the_same_with_and_without_us_and_each_its_own_loss(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(START + RANKS)
    path = [GENTLE_EXIT["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
    plain = start(sys.executable, *TORCHRUN, str(script), **env)
    assert (
        start(sys.executable, "-m", "trainvitals", "run", "--", sys.executable, *TORCHRUN, str(script), **env) == plain
    )
    printed, _ = json.loads(plain)
    for rank in (0, 1):
        assert losses_of(tmp_path, rank) == [pytest.approx(as_losses(step), rel=1e-6) for step in printed[rank]]


def as_losses(printed: float | dict[str, float]) -> dict[str, float]:
    return printed if isinstance(printed, dict) else {"loss": printed}


def losses_of(tmp_path: Path, rank: int) -> list[dict[str, float]]:
    """Of every step of the only run, none of which is left out."""
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/*/run.json"))
    lines: list[dict[str, Any]] = [
        json.loads(line)
        for path in sorted(folder.glob("training_metrics_*.jsonl"))
        if (".rank1." in path.name) == bool(rank)
        for line in path.read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return [{name: value for name, value in line.items() if name.startswith("loss")} for line in lines]
