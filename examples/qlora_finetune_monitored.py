"""Fine-tune a language model with LoRA, watched: 4-bit (QLoRA) where CUDA and bitsandbytes exist, plain LoRA elsewhere.

    pip install 'trainvitals[transformers,prometheus]' peft
    python examples/qlora_finetune_monitored.py --model-config tiny --output-dir out
    python examples/qlora_finetune_monitored.py --model-config gemma-3n --data my.txt --output-dir out \\
        --monitoring-log-dir runs --enable-prometheus --prometheus-port 9090

`tiny` has random weights and reads bytes, so it needs no download; the other models come from the Hugging Face Hub.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import trainvitals

HUB = {
    "gemma-3n": "google/gemma-3n-E2B-it",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "qwen-2.5-0.5b": "Qwen/Qwen2.5-0.5B",
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TEXT = Path(__file__).parent.parent / "docs"


class Pieces(Dataset[dict[str, torch.Tensor]]):
    """A long row of tokens, cut into pieces."""

    def __init__(self, tokens: list[int], length: int) -> None:
        count = len(tokens) // length
        if not count:
            raise SystemExit(f"the data has {len(tokens)} tokens, fewer than one piece of {length}")
        self.pieces = torch.tensor(tokens[: count * length]).view(count, length)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def read_data(place: str | None) -> str:
    """A text file, every text file in a folder, or the documentation of this repository."""
    path = Path(place) if place else TEXT
    files = [path] if path.is_file() else sorted([*path.rglob("*.md"), *path.rglob("*.txt")])
    if not files:
        raise SystemExit(f"no text in {path}: give --data a text file, or a folder with .txt or .md files")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def can_quantise() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("bitsandbytes") is not None


def load_model(name: str) -> tuple[Any, Callable[[str], list[int]]]:
    """The model with LoRA adapters, and what turns text into tokens."""
    quantised = name != "tiny" and can_quantise()
    print("QLoRA: weights in 4 bits (bitsandbytes)" if quantised else "plain LoRA: " + _why_not(name))
    if name == "tiny":
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=128,
            )
        )
        encode: Callable[[str], list[int]] = lambda text: list(text.encode())  # noqa: E731
    else:
        options: dict[str, Any] = {}
        if quantised:
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16,
            )
        model = AutoModelForCausalLM.from_pretrained(HUB[name], **options)
        tokenizer = AutoTokenizer.from_pretrained(HUB[name])
        encode = lambda text: list(tokenizer(text)["input_ids"])  # noqa: E731
        if quantised:
            model = prepare_model_for_kbit_training(model)
    adapters = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=ATTENTION, task_type="CAUSAL_LM")
    return get_peft_model(model, adapters), encode


def _why_not(name: str) -> str:
    if name == "tiny":
        return "a tiny model has nothing to gain from 4 bits"
    return "no CUDA device" if not torch.cuda.is_available() else "bitsandbytes is not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-config", choices=["tiny", *HUB], default="tiny")
    parser.add_argument("--data", help="text file or folder; without it, the documentation of this repository")
    parser.add_argument("--output-dir", default="qlora_output")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--gpu-index", type=int, default=0, help="the GPU whose readings go beside the steps")
    parser.add_argument("--monitoring-log-dir", help="folder for the run; without it, ./trainvitals_runs")
    parser.add_argument("--enable-prometheus", action="store_true", help="serve metrics while the training runs")
    parser.add_argument("--prometheus-port", type=int, default=9090)
    args = parser.parse_args()

    model, encode = load_model(args.model_config)
    model.print_trainable_parameters()
    options: dict[str, Any] = {"project": "qlora", "dir": args.monitoring_log_dir}
    if args.enable_prometheus:
        options["prometheus_port"] = args.prometheus_port
        print(f"metrics: http://127.0.0.1:{args.prometheus_port}/metrics")
    trainer = Trainer(
        model,
        TrainingArguments(
            args.output_dir,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            logging_steps=10,
            save_steps=args.max_steps,
            report_to=[],
        ),
        train_dataset=Pieces(encode(read_data(args.data)), args.sequence_length),
        callbacks=[
            trainvitals.GPUMonitoringCallback(trainvitals.GPUMonitor(gpu_index=args.gpu_index), **options),
        ],
    )
    trainer.train()
    model.save_pretrained(args.output_dir)
    run = trainvitals.current_run()
    if run is not None:
        print(f"adapters in {args.output_dir}, recorded in {run.folder}")


if __name__ == "__main__":
    main()
