"""Imports what takes long, in the process from which those of tests are forked (rank_processes.py)."""

import contextlib
import importlib

import inductor_settings  # noqa: F401

MODELS = ("gpt_oss", "llama", "mixtral", "qwen3_moe")

for name in (
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint", "octile.torch.distributed"),
    *("accelerate", "transformers", *(f"transformers.models.{name}.modeling_{name}" for name in MODELS)),
):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
