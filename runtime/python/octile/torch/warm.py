"""``warmup``: compiles what a model's layers need before the first step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from octile._types import refuse
from octile.torch._operators import ops
from octile.torch.modules import Linear


def warmup(
    model: nn.Module,
    tokens: tuple[int, int],
    dtype: torch.dtype | None = None,
    training: bool = True,
    main_grad: torch.dtype | None = None,
) -> int:
    """Compiles, in parallel, the kernels of every ``octile.torch.Linear`` of ``model`` for ``tokens[0]`` to
    ``tokens[1]`` tokens a call, or finds them in the cache. Returns the number of different layers, without those
    that ``least_tokens`` keeps from FP8 at all of these.

    dtype: of the input, by default the weight's. training: also those of backward. main_grad: the type of the weights'
    ``main_grad``, if they have one. Layers on a GPU are compiled for it; on the host there is nothing to compile.
    Under torchrun every rank may call it: processes of a machine that share a cache compile each kernel once between
    them.
    """
    lo, hi = tokens
    if not 0 <= lo <= hi:
        raise refuse("tokens", tokens, "are (lo, hi) with 0 <= lo <= hi")
    layers: dict[tuple, set[int]] = {}
    for module in model.modules():
        if isinstance(module, Linear) and module._code is not None and hi >= min(module.least_tokens):
            weight, bias = module.weight, module.bias
            bias_dtype = None if bias is None else torch.float32 if bias.dtype == torch.float16 else bias.dtype
            watched = module._watch is not None
            dtypes = weight.dtype, dtype or weight.dtype, bias_dtype
            layer = (module._code, watched, weight.device, *weight.shape, *dtypes)
            # Layers of recipe "delayed" scale otherwise until they are warmed up.
            layers[layer] = {module._code} if module._scaling is None else {module._code, module._scaling.code}
    jobs = [(code, *layer[1:]) for layer, codes in layers.items() for code in codes]
    with ThreadPoolExecutor(max_workers=max(len(jobs), 1)) as pool:
        list(pool.map(lambda job: _prepare(job, lo, hi, training, main_grad), jobs))
    return len(layers)


def _prepare(job, lo: int, hi: int, training: bool, main_grad: torch.dtype | None) -> None:
    code, watched, device, n, k, weight_dtype, dtype, bias_dtype = job
    if device.type == "meta":
        raise refuse("model", "on the meta device", "is one in memory")

    def sample(kind: torch.dtype | None) -> torch.Tensor | None:
        return None if kind is None else torch.empty(0, dtype=kind, device=device)

    ops.prepare_linear(
        sample(dtype), sample(weight_dtype), sample(bias_dtype), sample(main_grad),
        code, n, k, lo, hi, training, watched,
    )  # fmt: skip
