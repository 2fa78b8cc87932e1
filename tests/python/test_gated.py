"""gated_mlp: against FP64, against layers of their own, and with every kind of gradient."""

import itertools

import pytest
import reference
import torch
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import octile.torch as ot
from octile.torch.gated import ACTIVATIONS, Weights, composed_mlp

ops = torch.ops.octile
RECIPES = [name for name in reference.ALL_RECIPES if name != "delayed"]
SHAPES = ("gated", "joined", "plain")  # gate and up of two layers, of one, and no up


def weights_of(shape="gated", k=64, i=256, n=48, biases=False, dtype=torch.bfloat16):
    def parameter(rows, columns):
        return (torch.randn(rows, columns) * columns**-0.5).to(dtype).requires_grad_()

    def bias(rows):
        return torch.randn(rows).to(dtype).requires_grad_() if biases else None

    first = 2 * i if shape == "joined" else i
    up = shape == "gated"
    return Weights(
        parameter(first, k), parameter(n, i), parameter(i, k) if up else None,
        bias(first), bias(n), bias(i) if up else None,
    )  # fmt: skip


def fused(x, w, activation="silu", recipe="blockwise"):
    return ot.gated_mlp(x, w.gate, w.up, w.down, activation, recipe, w.gate_bias, w.up_bias, w.down_bias)


def plain(x, w, activation="silu", recipe="blockwise"):
    return composed_mlp(x, w, activation, lambda x, _, weight, bias: ot.linear(x, weight, bias, recipe))


def exact(x, w, activation="silu", recipe=None):
    """The MLP in FP64 of unquantised operands."""
    w = Weights(*(None if p is None else p.double() for p in w))
    layer = torch.nn.functional.linear
    return composed_mlp(x.double(), w, activation, lambda x, _, weight, bias: layer(x, weight, bias))


def results(run, x, w, *arguments):
    """Returns y and the gradients of x and of all tensors that require one."""
    x = x.detach().requires_grad_(x.requires_grad)
    for p in w:
        if p is not None:
            p.grad = None
    y = run(x, w, *arguments)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y))
    return [y.detach(), *(p.grad for p in (x, *w) if p is not None and p.grad is not None)]


def distance(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def assert_equal(a, b):
    assert len(a) == len(b) and all(p.equal(q) for p, q in zip(a, b, strict=True))


def input_of(*sizes, dtype=torch.bfloat16):
    return torch.randn(*sizes or (40, 64)).to(dtype).requires_grad_()


# ---- values


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_as_close_to_fp64_as_those_of_layers_of_their_own(shape, recipe):
    for activation in ACTIVATIONS:
        x, w = input_of(2, 20, 64), weights_of(shape, biases=True)
        ours, theirs, wanted = (results(run, x, w, activation, recipe) for run in (fused, plain, exact))
        for a, b, c in zip(ours, theirs, wanted, strict=True):
            assert a.shape == c.shape and a.dtype == torch.bfloat16
            assert distance(a, c) <= 1.15 * distance(b, c) + 0.002, (activation, distance(a, c), distance(b, c))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_product_is_rounded_to_fp8_alone(recipe):
    kind, code = ot.Recipe(recipe).activation, ot.Recipe(recipe).code
    gate, factor = (torch.randn(130, 256).bfloat16() for _ in "ab")
    for activation, up in itertools.product(ACTIVATIONS, (None, factor)):
        product = ACTIVATIONS[activation](gate.double()) * (1 if up is None else up.double())
        made = ops.quantize_activation(gate, up, activation, code, True, True)
        for codes, output in ((made[0], "row"), (made[2], "col")):
            wanted = ot.quantize(product.float(), granularity=kind.granularity, scales=kind.scales, output=output)
            same = codes.view(torch.uint8) == wanted.codes.view(torch.uint8)
            # Products of relu have one rounding, those of others a few, which may cross a boundary of FP8.
            assert same.all() if activation.startswith("relu") else same.float().mean() > 0.9998


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_copy_takes_the_scale_of_the_first(recipe):
    gate, factor = (torch.randn(130, 256).bfloat16() for _ in "ab")
    code, one_scale = ot.Recipe(recipe).code, ot.Recipe(recipe).activation.granularity == "tensor"
    for activation in ACTIVATIONS:
        arguments = gate, factor, activation, code
        both, row = (ops.quantize_activation(*arguments, True, transposed) for transposed in (True, False))
        assert row[4].shape == ((1,) if one_scale else (0,))
        if not one_scale:
            continue
        column = ops.quantize_activation(*arguments, False, True, encode=row[4])
        assert torch.equal(column[2].view(torch.uint8), both[2].view(torch.uint8)) and torch.equal(column[3], row[1])
        # The scale is that of the call before, although the tensors have other values.
        doubled = ops.quantize_activation(gate, 2 * factor, activation, code, False, True, encode=row[4])
        assert torch.equal(doubled[3], row[1])


def test_dgate_and_dup_are_rounded_to_fp8_alone():
    w, recipe = weights_of(), ot.Recipe("blockwise", "f32")
    x, dh, gate, up = (torch.randn(40, columns).bfloat16() for columns in (64, 256, 256, 256))
    kept = ops.quantize_input(x, recipe.code, False, True)[2:]
    *copies, sums = ops.quantize_gradients(dh, gate, up, "relu", recipe.code, True, True, True)
    (dx, dw), (dx_up, dw_up) = (
        ops.quantized_backward(*copies, dh, 512, first, weight.detach(), *kept, recipe.code, True, True)
        for weight, first in ((w.gate, 0), (w.up, 256))
    )
    dgate, dup = dh.float() * up.float() * (gate > 0), dh.float() * gate.float().relu()
    of_gate = reference.layer(x, w.gate, None, dgate, recipe)
    of_up = reference.layer(x, w.up, None, dup, recipe)
    reference.assert_close(dw, of_gate[2])
    reference.assert_close(dw_up, of_up[2])
    reference.assert_close(dx, of_gate[1])
    reference.assert_close(dx_up, of_up[1])
    reference.assert_close(sums, tuple(torch.cat(pair) for pair in zip(of_gate[3], of_up[3], strict=True)))


# ---- gradients of some, and how they come


def mlp_compiled(x, w, *arguments):
    torch._dynamo.reset()
    return torch.compile(fused, fullgraph=True, backend="aot_eager")(x, w, *arguments)


def mlp_checkpointed(reentrant):
    return lambda x, w, *arguments: checkpoint(fused, x, w, *arguments, use_reentrant=reentrant)


WAYS = {"compiled": mlp_compiled, "checkpointed": mlp_checkpointed(False), "reentrant": mlp_checkpointed(True)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("frozen", ["nothing", "x", "gate", "down", "up", "gate and up", "all but biases"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_some(shape, frozen, way):
    if (shape != "gated" and "up" in frozen) or (way == "reentrant" and frozen == "x"):
        pytest.skip("no up, and reentrant checkpointing needs an input with a gradient")
    if way == "compiled" and shape == "plain":
        pytest.skip("as joined")
    x, w = input_of(), weights_of(shape, biases=True)
    x.requires_grad_(frozen not in ("x", "all but biases") or way == "reentrant")
    for name in ("gate", "down", "up"):
        if (name in frozen or frozen == "all but biases") and getattr(w, name) is not None:
            getattr(w, name).requires_grad_(False)
    ours, theirs = results(fused, x, w), results(plain, x, w)
    assert len(ours) == len(theirs)
    assert all(distance(a, b) < 0.05 for a, b in zip(ours, theirs, strict=True))
    assert_equal(results(WAYS[way], x, w), ours)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_main_grad(shape, kind):
    x, w = input_of(), weights_of(shape)
    wanted = results(fused, x, w)
    parameters = [p for p in w[:3] if p is not None]
    for p in parameters:
        p.main_grad = torch.ones_like(p, dtype=kind)
        p.grad_added_to_main_grad = False
    made = results(fused, x, w)
    assert_equal(made[:2], wanted[:2])
    for p, gradient in zip(parameters, wanted[2:], strict=True):
        assert distance(p.main_grad - 1, gradient) < 0.01 and p.grad_added_to_main_grad and not p.grad.any()
    before = [p.main_grad.clone() for p in parameters]
    torch.autograd.grad(fused(x, w).sum(), x)  # asks for no weight's gradient
    assert_equal([p.main_grad for p in parameters], before)
    del parameters[0].main_grad  # of one alone
    made = results(fused, x, w)
    assert made[2].equal(wanted[2])
    assert all(distance(p.main_grad - b, p.main_grad - b) == 0 for p, b in zip(parameters[1:], before[1:], strict=True))


def test_compiled_main_grad():
    x, w = input_of(), weights_of()
    wanted = results(fused, x, w)
    for p in w[:3]:
        p.main_grad = torch.zeros_like(p, dtype=torch.float32)
    assert_equal(results(mlp_compiled, x, w)[:2], wanted[:2])
    assert all(p.main_grad.bfloat16().equal(g) for p, g in zip(w[:3], wanted[2:], strict=True))


def test_what_is_kept_is_gate_up_and_x_in_fp8():
    x, w = torch.randn(256, 64).bfloat16().requires_grad_(), weights_of()
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fused(x, w)
    own = {p.untyped_storage().data_ptr() for p in w[:3]}
    of_x = 256 * 64 + 2 * 64 * 4  # codes, and a scale of each 128 tokens
    assert sum(size for address, size in kept.items() if address not in own) == 2 * 256 * 256 * 2 + of_x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_and_autocast(dtype, shape):
    w = weights_of(shape, dtype=torch.float32, biases=True)
    x = input_of(dtype=dtype)
    assert all(distance(a, b) < 0.05 for a, b in zip(results(fused, x, w), results(plain, x, w), strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        made = results(fused, x, w)
        assert made[0].dtype == torch.bfloat16 and made[1].dtype == dtype
        assert all(distance(a, b) < 0.05 for a, b in zip(made, results(plain, x, w), strict=True))


def test_tensors_on_the_meta_device_have_results_there():
    x, w = input_of(2, 20, 64), weights_of(biases=True)
    x, w = (x.detach().to("meta").requires_grad_(), Weights(*(p.detach().to("meta").requires_grad_() for p in w)))
    made = results(fused, x, w)
    assert all(a.is_meta and a.shape == b.shape for a, b in zip(made, (made[0], x, *w), strict=True))
    assert made[0].shape == (2, 20, 48)


def test_views_and_no_tokens():
    x, w = torch.randn(64, 3, 20).bfloat16().permute(1, 2, 0).requires_grad_(), weights_of("joined", biases=True)
    assert_equal(results(fused, x, w), results(fused, x.detach().contiguous().requires_grad_(), w))
    empty = results(fused, input_of(0, 64), w)
    assert empty[0].shape == (0, 48) and all(not g.any() for g in empty[2:])
    wanted = fused(x, w)
    with torch.no_grad():
        assert fused(x, w).equal(wanted)


# ---- derivatives beyond


def test_second_derivatives_are_refused():
    x, w = input_of(), weights_of()
    (slope,) = torch.autograd.grad(fused(x, w).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first gradients only"):
        slope.square().sum().backward()
    for p in w[:3]:
        p.requires_grad_(False)
    (slope,) = torch.autograd.grad(fused(x, w).sum(), x, create_graph=True)  # depends on x by the activation
    with pytest.raises(NotImplementedError, match="first gradients only"):
        slope.square().sum().backward()


def test_forward_mode_is_refused_and_transforms_have_gradients():
    x, w = input_of(), weights_of()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), x.detach())
        with pytest.raises(NotImplementedError, match="in forward mode"):
            fused(dual, w)
    made = torch.func.grad(lambda x: fused(x, w).float().square().sum())(x.detach())
    (wanted,) = torch.autograd.grad(fused(x, w).float().square().sum(), x)
    assert distance(made, wanted) < 0.05
    y = fused(x, w)
    batch = torch.randn(3, *y.shape).bfloat16()
    (made,) = torch.autograd.grad(y, x, batch, is_grads_batched=True, retain_graph=True)
    assert_equal(list(made), [torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in batch])


# ---- arguments, and what PyTorch is told


def test_bad_arguments_are_named():
    x, w = input_of(), weights_of()
    cases = [
        ({"activation": "swish"}, ValueError, "activation is 'swish'; .* 'relu', 'relu2', 'silu', 'gelu', 'gelu_tanh'"),
        ({"recipe": "delayed"}, NotImplementedError, r"recipe is 'delayed', whose maxima a layer keeps; gated_mlp"),
        ({"gate": w.gate[:128]}, ValueError, r"gate.shape is \(128, 64\); allowed is \[256, k\], by down's columns"),
        ({"up": w.up[:128]}, ValueError, r"up.shape is \(128, 64\); allowed is \(256, 64\), as gate's"),
        ({"up": None, "gate": w.gate[:128]}, ValueError, r"gate.shape .*allowed is \[256, k\] or \[512, k\]"),
        ({"up": None, "up_bias": x[0]}, ValueError, "up_bias is 'given'; allowed is None without up"),
        ({"down": w.down[0]}, ValueError, r"down.dim\(\) is 1; allowed is 2"),
        ({"x": 3}, TypeError, "x is of type int; allowed is torch.Tensor"),
        ({"x": x.long()}, ValueError, "x.dtype is torch.int64"),
        ({"x": x.detach().to("meta")}, ValueError, "gate.device is 'cpu'"),
    ]
    for change, kind, sentence in cases:
        with pytest.raises(kind, match=sentence):
            ot.gated_mlp(**{"x": x, "gate": w.gate, "up": w.up, "down": w.down} | change)


def test_operators_check_their_operands():
    code = ot.Recipe().code
    gate, up = (torch.randn(9, 256).bfloat16() for _ in "ab")
    for arguments, sentence in (
        ((gate, up[:, :16], "silu"), r"up is \[9, 16\]; allowed is \[9, 256\] of gate's type"),
        ((gate, up.float(), "silu"), "up is .* of gate's type"),
        ((gate[:, :24], None, "silu"), "gate is .* a multiple of 16 above 0"),
        ((gate, up, "swish"), "activation is 'swish'; allowed are 'relu', 'relu2', 'silu', 'gelu' and 'gelu_tanh'"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            ops.quantize_activation(*arguments, code, True, False)
    with pytest.raises((ValueError, RuntimeError), match="rowwise and transposed are false"):
        ops.quantize_activation(gate, up, "silu", code, False, False)
    with pytest.raises((ValueError, RuntimeError), match="up_bias, up_sentry or up_scales is given; allowed: None with"):
        ops.mlp_output(gate, gate, None, gate, None, up, None, "silu", code)
    with pytest.raises((ValueError, RuntimeError), match="recipe is 'delayed'"):
        ops.mlp_output(gate, gate, None, gate, None, None, None, "silu", ot.Recipe("delayed").code)
    one = torch.ones(1)
    with pytest.raises((ValueError, RuntimeError), match="encode is given; allowed: None, unless the recipe has one"):
        ops.quantize_activation(gate, up, "silu", code, False, True, encode=one)
    with pytest.raises((ValueError, RuntimeError), match=r"encode is \[2\]; allowed is fp32 \[1\]"):
        ops.quantize_activation(gate, up, "silu", ot.Recipe("tensorwise").code, False, True, encode=one.repeat(2))
    w = [p.detach() for p in weights_of()[:3]]
    kept = ops.quantize_input(torch.randn(9, 64).bfloat16(), code, False, True)[2:]

    copies = ops.quantize_gradients(gate, gate, up, "silu", code, True, True, False)[:4]

    def backward(copies=copies, like=gate, columns=512, first=256, weight=w[2], kept=kept):
        return ops.quantized_backward(*copies, like, columns, first, weight, *kept, code, True, True)

    backward()
    for change, sentence in (
        ({"weight": w[2][:, :30]}, r"weight is \[256, 30\]; allowed is \[n, k\], both multiples of 16 above 0"),
        ({"first": 64}, "first is 64; allowed are multiples of 128 with the weight's 256 columns within 512"),
        ({"first": 384}, "first is 384; allowed are multiples of 128"),
        ({"columns": 768}, "codes is"),
        ({"like": gate[:3]}, "codes is"),
        ({"copies": (*copies[:2], copies[2][:, :4], copies[3])}, "transposed is"),
        ({"kept": [kept[0][:, :4], kept[1]]}, "x_codes is"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            backward(**change)
    with pytest.raises((ValueError, RuntimeError), match=r"dh is \[3, 256\]; allowed is \[9, 256\]"):
        ops.quantize_gradients(gate[:3], gate, up, "silu", code, True, True, False)
    with pytest.raises((ValueError, RuntimeError), match="rowwise and transposed are false"):
        ops.quantize_gradients(gate, gate, up, "silu", code, False, False, True)


@pytest.mark.parametrize("recipe", RECIPES)
def test_traced_shapes_are_those_of_the_operators(recipe):
    code = ot.Recipe(recipe).code
    gate, up, dh = (torch.randn(3, 7, 128).bfloat16() for _ in "abc")
    w = [p.detach() for p in weights_of(i=128)[:3]]
    kept = ops.quantize_input(torch.randn(21, 64).bfloat16(), code, False, True)[2:]
    for outputs in ((True, False), (False, True), (True, True)):
        opcheck(ops.quantize_activation, (gate, up, "silu", code, *outputs), test_utils=("test_faketensor",))
        if ot.Recipe(recipe).activation.granularity == "tensor":
            given = gate, up, "silu", code, *outputs, None, None, torch.ones(1)
            opcheck(ops.quantize_activation, given, test_utils=("test_faketensor",))
    x, biases = torch.randn(3, 7, 64).bfloat16(), [b.detach() for b in weights_of(i=128, biases=True)[3:]]
    for of_up in ((w[2], biases[2]), (None, None)):
        arguments = x, w[0], of_up[0], w[1], biases[0], of_up[1], biases[1], "silu", code
        opcheck(ops.mlp_output, arguments, test_utils=("test_faketensor",))
    for wanted in ((True,) * 3, (False, True, False), (True, False, True)):
        opcheck(ops.quantize_gradients, (dh, gate, up, "silu", code, *wanted), test_utils=("test_faketensor",))
    *copies, _ = ops.quantize_gradients(dh, gate, up, "silu", code, True, True, False)
    for wanted in ((True, True), (False, True), (True, False)):
        arguments = *copies, dh, 256, 128, w[2], *kept, code, *wanted
        opcheck(ops.quantized_backward, arguments, test_utils=("test_faketensor",))
    arguments = *copies[2:], dh, 256, 0, w[0], *kept, torch.zeros(128, 64), code
    opcheck(ops.quantized_backward_into, arguments, test_utils=("test_faketensor",))


def test_products_are_counted():
    x, w = input_of(), weights_of()
    counts = []
    for run in (fused, exact):
        with FlopCounterMode(display=False) as counter:
            results(run, x, w)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 40 * (2 * 64 * 256 + 256 * 48)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fused(x, w)
    assert counter.get_total_flops() == counts[0] // 3
