"""Makes Octile the implementation of FP8 models in Hugging Face transformers."""

from __future__ import annotations

import torch

from octile._types import refuse
from octile.torch import frozen, per_tensor
from octile.torch._arguments import FLOATS
from octile.torch._operators import ops
from octile.torch._transformers import check_installed, parts_of
from octile.torch.grouped import with_first_zero
from octile.torch.layer import local_of

BLOCK = [128, 128]
#: The names that releases of transformers have for experts in FP8.
EXPERTS = ("FP8Experts", "FP8Expert")
# transformers makes E8M0 of scales that are powers of two.
_SCALES = (torch.float32, torch.float8_e8m0fnu)


def use_in_transformers(host: bool = False) -> None:
    """Makes Octile compute the linear layers and experts of ``transformers``' FP8 models from now on.

    These are models with a ``FineGrainedFP8Config``, loaded before or after, with float8_e4m3fn weights:

    - checkpoints of DeepSeek-V3's and Qwen3-FP8's layout, ``weight_scale_inv`` for blocks of 128 x 128, float32 or
      powers of two (``scale_fmt`` "ue8m0"). Activations are quantised dynamically in 1x128 blocks.
    - checkpoints with one scale per weight (``weight_block_size`` null), such as Ministral 3. Activations are
      quantised by ``activation_scale`` (``activation_scheme`` "static"), or dynamically row by row. In checkpoints that
      are loaded after the call, the scales may have vLLM's names, ``weight_scale`` and ``input_scale``, and a static
      scheme needs no ``weight_block_size``. Experts need ``experts_implementation="eager"``.

    No kernel of the hub and no DeepGEMM is needed, and a process may use any number of devices. Input gradients are
    transformers' own. Layers that Octile does not support (FP4, other blocks or scale types, sizes that are not
    multiples of 16) keep transformers' kernels, and so do models of compressed-tensors and FBGEMM. Loading ModelOpt's
    models raises ValueError, because transformers would read their codes without scales.

    host: models without a GPU stay in FP8 too, computed by the host's reference executor, which is for tests. Otherwise
    transformers turns them into BF16 as it loads them.

    Further calls have no effect. Raises ImportError without transformers, or if the installed release lacks a required
    part, which the error names.
    """
    check_installed()
    theirs = parts_of("integrations.finegrained_fp8", "FP8Linear").module
    _read_more_checkpoints()
    _serve(theirs)
    if host:
        _load_without_gpu()


def _serve(theirs) -> None:
    """Puts Octile's functions into transformers' module of FP8 layers, in the places that the release has."""
    if not _put(theirs, "fp8_linear", _linear_instead_of):  # then modules multiply by themselves
        _put(theirs.FP8Linear, "forward", _forward_instead_of)
        for name in EXPERTS:
            _put(getattr(theirs, name, None), "linear", _experts_linear_instead_of)
    grouped = _put(theirs, "fp8_grouped_matmul", _grouped_instead_of)
    for name in ("load_finegrained_fp8_kernel", "_load_finegrained_fp8_kernel", "_get_triton_kernel"):
        grouped = grouped or _put(theirs, name, _kernel_instead_of)
    experts = getattr(theirs, "ALL_FP8_EXPERTS_FUNCTIONS", None)
    if grouped and experts is not None and not hasattr(experts["batched_mm"], "replaced"):
        # generate() asks for it to decode on a GPU.
        experts["batched_mm"] = _batched_instead_of(experts["batched_mm"], experts["grouped_mm"])


def _put(owner, name: str, instead_of) -> bool:
    """Replaces, once, what an owner has under a name, and returns whether it has it."""
    theirs = getattr(owner, name, None)
    if theirs is not None and not hasattr(theirs, "replaced"):
        setattr(owner, name, instead_of(theirs))
    return theirs is not None


def _read_more_checkpoints() -> None:
    """Lets transformers load checkpoints with one scale a weight by vLLM's names, and refuse those of ModelOpt."""
    WeightRenaming = parts_of("core_model_loading", "WeightRenaming").WeightRenaming
    AutoHfQuantizer = parts_of("quantizers.auto", "AutoHfQuantizer").AutoHfQuantizer
    Quantizer = parts_of("quantizers.quantizer_finegrained_fp8", "FineGrainedFP8HfQuantizer").FineGrainedFP8HfQuantizer

    supports = AutoHfQuantizer.supports_quant_method
    if hasattr(supports, "replaced"):
        return
    before = Quantizer._process_model_before_weight_loading
    # Older releases ask the quantizer for its conversions alone.
    asked = next(name for name in ("update_weight_conversions", "get_weight_conversions") if hasattr(Quantizer, name))
    conversions = getattr(Quantizer, asked)

    def supports_quant_method(config):
        method = str(config.get("quant_method"))
        if method.startswith("modelopt"):
            allowed = "are those that transformers loads, such as 'fp8': it would read these codes without their scales"
            raise refuse("quant_method", method, allowed)
        return supports(config)

    def _process_model_before_weight_loading(self, model, **kwargs):
        if self.pre_quantized and self.quantization_config.activation_scheme == "static":
            self.quantization_config.weight_block_size = None  # no format has static scales of blocks
        return before(self, model, **kwargs)

    def weight_conversions(self, *given, **named):
        theirs = conversions(self, *given, **named)
        if self.quantization_config.weight_block_size is not None:
            return theirs
        names = {r"\.weight_scale$": ".weight_scale_inv", r"\.input_scale$": ".activation_scale"}
        return [WeightRenaming(source, target) for source, target in names.items()] + theirs

    supports_quant_method.replaced = supports
    AutoHfQuantizer.supports_quant_method = staticmethod(supports_quant_method)
    Quantizer._process_model_before_weight_loading = _process_model_before_weight_loading
    setattr(Quantizer, asked, weight_conversions)


def _load_without_gpu() -> None:
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer as Quantizer

    replaced = Quantizer.validate_environment
    if hasattr(replaced, "replaced"):
        return

    def validate_environment(self, *args, **kwargs):
        if torch.cuda.is_available():
            replaced(self, *args, **kwargs)

    validate_environment.replaced = replaced
    Quantizer.validate_environment = validate_environment


def _serves(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, block_size) -> bool:
    n, k = weight.shape[-2:]
    return (
        weight.dtype == torch.float8_e4m3fn
        and scales.dtype in _SCALES
        and list(block_size or ()) == BLOCK
        and n % 16 == 0
        and k % 16 == 0
        and tuple(scales.shape[-2:]) == (-(-n // 128), -(-k // 128))
        and x.dtype in FLOATS
    )


def _as_f32(scales: torch.Tensor) -> torch.Tensor:
    return scales.to(torch.float32).contiguous()


def _product(input, weight, weight_scale_inv, block_size, bias, activation_scale) -> torch.Tensor | None:
    """Returns x weight^T + bias, or None if Octile does not serve such a weight."""
    if bias is not None and bias.dtype not in (torch.bfloat16, torch.float32):
        bias = bias.float()
    if activation_scale is None and _serves(input, weight, weight_scale_inv, block_size):
        return frozen.product(input, weight, _as_f32(weight_scale_inv), bias)
    if block_size is None and per_tensor.serves(input, weight, weight_scale_inv, activation_scale):
        rows = input.reshape(-1, input.shape[-1])
        y = per_tensor.linear(rows, weight, weight_scale_inv, bias, activation_scale)
        return y.view(*input.shape[:-1], weight.shape[0])
    return None


def _linear_instead_of(replaced):
    def fp8_linear(
        input, weight, weight_scale_inv, block_size=None, bias=None, activation_scale=None, *more, **named
    ):  # fmt: skip
        """x weight^T + bias by Octile: transformers' fp8_linear. Releases differ in the parameters after
        activation_scale."""
        y = _product(input, weight, weight_scale_inv, block_size, bias, activation_scale)
        if y is not None:
            return y
        return replaced(input, weight, weight_scale_inv, block_size, bias, activation_scale, *more, **named)

    fp8_linear.replaced = replaced
    return fp8_linear


def _forward_instead_of(replaced):
    def forward(self, input):
        """A layer by Octile: the forward of transformers' FP8Linear in releases without fp8_linear."""
        parts = local_of(self.weight), local_of(self.weight_scale_inv)
        y = _product(input, *parts, self.block_size, self.bias, getattr(self, "activation_scale", None))
        return replaced(self, input) if y is None else y

    forward.replaced = replaced
    return forward


def _experts_linear_instead_of(replaced):
    def linear(self, input, weight, weight_scale_inv, activation_scale=None):
        """The layer of an expert by Octile: linear() of transformers' experts in releases without fp8_linear."""
        y = _product(input, weight, weight_scale_inv, self.block_size, None, activation_scale)
        if y is not None:
            return y
        more = () if activation_scale is None else (activation_scale,)
        return replaced(self, input, weight, weight_scale_inv, *more)

    linear.replaced = replaced
    return linear


def _grouped_instead_of(replaced):
    def fp8_grouped_matmul(input, weight, weight_scale_inv, offsets, tokens_per_expert, block_size):
        """The experts' linear layer by Octile: transformers' fp8_grouped_matmul."""
        if not _serves(input, weight, weight_scale_inv, block_size):
            return replaced(input, weight, weight_scale_inv, offsets, tokens_per_expert, block_size)
        begins = with_first_zero(offsets, weight.shape[0], input)
        of_weight = _as_f32(weight_scale_inv)
        return ops.experts_forward(input, weight, begins, frozen.CODE, False, False, w_scales=of_weight)[0]

    fp8_grouped_matmul.replaced = replaced
    return fp8_grouped_matmul


class _Kernel:
    """transformers' kernel, loaded when something is asked of it that Octile does not serve."""

    def __init__(self, load) -> None:
        self._load = load

    def __getattr__(self, name: str):
        return getattr(self._load(), name)

    def _grouped(self, name: str, input, weight, weight_scale_inv, *, offsets, tokens_per_expert, block_size):
        def theirs(*arguments):
            named = {"offsets": arguments[3], "tokens_per_expert": arguments[4], "block_size": arguments[5]}
            return getattr(self._load(), name)(*arguments[:3], **named)

        grouped = _grouped_instead_of(theirs)
        return grouped(input, weight, weight_scale_inv, offsets, tokens_per_expert, block_size)

    def grouped_matmul(self, *operands, **named):
        """The experts' linear layer by Octile: transformers' grouped_matmul."""
        return self._grouped("grouped_matmul", *operands, **named)

    def w8a8_fp8_matmul_grouped(self, *operands, **named):
        """The same by its name in older releases."""
        return self._grouped("w8a8_fp8_matmul_grouped", *operands, **named)


def _kernel_instead_of(replaced):
    kernel = _Kernel(replaced)

    def load_finegrained_fp8_kernel():
        return kernel

    load_finegrained_fp8_kernel.replaced = replaced
    return load_finegrained_fp8_kernel


def _batched_instead_of(replaced, grouped):
    def experts_forward(self, hidden_states, top_k_index, top_k_weights):
        """The experts of a layer, sorted into groups, also of few tokens: transformers' batched_mm."""
        up = "gate_up_proj" if self.has_gate else "up_proj"
        served = self.activation_scheme != "static" and all(
            _serves(hidden_states, getattr(self, name), getattr(self, name + "_scale_inv"), self.block_size)
            for name in (up, "down_proj")
        )
        return (grouped if served else replaced)(self, hidden_states, top_k_index, top_k_weights)

    experts_forward.replaced = replaced
    return experts_forward
