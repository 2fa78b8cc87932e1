"""MLPs that convert() finds by their computation, and changes after which their own forward runs again."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import octile.torch as ot

ops = torch.ops.octile
H, INNER = 64, 256


class Mlp(nn.Module):
    def __init__(self, bias=False, inner=INNER):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(H, inner, bias=bias), nn.Linear(H, inner, bias=bias)
        self.down_proj, self.act = nn.Linear(inner, H, bias=bias), nn.SiLU()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x)))


class Joined(nn.Module):
    def __init__(self, cut=lambda y: y.chunk(2, dim=-1), product=lambda g, u: F.silu(g) * u):
        super().__init__()
        self.gate_up, self.down, self.cut, self.product = nn.Linear(H, 2 * INNER), nn.Linear(INNER, H), cut, product

    def forward(self, x):
        gate, up = self.cut(self.gate_up(x))
        return self.down(self.product(gate, up))


class Plain(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(H, INNER), nn.Linear(INNER, H), act

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def converted(mlp, **options):
    """Returns a model with the MLP, fused if possible, the same without, and the report."""
    model = nn.ModuleDict({"mlp": mlp.bfloat16()})
    model.forward = None  # MLPs are called alone
    plain = copy.deepcopy(model)
    ot.convert(plain, min_dims=16, preset="all-linear", fuse=False, **options)
    return model["mlp"], plain["mlp"], ot.convert(model, min_dims=16, preset="all-linear", **options)


def inputs():
    return torch.randn(2, 10, H).bfloat16().requires_grad_()


def gradients(module, x, run=None):
    module.zero_grad()
    x = x.detach().requires_grad_()
    y = (module if run is None else run)(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


def assert_equal(a, b):
    assert len(a) == len(b) and all(p.equal(q) for p, q in zip(a, b, strict=True))


def is_fused(module, x=None):
    """Returns whether a call takes the way of gated_mlp."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.add(function.name())
            return function(*args, **(kwargs or {}))

    names = set()
    with Names():
        module(inputs() if x is None else x)
    return not names.isdisjoint(("octile::quantize_activation", "octile::mlp_output"))


@pytest.mark.parametrize("make", [Mlp, lambda: Mlp(bias=True), Joined])
def test_a_call_without_gradients_is_one_operator(make):
    module = converted(make())[0].eval()
    x = inputs()
    wanted = module(x)
    with torch.no_grad(), torch.autograd.profiler.profile() as profile:
        y = module(x)
    assert y.equal(wanted)
    assert [event.name for event in profile.function_events] == ["octile::mlp_output"]


# ---- what is found


def relu2_by_hand(x):
    r = F.relu(x)
    return r * r


FOUND = {
    "two layers": Mlp,
    "with biases": lambda: Mlp(bias=True),
    "chunk": Joined,
    "split": lambda: Joined(lambda y: torch.split(y, INNER, dim=-1), lambda g, u: u * F.gelu(g, approximate="tanh")),
    "split into sizes": lambda: Joined(lambda y: y.split([INNER, INNER], -1)),
    "chunk by a function": lambda: Joined(lambda y: torch.chunk(y, 2, -1), lambda g, u: torch.mul(u, torch.relu(g))),
    "silu": lambda: Plain(nn.SiLU()),
    "gelu": lambda: Plain(nn.GELU(approximate="tanh")),
    "gelu by erf": lambda: Plain(nn.GELU()),
    "gelu by erf of a function": lambda: Joined(lambda y: y.chunk(2, -1), lambda g, u: F.gelu(g) * u),
    "relu": lambda: Plain(F.relu),
    "squared relu": lambda: Plain(lambda x: F.relu(x).square()),
    "relu to the second": lambda: Plain(lambda x: torch.relu(x) ** 2),
    "relu times relu": lambda: Plain(relu2_by_hand),
    "identity": lambda: nn.Sequential(nn.Linear(H, INNER), nn.GELU(), nn.Identity(), nn.Linear(INNER, H)),
    "sequential": lambda: nn.Sequential(nn.Linear(H, INNER), nn.Dropout(0.0), nn.ReLU(), nn.Linear(INNER, H)),
}


@pytest.mark.parametrize("name", FOUND)
def test_mlps_are_found_and_computed(name):
    mlp, plain, report = converted(FOUND[name]())
    assert (
        report.fused == ["mlp"]
        and not report.unfused
        and "MLPs whose activation quantisers compute: mlp" in str(report)
    )
    x = inputs()
    assert is_fused(mlp) and not is_fused(plain)
    for a, b in zip(gradients(mlp, x), gradients(plain, x), strict=True):
        assert (a.double() - b.double()).norm() < 0.05 * b.double().norm()
    assert list(mlp.state_dict()) == list(plain.state_dict()) and isinstance(mlp, type(plain))


def test_mlps_of_transformers_are_found():
    transformers = pytest.importorskip("transformers")
    from transformers.activations import ACT2FN
    from transformers.models.llama.modeling_llama import LlamaMLP
    from transformers.models.phi3.modeling_phi3 import Phi3MLP

    for act in ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2"):
        config = transformers.LlamaConfig(hidden_size=H, intermediate_size=INNER, hidden_act=act)
        for kind in (LlamaMLP, Phi3MLP):
            mlp, plain, report = converted(kind(config))
            assert report.fused == ["mlp"], (act, kind, report.unfused)
            x = inputs()
            assert (mlp(x) - plain(x)).norm() < 0.05 * plain(x).norm()
    _, _, report = converted(Plain(ACT2FN["quick_gelu"]))
    assert report.unfused == {"mlp": NONE}


class Scaled(Mlp):
    def forward(self, x):
        return 2 * super().forward(x)


class Training(Mlp):
    def forward(self, x):
        return super().forward(x) if self.training else super().forward(x) + 1


class Counting(Mlp):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


class Branching(Mlp):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


OTHER = "its forward is not down(act(gate(x)) * up(x))"
NONE = "its activation is none of those that quantisers compute: SiLU, GELU, ReLU and its square"
NOT_FOUND = {
    "another scale": (Scaled, OTHER),
    "training differs": (Training, OTHER),
    "it counts": (Counting, "its forward changes its attributes"),
    "it branches": (Branching, OTHER),
    "up, then gate": (
        lambda: Joined(product=lambda u, g: F.silu(g) * u),
        "the outputs of its first layer are up, then gate",
    ),
    "other halves": (lambda: Joined(lambda y: (y[..., ::2], y[..., 1::2])), OTHER),
    "halves of rows": (lambda: Joined(lambda y: y.chunk(2, dim=-2)), OTHER),
    "the sum": (lambda: Joined(product=lambda g, u: F.silu(g) + u), NONE),
    "another activation": (lambda: Plain(nn.Softplus()), NONE),
    "sigmoid": (lambda: Plain(nn.Sigmoid()), "its activation is sigmoid, which PyTorch computes"),
    "a silu that is scaled": (lambda: Joined(product=lambda g, u: F.silu(g * 1.7) * u), OTHER),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(H, INNER), nn.ReLU(), nn.Dropout(0.1), nn.Linear(INNER, H)),
        "it has dropout",
    ),
    "narrow": (lambda: Mlp(inner=208), "its inner size is not a multiple of 128"),
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_no_such_mlp_stays_and_the_report_says_why(name):
    make, reason = NOT_FOUND[name]
    mlp, plain, report = converted(make())
    assert not report.fused and report.unfused == {"mlp": reason}
    assert f"MLPs that compute as before, because {reason}: mlp" in str(report)
    x = inputs().detach().abs()
    assert not hasattr(mlp, "calls")  # of a forward that counts
    if name not in ("dropout", "halves of rows"):  # of which the second can not be called
        assert mlp(x).equal(plain(x))


class Mixer(nn.Module):
    def __init__(self, *others):
        super().__init__()
        self.up, self.down, self.others = nn.Linear(H, INNER), nn.Linear(INNER, H), nn.ModuleList(others)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def test_the_report_names_no_modules_that_are_no_mlps():
    for make in (
        lambda: nn.TransformerEncoderLayer(H, 4, INNER, activation="gelu"),
        lambda: Mixer(nn.LayerNorm(H)),
        lambda: Mixer(nn.Conv1d(H, H, 3)),
        lambda: nn.Sequential(nn.Linear(H, INNER), nn.ReLU(), nn.Linear(INNER, 16), nn.ReLU()),  # DLRM's bottom
    ):
        _, _, report = converted(make())
        assert report.fused == [] and report.unfused == {}
    _, _, report = converted(Mixer())
    assert report.unfused == {"mlp": OTHER}


class OfT5(nn.Module):
    """As transformers writes T5's."""

    def __init__(self):
        super().__init__()
        self.wi_0, self.wi_1, self.wo = nn.Linear(H, INNER), nn.Linear(H, INNER), nn.Linear(INNER, H)

    def forward(self, x):
        x = F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x)
        if isinstance(self.wo.weight, torch.Tensor) and x.dtype != self.wo.weight.dtype:
            x = x.to(self.wo.weight.dtype)
        return self.wo(x)


def test_a_forward_that_asks_for_types_is_fused_in_the_weights_type():
    mlp, plain, report = converted(OfT5())
    x = inputs()
    assert report.fused == ["mlp"] and is_fused(mlp)
    assert (mlp(x) - plain(x)).norm() < 0.05 * plain(x).norm()
    assert not is_fused(mlp, x.float()) and mlp(x.float()).equal(plain(x.float()))
    mlp.wo.weight.data = mlp.wo.weight.data.float()
    assert not is_fused(mlp)

    class OfValues(OfT5):
        def forward(self, x):
            return super().forward(x) if self.wo.weight.sum() > 0 else x

    assert converted(OfValues())[2].unfused == {"mlp": OTHER}


def test_layers_that_are_not_converted_or_are_delayed():
    mlp = nn.ModuleDict({"mlp": Mlp()})
    report = ot.convert(mlp, min_dims=16, preset="all-linear", filter=lambda name, layer: "up" not in name)
    assert report.unfused == {"mlp": "its up_proj is not converted"}
    _, _, report = converted(Mlp(), recipe="delayed")
    assert report.unfused == {"mlp": "recipe 'delayed' has its activation computed by PyTorch"}
    with pytest.raises(TypeError, match="fuse is of type int; allowed is bool"):
        ot.convert(mlp, fuse=1)


# ---- what stays true of a fused MLP


def test_copies_of_the_model_are_fused_and_of_their_own():
    mlp, _, _ = converted(Mlp(bias=True))
    x = inputs()
    wanted, file = gradients(mlp, x), io.BytesIO()
    torch.save(mlp, file)
    file.seek(0)
    for other in (copy.deepcopy(mlp), torch.load(file, weights_only=False)):
        assert is_fused(other) and type(other) is type(mlp)
        assert_equal(gradients(other, x), wanted)
        with torch.no_grad():
            other.down_proj.weight.zero_()
        assert not other(x).sub(other.down_proj.bias).any() and mlp(x).equal(wanted[0])


def test_a_fused_mlp_is_freed_with_its_last_owner():
    mlp, _, _ = converted(Mlp())
    mlp(inputs()).sum().backward()
    gone = weakref.ref(mlp.gate_proj.weight)
    gc.collect()
    gc.disable()
    try:
        del mlp
        assert gone() is None
    finally:
        gc.enable()


def test_compiled_and_checkpointed_calls_have_the_bits_of_eager_ones():
    mlp, _, _ = converted(Mlp(bias=True))
    x = inputs()
    wanted = gradients(mlp, x)
    compiled = torch.compile(mlp, fullgraph=True, backend="aot_eager")
    assert_equal(gradients(mlp, x, compiled), wanted)
    for reentrant in (False, True):
        assert_equal(gradients(mlp, x, lambda x, r=reentrant: checkpoint(mlp, x, use_reentrant=r)), wanted)
    ot.set_fp8(mlp, False)
    assert compiled(x).equal(mlp(x)) and not is_fused(mlp)


def test_a_compiled_mlp_quantises_its_input_with_its_siblings_and_keeps_no_product():
    from test_memory import of_compiled

    class Siblings(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp, self.other = Mlp(), nn.Linear(H, H)

        def forward(self, x):
            return self.mlp(x) + self.other(x)

    model = Siblings().bfloat16()
    assert ot.convert(model, min_dims=16, preset="all-linear").fused == ["mlp"]
    x = inputs()
    made, (forward, backward) = of_compiled(model, x)
    assert forward.count("octile.quantize_input.default") == 1 and "octile.quantize_input.default" not in backward
    assert backward.count("octile.quantize_activation.default") == 1  # of the product again, for dW
    assert backward.count("octile.quantize_gradients.default") == 1
    names = list(backward)  # what is as large as the product is read for the last time before the first GEMM of gate
    assert names.index("octile.quantize_activation.default") < names.index("octile.quantized_backward.default")
    assert not any("silu" in name for name in (*forward, *backward))
    assert made[0].equal(model(x))


CHANGES = {
    "hook": lambda mlp: mlp.up_proj.register_forward_hook(lambda *_: None),
    "pre-hook": lambda mlp: mlp.gate_proj.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda mlp: mlp.down_proj.register_full_backward_hook(lambda *_: None),
    "hook of the activation": lambda mlp: mlp.act.register_forward_hook(lambda *_: None),
    "forward of its own": lambda mlp: setattr(mlp.up_proj, "forward", mlp.up_proj.forward),
    "another activation": lambda mlp: setattr(mlp, "act", nn.GELU(approximate="tanh")),
    "another layer": lambda mlp: setattr(mlp, "down_proj", nn.Linear(INNER, H).bfloat16()),
    "dropout": lambda mlp: setattr(mlp.dropout, "p", 0.5),
    "without fp8": lambda mlp: ot.set_fp8(mlp, False),
    "one without fp8": lambda mlp: setattr(mlp.up_proj, "fp8", False),
    "few tokens": lambda mlp: setattr(mlp.down_proj, "least_tokens", (21, 21, 21)),
    "another class's forward": lambda mlp: setattr(mlp, "__class__", type("Other", (Scaled,), {})),
    "frozen to FP8": lambda mlp: ot.freeze_to_fp8(nn.ModuleList([mlp])),
    "a sentry of calls": lambda mlp: ot.sentry(mlp, check="call"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_a_child_is_seen_by_the_next_call(name):
    mlp, plain, _ = converted(Mlp())
    x = inputs()
    assert is_fused(mlp)
    torch.manual_seed(0)
    CHANGES[name](mlp)
    torch.manual_seed(0)
    CHANGES[name](plain)
    assert not is_fused(mlp)
    for one in (mlp, plain):
        torch.manual_seed(0)
        one.result = one(x)
    assert mlp.result.equal(plain.result)


def test_hooks_of_children_see_their_calls_and_global_ones_too():
    mlp, _, _ = converted(Mlp())
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m).__name__))
    mlp(inputs())
    handle.remove()
    assert seen.count("Linear") == 3 and is_fused(mlp)
    handle = mlp.up_proj.register_forward_hook(lambda *_: seen.append("up"))
    mlp(inputs())
    handle.remove()
    assert seen[-1] == "up" and is_fused(mlp)
    mlp.register_forward_hook(lambda *_: seen.append("mlp"))  # of the MLP itself
    assert is_fused(mlp) and seen[-1] == "mlp"


def test_global_backward_hooks_see_all_layers():
    mlp, _, _ = converted(Mlp())
    seen = []
    handle = nn.modules.module.register_module_full_backward_hook(lambda m, *_: seen.append(type(m).__name__))
    mlp(inputs()).sum().backward()
    handle.remove()
    assert seen.count("Linear") == 3 and seen.count("SiLU") == 1 and is_fused(mlp)


def test_what_the_class_and_the_activation_compute_is_compared():
    mlp, _, _ = converted(nn.Sequential(nn.Linear(H, INNER), nn.GELU(approximate="tanh"), nn.Linear(INNER, H)))
    assert is_fused(mlp)
    mlp[1].approximate = "none"
    assert not is_fused(mlp)
    mlp, _, _ = converted(Mlp())
    before, Mlp.forward = Mlp.forward, lambda self, x: x
    try:
        assert mlp(x := inputs()) is x
    finally:
        Mlp.forward = before
    assert is_fused(mlp)


def test_a_model_that_is_an_mlp():
    mlp = Mlp().bfloat16()
    report = ot.convert(mlp, min_dims=16, preset="all-linear")
    assert report.fused == ["model"] and is_fused(mlp)


def test_functions_that_are_attributes_are_compared():
    mlp, _, _ = converted(Joined())
    assert is_fused(mlp)
    mlp.product = lambda g, u: g * u
    assert not is_fused(mlp)


def test_calls_otherwise_than_with_one_tensor_compute_as_the_class_does():
    mlp, plain, _ = converted(Mlp())
    x = inputs()
    assert mlp(x=x).equal(plain(x=x))
    with pytest.raises(TypeError):
        mlp(x, x)


def test_convert_again_and_a_schedule():
    mlp, plain, _ = converted(Mlp())
    x = inputs()
    schedule = ot.Schedule(mlp, begin=1)
    schedule.step(0)
    assert not is_fused(mlp) and mlp(x).equal(F.linear(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x), mlp.down_proj.weight))
    schedule.step(1)
    assert is_fused(mlp)
    holder = nn.ModuleList([mlp])
    assert ot.convert(holder, min_dims=16, preset="all-linear").fused == ["0"] and is_fused(mlp)
    mlp.act = nn.Softplus()
    report = ot.convert(holder, min_dims=16, preset="all-linear")
    assert report.unfused == {"0": NONE} and type(mlp) is Mlp


def test_a_sentry_sees_the_products_of_a_fused_mlp():
    mlp, _, _ = converted(Mlp())
    watch = ot.sentry(mlp)
    mlp(inputs()).sum().backward()
    assert is_fused(mlp) and not watch.step()
    with torch.no_grad():
        mlp.gate_proj.weight[3, 5] = torch.inf
    with pytest.warns(UserWarning, match="not finite"):
        mlp(inputs()).sum().backward()
        assert watch.step()
    counts = watch.counts
    assert counts["gate_proj"].output == counts["down_proj"].output == 1 and counts["up_proj"].output == 0
    assert counts["gate_proj"].input_gradient == counts["down_proj"].weight_gradient == 1


@pytest.mark.parametrize("copies", ["none", "rowwise", "both"])
def test_weights_are_kept_by_their_policy(copies):
    mlp, plain, _ = converted(Mlp(), weights=copies)
    x = inputs()
    for _ in range(2):
        before = ops.weight_copies_made()
        first, second = gradients(mlp, x), gradients(mlp, x)
        assert ops.weight_copies_made() - before == {"none": 12, "rowwise": 9, "both": 6}[copies]
        assert_equal(first, second)
        with torch.no_grad():
            for p in mlp.parameters():
                p.mul_(0.5)
    assert not torch.isnan(first[0]).any() and plain is not mlp


def test_warmup_prepares_what_calls_ask():
    for make, into in ((lambda: Mlp(bias=True), None), (Joined, torch.float32)):
        mlp, _, _ = converted(make(), recipe="blockwise:f32")
        ot.warmup(mlp, (20, 20), main_grad=into)
        if into is not None:
            for p in (mlp.gate_up.weight, mlp.down.weight):
                p.main_grad = torch.zeros_like(p, dtype=into)
        known = set(ot.problems())
        gradients(mlp, inputs())
        assert {p for p in ot.problems() if "src=" in p or "acc=1" in p} <= known


def test_exported_and_traced_models():
    mlp, _, _ = converted(Mlp())
    x = inputs().detach()
    exported = torch.export.export(mlp, (x,))
    assert exported.module()(x).equal(mlp(x))
    assert "octile.quantize_activation.default" in str(exported.graph)
