"""Hugging Face Transformers' Trainer on a tiny model with random weights. Nothing is downloaded.

pip install 'trainvitals[transformers]'
python examples/transformers_trainer.py --output-dir out
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import trainvitals


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up from a random number: easy to learn, hard to guess."""

    def __init__(self, size: int, length: int = 32, vocabulary: int = 128) -> None:
        starts = torch.randint(vocabulary, (size, 1))
        self.tokens = (starts + torch.arange(length)) % vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="trainer_output")
    parser.add_argument("--max-steps", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(
            args.output_dir,
            max_steps=args.max_steps,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=max(args.max_steps // 2, 1),
            save_steps=max(args.max_steps // 2, 1),
            report_to=[],
        ),
        train_dataset=Counting(512),
        eval_dataset=Counting(64),
        callbacks=[trainvitals.TransformersCallback(project="counting")],
    )
    trainer.train()
    run = trainvitals.current_run()
    if run is not None:
        print(f"recorded in {run.folder}")


if __name__ == "__main__":
    main()
