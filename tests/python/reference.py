"""FP64 references, made of operands as they are after quantising."""

import torch

import octile.torch as ot

ALL_RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8", "delayed")


def quantized(x, kind, output):
    """Returns x as FP8 sees it, in FP64: of the transposed copy with output="col"."""
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind.dtype]
    return ot.quantize(x, dtype, kind.granularity, kind.scales, output).dequantize().double()


def layer(x, weight, bias, dy, recipe):
    """Returns y, dx, dw and db in FP64 of the dequantised operands, each with the sum of |products| behind it."""
    recipe = ot.Recipe(recipe) if isinstance(recipe, str) else recipe
    x, dy = x.detach().reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    weight = weight.detach()

    def product(a, b):
        return a @ b.t(), a.abs() @ b.abs().t()

    y, y_size = product(quantized(x, recipe.activation, "row"), quantized(weight, recipe.weight, "row"))
    if bias is not None:
        y, y_size = y + bias.detach().double(), y_size + bias.detach().double().abs()
    dx = product(quantized(dy, recipe.gradient, "row"), quantized(weight, recipe.weight, "col"))
    dw = product(quantized(dy, recipe.gradient, "col"), quantized(x, recipe.activation, "col"))
    db = dy.double().sum(0), dy.double().abs().sum(0)
    return (y, y_size), dx, dw, db


def assert_close(actual, expected):
    """Holds the tolerance of a GEMM (docs/numerics.md): half a unit of the output's type, and 2^-13 of the sum of
    |products|, which is far more than fp32 sums lose."""
    value, size = expected
    half_unit = torch.finfo(actual.dtype).eps / 2
    error = (actual.detach().double().reshape(value.shape) - value).abs()
    assert (error <= half_unit * value.abs() + 2.0**-13 * size).all(), (error / size.clamp_min(1e-300)).max()


def kept_bytes(model, x):
    """Returns the bytes that autograd keeps, without those of parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model(x)
    assert y is not None
    return sum(size for address, size in kept.items() if address not in own)
