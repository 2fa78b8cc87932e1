"""Trains a mixture of experts of transformers in FP8 with transformers.Trainer, and goes on from a checkpoint.

    python train_transformers.py --output folder                       # a tiny Qwen3-MoE on the CPU
    python train_transformers.py --output folder --steps 8 --resume    # goes on from the last checkpoint in folder
    python train_transformers.py --output folder --recipe none         # the same in BF16, to compare
    python train_transformers.py --output folder --device cuda --width 1024 --inner 768 --experts 16 --layers 8

The only line that knows of FP8 is the call of `convert`, before the Trainer is made. The Trainer saves the same files
as of any model, so `from_pretrained` loads it with or without Octile. A run that was resumed ends with the bits of one
that was not: `from_pretrained` reads the weights, because the Trainer looks for the names of a mixture's experts as
they are in memory and not as they are on disk, and would leave them as they were. Prints a line of JSON: the losses of
the steps, and that of held-out text.
"""

from __future__ import annotations

import argparse
import json

import torch
import transformers
from train_gpt import read_text
from transformers.trainer_utils import get_last_checkpoint

import octile.torch as ot


class Windows(torch.utils.data.Dataset):
    """Windows of a text's bytes, as a causal model takes them."""

    def __init__(self, text: torch.Tensor, context: int, count: int) -> None:
        self.rows = text[: count * context].view(count, context).long()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def new_model(options) -> transformers.PreTrainedModel:
    """Returns a Qwen3-MoE of bytes, with FP32 weights."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 16,
        num_key_value_heads=options.width // 32,
        head_dim=16,
        num_experts=options.experts,
        num_experts_per_tok=2,
        moe_intermediate_size=options.inner,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def model_of(options, checkpoint: str | None) -> transformers.PreTrainedModel:
    """Returns the model of a checkpoint, or a new one, converted as the options say."""
    transformers.set_seed(0)
    model = new_model(options)
    if checkpoint is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    if options.recipe != "none":
        print(ot.convert(model, options.recipe, min_dims=options.min_dims))
    return model


def trainer_of(options, checkpoint: str | None) -> transformers.Trainer:
    """Returns a Trainer that saves every --save steps."""
    arguments = transformers.TrainingArguments(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        learning_rate=options.lr,
        lr_scheduler_type="constant",
        bf16=True,
        logging_steps=1,
        save_steps=options.save,
        report_to=[],
        disable_tqdm=True,
        use_cpu=options.device == "cpu",
    )
    text, held_out = read_text()
    return transformers.Trainer(
        model_of(options, checkpoint),
        arguments,
        train_dataset=Windows(text, options.context, 256),
        eval_dataset=Windows(held_out, options.context, 4 * options.batch),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint there")
    parser.add_argument("--recipe", default="blockwise", help="none: BF16")
    parser.add_argument("--min-dims", default=16, type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    for name, value in {"steps": 20, "save": 4, "batch": 4, "context": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"width": 128, "inner": 64, "experts": 4, "layers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    checkpoint = get_last_checkpoint(options.output) if options.resume else None
    trainer = trainer_of(options, checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"losses": losses, "held_out": trainer.evaluate()["eval_loss"]}))


if __name__ == "__main__":
    main()
