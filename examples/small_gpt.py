"""A small GPT, written here, trained byte by byte on the documentation of this repository.

    python examples/small_gpt.py
    trainvitals serve

Nothing is downloaded. On a CPU the default size learns to spell within a few minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import trainvitals

TEXT = Path(__file__).parent.parent / "docs"


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.mix(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class SmallGPT(nn.Module):
    """Predicts the next byte from the ones before."""

    def __init__(self, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def read_text() -> torch.Tensor:
    """Every page of the documentation, as bytes."""
    pages = sorted(TEXT.rglob("*.md"))
    return torch.frombuffer(bytearray(b"\n".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()


def batches(text: torch.Tensor, count: int, size: int, context: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        starts = torch.randint(len(text) - context - 1, (size,))
        pieces = torch.stack([text[start : start + context + 1] for start in starts])
        yield pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def continue_text(model: SmallGPT, start: str, length: int, context: int) -> str:
    tokens = torch.tensor([list(start.encode())])
    for _ in range(length):
        probabilities = model(tokens[:, -context:])[:, -1].softmax(dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return bytes(tokens[0].tolist()).decode("utf-8", "replace")


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """A short warm-up, then half a cosine."""
    warm = max(steps // 20, 1)
    return peak * (step + 1) / warm if step < warm else peak * 0.5 * (1 + math.cos(math.pi * step / steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    text = read_text()
    cut = len(text) * 9 // 10
    model = SmallGPT(args.context, args.width, heads=4, layers=args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)

    with trainvitals.init(project="small-gpt", config=vars(args)) as run:
        watch = run.watch(model, optimizer, activations=["blocks"], count_flops=True)
        stream = batches(text[:cut], args.steps, args.batch_size, args.context)
        for step, (inputs, targets) in enumerate(watch.batches(stream)):
            rate = learning_rate_at(step, args.steps, args.learning_rate)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            run.log({"loss": loss, "learning_rate": rate}, step=step)
            if (step + 1) % 100 == 0 or step + 1 == args.steps:
                model.eval()
                with torch.no_grad():
                    inputs, targets = next(batches(text[cut:], 1, 4 * args.batch_size, args.context))
                    held_out = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                model.train()
                run.log({"eval/loss": held_out}, step=step)
                print(f"step {step + 1}: loss {loss:.3f}, on text it has not seen {held_out:.3f}")
        model.eval()
        print(continue_text(model, "The run ", 60, args.context))
        print(f"recorded in {run.folder}")


if __name__ == "__main__":
    main()
