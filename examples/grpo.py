"""GRPO with TRL on a tiny model with random weights, rewarded for the letter a. Nothing is downloaded.

pip install trl 'trainvitals[transformers]'
python examples/grpo.py --output-dir out
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import trainvitals


def share_of_a(completions: list[str], **kwargs: Any) -> list[float]:
    """The reward: how much of a response is the letter a."""
    return [text.split().count("a") / max(len(text.split()), 1) for text in completions]


def constant(completions: list[str], **kwargs: Any) -> list[float]:
    """A broken reward, as of a parser that never finds an answer."""
    return [0.0] * len(completions)


def save_model(folder: str) -> None:
    """A model and a tokenizer of eleven words; TRL loads the reference policy from there."""
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="grpo_output")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--broken-reward", action="store_true", help="a reward that is always 0, to see what is found")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = f"{args.output_dir}/model"
    save_model(model)
    trainer = GRPOTrainer(
        model,
        constant if args.broken_reward else share_of_a,
        args=GRPOConfig(
            args.output_dir,
            max_steps=args.max_steps,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=32,
            learning_rate=1e-3,
            beta=0.02,
            logging_steps=1,
            log_completions=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a b c", "d e f", "g h a"] * 100}),
        callbacks=[trainvitals.TransformersCallback(project="examples", name="grpo")],
    )
    trainer.train()
    run = trainvitals.current_run()
    if run is not None:
        print(f"recorded in {run.folder}")


if __name__ == "__main__":
    main()
