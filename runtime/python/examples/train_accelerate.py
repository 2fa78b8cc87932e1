"""Trains a dense model of transformers in FP8 with accelerate, and goes on from a saved state.

    accelerate launch train_accelerate.py --output folder               # on the GPUs of a machine
    python train_accelerate.py --output folder --cpu                    # a tiny Llama on the CPU
    python train_accelerate.py --output folder --cpu --steps 8 --resume # goes on from the state in folder

The only line that knows of FP8 is the call of `convert`, before `accelerator.prepare`. `save_state` and `load_state`
are those of any model: a run that was resumed ends with the bits of one that was not. Prints a line of JSON: the
losses of the steps, and that of held-out text.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import accelerate
import torch
import transformers
from train_gpt import read_text

import octile.torch as ot


def model_of(options) -> transformers.PreTrainedModel:
    """Returns a Llama of bytes with FP32 weights, converted as the options say."""
    accelerate.utils.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 16,
        num_key_value_heads=options.width // 32,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    if options.recipe != "none":
        print(ot.convert(model, options.recipe, min_dims=options.min_dims))
    return model


def windows_of(text: torch.Tensor, options, count: int) -> torch.utils.data.DataLoader:
    """Returns batches of windows of a text's bytes, in its order."""
    rows = text[: count * options.context].view(count, options.context).long()
    return torch.utils.data.DataLoader(rows, batch_size=options.batch)


def held_out_loss(accelerator, model, batches) -> float:
    """Returns the mean loss of all batches of all processes."""
    model.eval()
    with torch.no_grad():
        losses = [model(input_ids=rows, labels=rows).loss for rows in batches]
    model.train()
    return accelerator.gather(torch.stack(losses)).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="the folder of the saved state")
    parser.add_argument("--resume", action="store_true", help="go on from the state there")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--recipe", default="blockwise", help="none: BF16")
    parser.add_argument("--min-dims", default=16, type=lambda text: text if text == "auto" else int(text))
    for name, value in {"steps": 20, "batch": 4, "context": 64, "width": 64, "layers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    accelerator = accelerate.Accelerator(cpu=options.cpu, mixed_precision="bf16")
    model = model_of(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text, held_out = read_text()
    batches, others = windows_of(text, options, 256), windows_of(held_out, options, 4 * options.batch)
    model, optimizer, batches, others = accelerator.prepare(model, optimizer, batches, others)
    done = 0
    if options.resume:
        accelerator.load_state(str(options.output))
        done = json.loads((options.output / "steps.json").read_text())
    losses = []
    for rows in accelerator.skip_first_batches(batches, done):
        if done == options.steps:
            break
        loss = model(input_ids=rows, labels=rows).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
        done += 1
    accelerator.save_state(str(options.output))
    (options.output / "steps.json").write_text(json.dumps(done))
    accelerator.print(json.dumps({"losses": losses, "held_out": held_out_loss(accelerator, model, others)}))


if __name__ == "__main__":
    main()
