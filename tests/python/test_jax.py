"""octile.jax: the bits of octile.torch, the transformations of JAX, and its errors."""

import ctypes
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from gpu import DEVICES
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import octile.jax as oj
import octile.torch as ot
from octile import _c
from octile.jax import functional
from octile.jax._calls import call

# XLA would take most of a GPU's memory from PyTorch's tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax.config.update("jax_num_cpu_devices", 2)

RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8", "blockwise:f32", "rowwise:f32")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_NAMES = {torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16, torch.float32: np.float32}


@pytest.fixture(autouse=True)
def on_host():
    """Arrays that name no device are on the host, also where JAX has a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def devices_of(device):
    """Returns JAX's devices of a kind."""
    if device == "cuda" and not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("JAX has no plugin for CUDA")
    return jax.devices(device)


def jax_array(tensor, device="cpu"):
    """Returns a PyTorch tensor's elements as a JAX array on a device."""
    bits = tensor.detach().cpu().contiguous().view(_BITS[tensor.element_size()]).numpy()
    dtype = _NAMES.get(tensor.dtype)
    return jax.device_put(bits if dtype is None else bits.view(dtype), devices_of(device)[0])


def bits(array):
    """Returns the bytes of an array of JAX or PyTorch."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().contiguous().view(_BITS[array.element_size()]).numpy().tobytes()
    return np.asarray(array).tobytes()


def assert_bits(ours, theirs):
    """Holds if all arrays have the same bits."""
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert [a.shape for a in ours] == [tuple(b.shape) for b in theirs]
    assert [bits(a) for a in ours] == [bits(b) for b in theirs]


def tensors(m=37, n=208, k=272, dtype=torch.bfloat16):
    """Returns x, weight, bias and dy, of sizes that fill no block."""
    return [torch.randn(s).to(dtype) for s in ((m, k), (n, k), (n,), (m, n))]


def gradients(f, operands, dy):
    """Returns y and the gradients of all operands."""
    y, pull = jax.vjp(f, *operands)
    return y, *pull(dy)


def canonical(problem):
    """Returns a problem's canonical text."""
    plan, size = _c.host_plan(problem), ctypes.c_size_t()
    _c.check(_c.api().octile_plan_problem(plan, None, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _c.check(_c.api().octile_plan_problem(plan, text, ctypes.byref(size)))
    return text.value.decode()


@pytest.fixture
def gemms(monkeypatch):
    """Returns the GEMMs that octile.jax asks for in the test."""
    problems = set()

    def recorded(target, *arguments):
        if target == "gemm":
            problems.add(canonical(arguments[2]))
        return call(target, *arguments)

    monkeypatch.setattr(functional, "call", recorded)
    return problems


@DEVICES
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_layer_has_the_bits_of_torch(device, recipe, gemms):
    name, _, scales = recipe.partition(":")
    n = 208 + 16 * RECIPES.index(recipe)  # no other test has these sizes
    for dtype in (torch.bfloat16, torch.float32) if recipe == "blockwise" else (torch.float16,):
        given = [t.to(device) for t in tensors(n=n, dtype=dtype)]
        *operands, dy = given
        operands = [t.requires_grad_() for t in operands]
        y = ot.linear(*operands, recipe=ot.Recipe(name, scales or "pow2"))
        wanted = [y, *torch.autograd.grad(y, operands, dy)]

        *operands, dy = [jax_array(t, device) for t in given]
        made = jax.jit(lambda *a: gradients(lambda *o: oj.linear(*o, recipe=recipe), a[:3], a[3]))(*operands, dy)
        assert_bits(made, wanted)
    # The same problems get the same kernels on a GPU, where their choice decides how a GEMM sums.
    assert len(gemms) == (6 if recipe == "blockwise" else 3)
    assert gemms <= set(ot.problems())


@DEVICES
@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_experts_have_the_bits_of_torch(device, recipe, gemms):
    n = {"blockwise": 144, "tensorwise": 160}[recipe]
    x, _, _, dy = [t.to(device) for t in tensors(100, n)]
    weight = torch.randn(4, n, 272, device=device).bfloat16()
    offsets = torch.tensor([0, 30, 30, 47, 100], dtype=torch.int32, device=device)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = ot.experts(x, weight, offsets, recipe)
    wanted = [y, *torch.autograd.grad(y, (x, weight), dy)]
    x, weight, dy, offsets = [jax_array(t, device) for t in (x, weight, dy, offsets)]
    made = jax.jit(lambda x, w, o, dy: gradients(lambda x, w: oj.experts(x, w, o, recipe), (x, w), dy))
    assert_bits(made(x, weight, offsets, dy), wanted)
    assert len(gemms) == 3 and gemms <= set(ot.problems())


@DEVICES
def test_quantisers_and_gemms_have_the_bits_of_torch(device):
    m, n, k = 19, 40, 200
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device).half()
    bias = torch.randn(n, device=device)
    row, col = ot.quantize(x, torch.float8_e5m2, output="both")
    square = ot.quantize(w, granularity="128x128", scales="f32")
    ours = oj.quantize(jax_array(x, device), jnp.float8_e5m2, output="both")
    assert (ours[0].shape, ours[1].shape) == ((m, k), (k, m))
    assert_bits((ours[0].codes[:, :k], ours[0].scales), (row.codes, row.scales))
    assert_bits(ours[1], col[:2])
    b = oj.quantize(jax_array(w, device), granularity="128x128", scales="f32")
    assert_bits((b.codes[:, :k], b.scales), square[:2])
    made = jax.jit(lambda a, b, bias: oj.gemm(a, b, jnp.float32, bias, promote=64))(ours[0], b, jax_array(bias, device))
    assert_bits(made, ot.gemm(row, square, torch.float32, bias, promote=64))
    over_tokens = oj.gemm(ours[1], ours[1], jnp.float16, tokens="k")
    assert_bits(over_tokens, ot.gemm(col, col, torch.float16, tokens="k"))


def test_groups_are_gemms_of_their_own():
    x, w, _, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    weights, offsets = jnp.stack([w, 2 * w, -w]), jnp.array([0, 8, 8, 48], jnp.int32)
    a = oj.quantize(x, granularity="tensor", offsets=offsets)
    b = oj.quantize(weights, granularity="tensor")
    assert (a.scales.shape, b.shape) == ((1, 3), (3, 32, 128)) or a.scales.size == 3
    alone = oj.gemm(oj.quantize(x[8:], granularity="tensor"), oj.quantize(-w, granularity="tensor"))
    assert_bits(oj.gemm(a, b, offsets=offsets)[8:], alone)


def squares(f):
    """Returns a loss of f."""
    return lambda *operands: (f(*operands).astype(jnp.float32) ** 2).sum()


def test_vmap_folds_examples_into_tokens():
    x, w, b, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    examples = x.reshape(3, 16, 128)
    mapped = jax.vmap(oj.linear, (0, None, None))
    assert_bits(mapped(examples, w, b), oj.linear(examples, w, b))
    of_all, of_mapped = (jax.jit(jax.grad(squares(f), (0, 1, 2))) for f in (oj.linear, mapped))
    assert_bits(of_mapped(examples, w, b), of_all(examples, w, b))
    # A weight's gradient is one GEMM over all examples, also if each is one token.
    program = jax.jit(jax.grad(squares(jax.vmap(oj.linear, (0, None))), (0, 1))).lower(x, w).compile().as_text()
    assert program.count('custom_call_target="octile_gemm"') == 3

    # Gradients of each example, and weights of each example.
    grad = jax.jit(jax.grad(squares(oj.linear), (0, 1)))
    each = [jnp.stack(t) for t in zip(*[grad(e, w) for e in examples], strict=True)]
    assert_bits(jax.vmap(grad, (0, None))(examples, w), each)
    weights = jnp.stack([w, 2 * w, -w])
    each = jnp.stack([oj.linear(e, v) for e, v in zip(examples, weights, strict=True)])
    assert_bits(jax.vmap(oj.linear)(examples, weights), each)
    assert_bits(jax.vmap(oj.linear, (1, None), 1)(examples, w), oj.linear(examples, w))


def test_checkpoint_scan_and_donation_change_no_bit():
    x = jax_array(torch.randn(48, 128).bfloat16())
    weights = jax_array(torch.randn(3, 128, 128).bfloat16() / 8)

    def unrolled(x, weights):
        for w in weights:
            x = oj.linear(x, w)
        return x

    def scanned(step):
        return lambda x, weights: jax.lax.scan(lambda h, w: (step(h, w), None), x, weights)[0]

    wanted = jax.jit(jax.grad(squares(unrolled), (0, 1)))(x, weights)
    for step in (oj.linear, jax.checkpoint(oj.linear)):
        assert_bits(jax.jit(jax.grad(squares(scanned(step)), (0, 1)))(x, weights), wanted)
    layer = jax.jit(oj.linear, donate_argnums=0)
    assert_bits(layer(jnp.array(x), weights[0]), oj.linear(x, weights[0]))


def test_a_program_serves_other_shapes_ranks_and_no_tokens():
    x, w, b, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    layer = jax.jit(oj.linear)
    for rows in (x, x[:1], x[:7], x):
        assert_bits(layer(rows, w, b), oj.linear(x, w, b)[: rows.shape[0]])
    assert_bits(layer(x[0], w, b), oj.linear(x, w, b)[0])
    assert layer(x.reshape(2, 3, 8, 128), w, b).shape == (2, 3, 8, 32)
    y, dx, dw, db = gradients(layer, (x[:0], w, b), jnp.zeros((0, 32), x.dtype))
    assert (y.shape, dx.shape) == ((0, 32), (0, 128))
    assert not dw.any() and not db.any()


def test_a_gradient_that_nobody_asks_for_is_not_computed():
    x, w, _, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    for of, gemms, quantisers in ((0, 2, 4), (1, 2, 3), ((0, 1), 3, 4)):
        step = jax.jit(jax.value_and_grad(squares(oj.linear), of))
        program = step.lower(x, w).compile().as_text()
        assert program.count('custom_call_target="octile_gemm"') == gemms
        assert program.count('custom_call_target="octile_quantize"') == quantisers
    # Layers with one input share its quantiser.
    program = jax.jit(lambda x, w: oj.linear(x, w) + oj.linear(x, -w)).lower(x, w).compile().as_text()
    assert program.count('custom_call_target="octile_quantize"') == 3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(2))])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_computes_each_shard_by_itself(axis_type, check_vma, device):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis_type,), devices=devices_of(device)[:2])
    x, w, _, _ = [jax_array(t, device) for t in tensors(48, 32, 128)]
    (dx, dw), (other_dx, other_dw) = (jax.grad(squares(oj.linear), (0, 1))(half, w) for half in (x[:24], x[24:]))
    sharded = jax.device_put(x, jax.NamedSharding(mesh, P("data"))), jax.device_put(w, jax.NamedSharding(mesh, P()))

    def total(x, w):
        return jax.lax.psum(squares(oj.linear)(x, w), "data")

    f = jax.shard_map(total, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), check_vma=check_vma)
    assert_bits(jax.jit(jax.grad(f, (0, 1)))(*sharded), (jnp.concatenate([dx, other_dx]), dw + other_dw))

    def of_none(w, x):
        return jax.lax.psum(squares(oj.linear)(x[:0], w), "data")

    f = jax.shard_map(of_none, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check_vma)
    assert not jax.jit(jax.grad(f))(*sharded[::-1]).any()
    # Without shard_map the operands are gathered, and the bits are those of one device.
    assert_bits(jax.jit(oj.linear)(*sharded), oj.linear(x, w))


def test_threads_call_side_by_side():
    x, w, _, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    step, wanted = jax.jit(jax.grad(squares(oj.linear), (0, 1))), jax.grad(squares(oj.linear), (0, 1))(x, w)
    with ThreadPoolExecutor(2) as pool:
        for made in pool.map(lambda _: [step(x, w) for _ in range(20)], range(2)):
            for one in made:
                assert_bits(one, wanted)


@DEVICES
def test_a_model_trains_as_in_torch_and_as_in_fp32(device):
    """Two layers, trained by the same steps in octile.jax, in octile.torch, and in fp32. Factors of the loss and of the
    step are powers of two, so that no compiler's fused multiply-add rounds differently."""
    tokens, width, steps, rate = 128, 128, 60, 2.0**-1
    x = torch.randn(tokens, width, device=device).bfloat16()
    targets = torch.tanh(x.float() @ torch.randn(width, 64, device=device) / 8)
    start = [torch.randn(256, width, device=device) / 16, torch.randn(64, 256, device=device) / 16]

    weights, theirs = [w.clone().requires_grad_() for w in start], []
    for _ in range(steps):
        h = torch.relu(ot.linear(x, weights[0]))
        error = ot.linear(h, weights[1]).float() - targets
        theirs.append(error.detach())
        made = torch.autograd.grad(error, weights, error * (2 / error.numel()))
        weights = [(w - rate * g).detach().requires_grad_() for w, g in zip(weights, made, strict=True)]

    goal = jax_array(targets, device)

    def train(layer, x):
        def error_of(weights):
            return layer(jax.nn.relu(layer(x, weights[0])), weights[1]).astype(jnp.float32) - goal

        @jax.jit
        def step(weights):
            error, pull = jax.vjp(error_of, weights)
            (made,) = pull(error * (2 / error.size))
            return [w - rate * g for w, g in zip(weights, made, strict=True)], error

        weights, errors = [jax_array(w, device) for w in start], []
        for _ in range(steps):
            weights, error = step(weights)
            errors.append(error)
        return weights, errors

    ours, errors = train(oj.linear, jax_array(x, device))
    assert_bits((ours, errors), (weights, theirs))
    _, plain = train(lambda x, w: x @ w.T, jax_array(x.float(), device))
    losses = [float((e[-1] ** 2).mean()) for e in (errors, plain)]
    assert float((errors[0] ** 2).mean()) > 4 * losses[1]
    assert abs(losses[0] / losses[1] - 1) < 0.02, losses


def layer_of(x=(8, 128), w=(32, 128), b=None, recipe="blockwise", dtype=jnp.bfloat16):
    return lambda: oj.linear(jnp.ones(x, dtype), jnp.ones(w), None if b is None else jnp.ones(b), recipe)


def product_of(w=(32, 128), granularity="128x128", **options):
    x, weight = np.ones((8, 128), np.float32), np.ones(w, np.float32)
    return lambda: oj.gemm(oj.quantize(x), oj.quantize(weight, granularity=granularity), **options)


ALLOWED = "allowed (is|are)"
REFUSALS = [
    (layer_of(w=(31, 128)), ValueError, rf"weight.shape is \(31, 128\); {ALLOWED} n and k that are multiples of 16"),
    (layer_of(x=(8, 96)), ValueError, rf"x.shape is \(8, 96\); {ALLOWED} \(\.\.\., 128\) with a weight \(32, 128\)"),
    (layer_of(x=()), ValueError, rf"x.shape is \(\); {ALLOWED}"),
    (layer_of(b=(31,)), ValueError, rf"bias.shape is \(31,\); {ALLOWED} \(32,\)"),
    (layer_of(dtype=jnp.int32), ValueError, rf"x.dtype is 'int32'; {ALLOWED} bfloat16, float16 and float32"),
    (layer_of(recipe="delayed"), NotImplementedError, "recipe is 'delayed', .* use 'tensorwise'"),
    (layer_of(recipe="fp8"), ValueError, rf"recipe is 'fp8'; {ALLOWED} 'blockwise'"),
    (lambda: oj.linear(1.0, jnp.ones((32, 128))), TypeError, rf"x is of type float; {ALLOWED} jax.Array"),
    (product_of(w=(36, 128)), ValueError, "n is 36; allowed are multiples of 8"),
    (product_of(w=(32, 256)), ValueError, r"b.shape is \(32, 256\); allowed ends in 128"),
    (product_of(dtype=jnp.int8), ValueError, rf"dtype is 'int8'; {ALLOWED}"),
    (product_of(promote=100), ValueError, rf"promote is '100'; {ALLOWED}"),
    (product_of(bias=jnp.ones(31)), ValueError, rf"bias is 'float32\[31\]'; {ALLOWED}"),
    (product_of(granularity="row"), NotImplementedError, "OCTILE_UNSUPPORTED"),
    (product_of(offsets=jnp.zeros(3)), ValueError, rf"offsets.dtype is 'float32'; {ALLOWED} int32"),
    (lambda: oj.gemm(jnp.ones((8, 128)), None), TypeError, rf"a is of type \w+; {ALLOWED} octile.jax.Quantized"),
    (lambda: oj.quantize(jnp.ones(8)), ValueError, rf"x.ndim is 1; {ALLOWED} 2 and 3"),
    (lambda: oj.quantize(jnp.ones((8, 8)), jnp.int8), ValueError, rf"dtype is 'int8'; {ALLOWED} float8_e4m3fn"),
    (lambda: oj.experts(jnp.ones((8, 128)), jnp.ones((2, 32, 128)), jnp.zeros(2, jnp.int32)), ValueError,
     rf"offsets.shape is \(2,\); {ALLOWED} \(3,\)"),
]  # fmt: skip


@pytest.mark.parametrize("refused, error, sentence", REFUSALS, ids=[sentence[:16] for _, _, sentence in REFUSALS])
def test_refusals_name_the_argument(refused, error, sentence):
    with pytest.raises(error, match=sentence):
        refused()
    with pytest.raises(error, match=sentence):
        jax.jit(refused)()


def test_derivatives_that_there_are_not():
    x, w, _, _ = [jax_array(t) for t in tensors(48, 32, 128)]
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(oj.linear, (x, w), (x, w))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: jax.grad(squares(oj.linear))(x, w).astype(jnp.float32).sum())(x)
    with pytest.raises(NotImplementedError, match="OCTILE_UNSUPPORTED"):
        jax.grad(squares(oj.experts), 1)(x, w[None], jnp.array([0, 48], jnp.int32), "rowwise")


def test_the_handlers_raise_what_the_library_says():
    """Python refuses such calls before XLA sees them."""
    x = jnp.ones((8, 128))
    problem = "quantize rows=? cols=129 x=fp32 q=e4m3:1x128 out=row"
    results = [((8, 128), "float8_e4m3fn"), ((1, 8), "float32")]
    for text, sentence in ((problem, "ldx is 128; allowed"), (problem + " hue=1", "hue")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(sentence)):
            jax.block_until_ready(call("quantize", [x], results, text, 8, 1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="allowed"):
        jax.block_until_ready(call("quantize", [x], results, problem, 8, 3))


def run_guide(program):
    """Returns the names that a program of docs/jax.md leaves."""
    guide = (Path(__file__).parents[2] / "docs/jax.md").read_text()
    names = {}
    exec(re.findall("```python\n(.*?)```", guide, re.DOTALL)[program], names)
    return names


def test_the_guide_trains():
    names = run_guide(0)
    assert names["value"] < 0.25 * (names["targets"].astype(jnp.float32) ** 2).mean()


def test_the_guide_trains_a_flax_model_beside_bf16():
    """FP8 rounds a number by at most 2^-4 of it, so its square by 2^-8 / 3 in the mean. Roundings do not depend on each
    other, so their squares add up. Four operands are rounded before the layers' output, and eight before the
    gradients."""
    names, rounding = run_guide(1), 2.0**-8 / 3
    nnx, x, targets, fp8, bf16 = (names[name] for name in ("nnx", "x", "targets", "fp8", "bf16"))
    output = (np.float32(targets) - np.float32(x)).var()  # of trained layers
    assert fp8[-1] < 0.1 * fp8[0]
    assert abs(fp8[-1] - bf16[-1]) < 4 * rounding * output, (fp8[-1], bf16[-1])

    def first_gradients(dense):
        model = names["Block"](128, dense, nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, names["adam"], wrt=nnx.Param)
        names["step"](model, optimizer, x, targets)
        return jax.tree.leaves_with_path(jax.device_get(optimizer.opt_state[0].mu))  # a tenth of them

    ours, theirs = first_gradients(names["Linear"]), first_gradients(nnx.Linear)
    assert len(ours) == 6
    for (name, a), (_, b) in zip(ours, theirs, strict=True):
        part = ((a - b) ** 2).sum() / (b**2).sum()
        assert rounding / 32 < part < 8 * rounding, (name, part / rounding)


def test_jax_is_imported_by_whoever_asks_for_it():
    program = """
import pathlib, sys, octile.numpy, octile._paths
assert "jax" not in sys.modules
def refused():
    try:
        import octile.jax
    except ImportError as error:
        print(error)
sys.modules["jax"] = None
refused()
del sys.modules["jax"]
octile._paths.jax_handlers = lambda: pathlib.Path("none")
refused()
import jax
jax.__version_info__ = 0, 9, 2
refused()
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    without_jax, without_handlers, with_old_jax = said.stdout.splitlines()
    assert "octile.jax needs JAX: pip install 'jax>=0.10'" in without_jax
    assert "install octile again with --no-build-isolation" in without_handlers
    assert "needs jax 0.10 or newer, and this is" in with_old_jax
