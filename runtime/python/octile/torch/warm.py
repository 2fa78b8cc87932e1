"""``warmup``: compiles what a model's layers need before the first step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from octile._types import refuse, token_range, wrong_type
from octile.torch._arguments import FLOATS, check_flag, check_floats, check_model
from octile.torch._operators import ops
from octile.torch.expert_modules import ExpertsOfTransformers, TakenExperts
from octile.torch.gated_modules import fused_mlps
from octile.torch.grouped import WITHOUT_WEIGHT_GRADIENTS, as_rows
from octile.torch.layer import Layer, local_of
from octile.torch.modules import Linear
from octile.torch.normed_input import TYPES
from octile.torch.norms import FusedNorm
from octile.torch.held_weight import held
from octile.torch.transposed import TransposedLinear

#: The longest that searches may take: a month.
MOST_SECONDS = 2_678_400


def warmup(
    model: nn.Module,
    tokens: tuple[int, int],
    dtype: torch.dtype | None = None,
    training: bool = True,
    main_grad: torch.dtype | None = None,
    tune: float | None = None,
) -> int:
    """Compiles, in parallel, the kernels of every ``Linear`` and ``Experts`` of ``model`` for ``tokens[0]`` to
    ``tokens[1]`` tokens a call, or finds them in the cache. Returns the number of different layers, without those whose
    ``least_tokens`` exclude FP8 for all these counts.

    dtype: of the input, by default the weight's. training: also those of backward. main_grad: the type of the weights'
    ``main_grad``, if they have one. Layers on a GPU are compiled for it; on the host there is nothing to compile. Under
    torchrun every rank may call it independently: processes of a machine that share a cache compile each kernel once.
    After ``fully_shard`` it uses the dtype and sizes of gathered weights, and compiles the quantisers of ``shard_fp8``;
    ``FlatShards`` compiles its quantisers when it is created.

    tune: seconds for searching the fastest kernels of layers on a GPU, layer by layer, once all are compiled. Each
    question that no exact tuning record decides is raced on the GPU, and each decision is stored in the cache folder,
    also for later processes. Ranks with GPUs of one kind and a shared folder divide the work. If a question is
    undecided when the time is up, its kernels stay, and another call continues. On the host nothing is searched. Raises
    RuntimeError while the current stream captures.
    """
    check_model(model)
    lo, hi = token_range(tokens)
    if dtype not in (None, *FLOATS):
        raise refuse("dtype", dtype, "are None, torch.bfloat16, torch.float16 and torch.float32")
    if main_grad not in (None, torch.bfloat16, torch.float32):
        raise refuse("main_grad", main_grad, "are None, torch.bfloat16 and torch.float32")
    check_flag(training, "training")
    seconds = _search_seconds(tune)
    layers: dict[tuple, set[int]] = {}
    gathered = _gathered_dtypes(model)

    def dtype_of(parameter: nn.Parameter) -> torch.dtype:
        return gathered.get(id(parameter), parameter.dtype)

    for name, module in model.named_modules():
        if isinstance(module, Layer) and module._code is not None and hi >= min(getattr(module, "least_tokens", (0,))):
            weight, bias = (local_of(getattr(module, name, None)) for name in ("weight", "bias"))
            check_floats(weight, f"the weight of {name!r}")
            weight_dtype, bias_dtype = dtype_of(module.weight), None if bias is None else dtype_of(module.bias)
            bias_dtype = torch.float32 if bias_dtype == torch.float16 else bias_dtype
            watched = module._watch is not None
            dtypes = weight_dtype, dtype or weight_dtype, bias_dtype
            history = 0 if module._scaling is None else module.recipe.history
            # The library has no weight gradients of experts in all recipes.
            trained = training and not (weight.dim() == 3 and module.recipe.name in WITHOUT_WEIGHT_GRADIENTS)
            if isinstance(module, Linear | TransposedLinear):
                shape = module.computed_shape()
            else:
                shape = (module.experts, *as_rows(weight, module.transposed).shape[1:])  # of spread ones this rank's
            rows = getattr(module, "rows", 1)
            is_held = module._sharding is not None or held(weight)
            layer = (module._code, watched, trained, history, is_held, weight.device, shape, rows, *dtypes)
            # Layers of recipe "delayed" scale otherwise in warm-up and in eval().
            layers[layer] = {module._code, module.recipe.current_code}
    jobs = [(code, *layer[1:]) for layer, codes in layers.items() for code in codes]
    of_input = (lambda weight: dtype) if dtype is not None else dtype_of
    mlps, senders = _mlps(model, hi, of_input), _senders(model, of_input)
    norms = _norms(model, of_input) if training else set()
    for sharding in {m._sharding for m in model.modules() if isinstance(m, Layer) and m._sharding is not None}:
        sharding.prepare()
    calls: list[tuple] = [(_prepare, job, lo, hi, main_grad) for job in jobs]
    calls += [(_prepare_mlp, mlp, lo, hi, training) for mlp in mlps]
    calls += [(_prepare_norm, norm, lo, hi) for norm in norms]
    calls += [(_prepare_sender, sender, lo, hi, training) for sender in senders]
    with ThreadPoolExecutor(max_workers=max(len(calls), 1)) as pool:
        for one in [pool.submit(*call) for call in calls]:
            one.result()
    if seconds > 0:
        _search(calls, seconds)
    return len(layers)


def _search_seconds(tune: object) -> float:
    """Returns the seconds that ``tune`` allows, 0 for None. Raises TypeError and ValueError for other arguments,
    RuntimeError in a capture."""
    if tune is None:
        return 0.0
    if isinstance(tune, bool) or not isinstance(tune, int | float):
        raise wrong_type("tune", tune, "a number of seconds, or None")
    if not 0 < tune <= MOST_SECONDS:
        raise refuse("tune", tune, f"are None and seconds, more than 0 and at most {MOST_SECONDS}")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("octile: tune is given while the current stream captures; allowed before the capture begins")
    return float(tune)


def _search(calls: list[tuple], seconds: float) -> None:
    """Prepares again, one after the other, with searches for at most this number of seconds."""
    ops.tune_prepares(seconds)
    try:
        for prepare, *arguments in calls:
            prepare(*arguments)
    finally:
        ops.tune_prepares(0.0)


def _gathered_dtypes(model: nn.Module) -> dict[int, torch.dtype]:
    """Returns the dtypes of the parameters that FSDP2 gathers in others than they have, by their ids."""
    if not any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        return {}
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    dtypes = {}
    for module in model.modules():
        state = _get_module_fsdp_state(module)
        group = None if state is None else state._fsdp_param_group
        for fsdp in () if group is None else group.fsdp_params:
            info, dtype = fsdp._module_info, fsdp.mp_policy.param_dtype
            if dtype is not None:
                dtypes[id(getattr(info.module, info.param_name))] = dtype
    return dtypes


def _mlps(model: nn.Module, hi: int, dtype_of: Callable[[torch.Tensor], torch.dtype]) -> set[tuple]:
    """Returns what is different in the MLPs whose activation quantisers compute, those of experts with the rows of a
    token at the end."""
    found = set()
    for structure, layers in fused_mlps(model):
        first, down = layers[:2]
        if first._code is None or hi < max(min(layer.least_tokens) for layer in layers):
            continue
        weight, biased = first.weight, any(layer.bias is not None for layer in layers if layer is not down)
        sizes = down.in_features, structure.gated, biased
        found.add((first._code, structure.activation, weight.device, dtype_of(weight), *sizes, 0))
    for module in model.modules():
        if not isinstance(module, ExpertsOfTransformers) or (name := module.fused_activation()) is None:
            continue
        first, last = module._fp8_weights().values()
        inner, weight = last.weight.shape[-1], first.weight
        found.add((first._code, name, weight.device, dtype_of(weight), inner, module.has_gate, False, first.rows))
    return found


def _norms(model: nn.Module, dtype_of: Callable[[torch.Tensor], torch.dtype]) -> set[tuple]:
    """Returns what is different in the layers whose inputs norms may compute, by their sizes."""
    norms = {(m.weight.numel(), m.computed()) for m in model.modules() if isinstance(m, FusedNorm) and m.computed()}
    found = set()
    for layer in model.modules():
        if not isinstance(layer, Linear) or layer._code is None or layer._scaling is not None:
            continue
        dtype = dtype_of(layer.weight)
        for size, kind in norms if dtype in TYPES else ():
            if layer.in_features == size:
                of_x = torch.float32 if kind.in_float else dtype
                found.add((layer._code, layer.weight.device, of_x, size, dtype == torch.bfloat16, kind.centred))
    return found


def _senders(model: nn.Module, dtype_of: Callable[[torch.Tensor], torch.dtype]) -> set[tuple]:
    """Returns what is different in the ways of rows to spread experts."""
    found = set()
    for module in model.modules():
        spread = getattr(module, "spread", None)
        if isinstance(module, TakenExperts) and spread is not None and spread.fp8:
            first = next(iter(module._fp8_weights().values()))
            found.add((first._code, spread.columns, first.weight.device, dtype_of(first.weight), first.rows))
    return found


def problems() -> list[str]:
    """Returns the canonical texts of the problems that calls in this process have used so far, sorted.

    Write them to a file, one per line, for ``octile compile --problem-file`` and ``octile tune --problem-file``.
    """
    return ops.problem_texts().splitlines()


def _prepare(job, lo: int, hi: int, main_grad: torch.dtype | None) -> None:
    code, watched, training, history, is_held, device, shape, rows, weight_dtype, dtype, bias_dtype = job
    if device.type == "meta":
        raise refuse("model", "on the meta device", "is one in memory")

    tensors = _sample(dtype, device), _sample(weight_dtype, device)
    into = _sample(main_grad, device)
    sizes = *shape, lo * rows, hi * rows, training, watched, history, is_held
    if len(shape) == 3:
        ops.prepare_experts(*tensors, into, code, *sizes)
    else:
        ops.prepare_linear(*tensors, _sample(bias_dtype, device), into, code, *sizes)


def _prepare_mlp(mlp: tuple, lo: int, hi: int, training: bool) -> None:
    code, activation, device, dtype, i, gated, biased, rows = mlp
    counts, of_experts = (lo * max(rows, 1), hi * max(rows, 1)), rows > 0
    sample = _sample(dtype, device)
    ops.prepare_activation(sample, activation, code, i, *counts, gated, biased, training, of_experts, of_experts)


def _prepare_norm(norm: tuple, lo: int, hi: int) -> None:
    code, device, dtype, size, via_bf16, centred = norm
    ops.prepare_normed(_sample(dtype, device), code, size, via_bf16, lo, hi, centred)


def _prepare_sender(sender: tuple, lo: int, hi: int, training: bool) -> None:
    code, columns, device, dtype, rows = sender
    ops.prepare_messages(_sample(dtype, device), code, columns, lo, hi * rows, training)


def _sample(kind: torch.dtype | None, device: torch.device) -> torch.Tensor | None:
    return None if kind is None else torch.empty(0, dtype=kind, device=device)
