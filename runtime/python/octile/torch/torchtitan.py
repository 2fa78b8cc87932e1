"""FP8 layers in torchtitan 0.2, whose jobs need two options and no code:

    --experimental.custom_import=octile.torch.torchtitan --model.converters=octile

Importing this module registers the converter "octile": ``octile.torch.convert`` with its defaults, which torchtitan
calls before it shards and compiles the model. ``register`` makes converters with other arguments.
"""

from __future__ import annotations

import logging

from octile.torch._arguments import check_flag
from octile.torch.conversion import convert

try:
    from torchtitan.protocols.model_converter import register_model_converter
except ImportError as error:
    raise ImportError(
        f"octile: this torchtitan registers no model converters, as version 0.2 does ({error}); call "
        "octile.torch.convert(model) before the model is sharded"
    ) from None


def register(name: str, *, travels: bool = False, **options) -> None:
    """Registers a converter under ``name``, for the option ``model.converters``. travels: FSDP2 gathers the weights of
    converted layers in FP8, by ``octile.torch.distributed.shard_fp8``. options: those of ``octile.torch.convert``. A
    name may be registered once."""
    check_flag(travels, "travels")

    class Converter:
        def __init__(self, job_config, parallel_dims) -> None:
            """Takes what torchtitan gives every converter; nothing of it changes the layers."""

        def convert(self, model) -> None:
            """Converts the model in place, and logs the reports."""
            log = logging.getLogger(__name__)
            log.info(convert(model, **options))
            if travels:
                from octile.torch.distributed import shard_fp8

                log.info(shard_fp8(model))

        def post_optimizer_hook(self, model) -> None:
            """Does nothing: FP8 copies and scales follow every step of a torch.optim optimizer by themselves."""

    register_model_converter(Converter, name)


register("octile")
