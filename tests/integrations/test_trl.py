"""TransformersCallback with a trainer of TRL, which inherits Transformers' Trainer."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from watching import lines, steps

import trainvitals

torch.set_num_threads(1)


def test_what_a_trl_trainer_logs_is_logged(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        SFTConfig(
            str(tmp_path / "out"),
            max_steps=3,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            max_length=8,
        ),
        train_dataset=Dataset.from_dict({"text": ["a b c d e f g h"] * 8}),
        processing_class=fast,
        callbacks=[trainvitals.TransformersCallback(dir=tmp_path / "runs", agent=False)],
    )
    trainer.train()
    run = trainvitals.current_run()
    assert run is not None
    run.finish()
    assert [line["step"] for line in steps(run)] == [1, 2, 3]
    theirs = [row["mean_token_accuracy"] for row in trainer.state.log_history if "mean_token_accuracy" in row]
    assert theirs
    assert [line["mean_token_accuracy"] for line in lines(run) if "mean_token_accuracy" in line] == theirs
    assert run.config["training_arguments"]["max_length"] == 8
