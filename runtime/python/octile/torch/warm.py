"""``warmup``: compiles what a model's layers need before the first step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from octile._types import refuse, token_range
from octile.torch._arguments import FLOATS, check_flag, check_floats, check_model
from octile.torch._operators import ops
from octile.torch.grouped import WITHOUT_WEIGHT_GRADIENTS
from octile.torch.layer import Layer


def warmup(
    model: nn.Module,
    tokens: tuple[int, int],
    dtype: torch.dtype | None = None,
    training: bool = True,
    main_grad: torch.dtype | None = None,
) -> int:
    """Compiles, in parallel, the kernels of every ``Linear`` and ``Experts`` of ``model`` for ``tokens[0]`` to
    ``tokens[1]`` tokens a call, or finds them in the cache. Returns the number of different layers, without those
    that ``least_tokens`` keeps from FP8 at all of these.

    dtype: of the input, by default the weight's. training: also those of backward. main_grad: the type of the weights'
    ``main_grad``, if they have one. Layers on a GPU are compiled for it; on the host there is nothing to compile.
    Under torchrun every rank may call it: processes of a machine that share a cache compile each kernel once between
    them.
    """
    check_model(model)
    lo, hi = token_range(tokens)
    if dtype not in (None, *FLOATS):
        raise refuse("dtype", dtype, "are None, torch.bfloat16, torch.float16 and torch.float32")
    if main_grad not in (None, torch.bfloat16, torch.float32):
        raise refuse("main_grad", main_grad, "are None, torch.bfloat16 and torch.float32")
    check_flag(training, "training")
    layers: dict[tuple, set[int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Layer) and module._code is not None and hi >= min(getattr(module, "least_tokens", (0,))):
            weight, bias = module.weight, getattr(module, "bias", None)
            check_floats(weight, f"the weight of {name!r}")
            bias_dtype = None if bias is None else torch.float32 if bias.dtype == torch.float16 else bias.dtype
            watched = module._watch is not None
            dtypes = weight.dtype, dtype or weight.dtype, bias_dtype
            history = 0 if module._scaling is None else module.recipe.history
            # The library has no weight gradients of experts in all recipes.
            trained = training and not (weight.dim() == 3 and module.recipe.name in WITHOUT_WEIGHT_GRADIENTS)
            layer = (module._code, watched, trained, history, weight.device, tuple(weight.shape), *dtypes)
            # Layers of recipe "delayed" scale otherwise until they are warmed up.
            layers[layer] = {module._code} if module._scaling is None else {module._code, module._scaling.code}
    jobs = [(code, *layer[1:]) for layer, codes in layers.items() for code in codes]
    with ThreadPoolExecutor(max_workers=max(len(jobs), 1)) as pool:
        list(pool.map(lambda job: _prepare(job, lo, hi, main_grad), jobs))
    return len(layers)


def problems() -> list[str]:
    """Returns the canonical texts of the problems that calls in this process have asked of the library so far, sorted.

    In a file, one a line, they are what ``octile compile --problem-file`` and ``octile tune --problem-file`` take.
    """
    return ops.problem_texts().splitlines()


def _prepare(job, lo: int, hi: int, main_grad: torch.dtype | None) -> None:
    code, watched, training, history, device, shape, weight_dtype, dtype, bias_dtype = job
    if device.type == "meta":
        raise refuse("model", "on the meta device", "is one in memory")

    def sample(kind: torch.dtype | None) -> torch.Tensor | None:
        return None if kind is None else torch.empty(0, dtype=kind, device=device)

    tensors = sample(dtype), sample(weight_dtype)
    sizes = *shape, lo, hi, training, watched, history
    if len(shape) == 3:
        ops.prepare_experts(*tensors, sample(main_grad), code, *sizes)
    else:
        ops.prepare_linear(*tensors, sample(bias_dtype), sample(main_grad), code, *sizes)
