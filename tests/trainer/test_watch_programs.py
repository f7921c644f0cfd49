"""Programs in the shape of those that people run, plain and under `trainvitals run`: the same output and weights, and
the loss and steps that the program itself prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

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
}


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_SUMMARY", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR", "TRAINVITALS_ROLE"):
        monkeypatch.delenv(name, raising=False)


def start(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_with_and_without_us_and_its_own_loss_at_every_step(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(START + textwrap.dedent(PROGRAMS[name]))
    plain = start(sys.executable, str(script))
    assert start(sys.executable, "-m", "trainvitals", "run", "--", sys.executable, str(script)) == plain
    printed, _ = json.loads(plain)
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/*/run.json"))
    lines: list[dict[str, Any]] = [
        json.loads(line)
        for path in sorted(folder.glob("training_metrics_*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(len(printed)))
    assert [line["loss"] for line in lines] == pytest.approx(printed, rel=1e-6)
