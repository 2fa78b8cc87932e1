"""MLPs whose activation a quantiser computes, on a device: beside the host's and beside layers of their own."""

import copy

import pytest
import torch
from gpu import DEVICES, assert_close, assert_equal, passes
from timing import captured
from torch import nn

import octile.torch as ot
from octile.torch.gated import ACTIVATIONS

ops = torch.ops.octile
RECIPES = ("blockwise", "blockwise:f32", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8")


class Mlp(nn.Module):
    """down(act(gate(x)) * up(x)); with ``joined`` one layer computes gate and up, and ``plain`` has no up."""

    def __init__(self, k, i, activation, shape, bias):
        super().__init__()
        self.activation, self.shape = ACTIVATIONS[activation], shape
        self.gate = nn.Linear(k, 2 * i if shape == "joined" else i, bias=bias)
        self.up = nn.Linear(k, i, bias=bias) if shape == "gated" else None
        self.down = nn.Linear(i, k, bias=bias)

    def forward(self, x):
        if self.shape == "plain":
            return self.down(self.activation(self.gate(x)))
        if self.shape == "joined":
            gate, up = self.gate(x).chunk(2, dim=-1)
            return self.down(self.activation(gate) * up)
        return self.down(self.activation(self.gate(x)) * self.up(x))


def sizes(device):
    """Returns k and i, a multiple of 128."""
    return (512, 1408) if device == "cuda" else (64, 128)


def pair_of(device, recipe, activation="silu", shape="gated", bias=True):
    """Returns an MLP that is fused, and the same that is not."""
    with torch.device(device):
        model = nn.ModuleDict({"mlp": Mlp(*sizes(device), activation, shape, bias)}).to(torch.bfloat16)
    plain = copy.deepcopy(model)
    for one, fuse in ((model, True), (plain, False)):
        assert bool(ot.convert(one, recipe, preset="all-linear", min_dims=16, fuse=fuse).fused) == fuse
    return model["mlp"], plain["mlp"]


def data(device):
    k, _ = sizes(device)
    return [torch.randn(300, k).to(device, torch.bfloat16) for _ in range(2)]


def all_passes(module, x, dy, run=None):
    return passes(module if run is None else run, x, dy, parameters=list(module.parameters()))


@DEVICES
@pytest.mark.parametrize("shape", ["gated", "joined", "plain"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_results_are_close_to_the_hosts_and_to_those_of_layers(device, recipe, shape):
    for activation in ACTIVATIONS:
        fused, plain = pair_of(device, recipe, activation, shape)
        x, dy = data(device)
        made = all_passes(fused, x, dy)
        assert_close(made, all_passes(copy.deepcopy(fused).cpu(), x.cpu(), dy.cpu()), 0.02)
        assert_close(made, all_passes(plain, x, dy), 0.05)


@DEVICES
@pytest.mark.parametrize("recipe", RECIPES)
def test_quantisers_equal_the_hosts(device, recipe):
    """Codes and scales of the product have the host's bits, also of columns of a wider matrix."""
    _, i = sizes(device)
    wide = torch.randn(300, 2 * i).to(device, torch.bfloat16)
    code = ot.Recipe(recipe.removesuffix(":f32"), "f32" if recipe.endswith(":f32") else "pow2").code
    for activation in ACTIVATIONS:
        for up in (None, wide[:, i:]):
            made = ops.quantize_activation(wide[:, :i], up, activation, code, True, True)
            other = None if up is None else up.cpu()
            wanted = ops.quantize_activation(wide[:, :i].cpu(), other, activation, code, True, True)
            assert_equal([t.cpu().view(torch.uint8) for t in made], [t.view(torch.uint8) for t in wanted])


@DEVICES
def test_main_grad_adds(device):
    """The gradients that autograd returns are those that are added."""
    fused, _ = pair_of(device, "blockwise", bias=False)
    x, dy = data(device)
    wanted = all_passes(fused, x, dy)[2:]
    for parameter in fused.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    for _ in range(2):
        fused(x.detach().requires_grad_()).backward(dy)
    assert_close([p.main_grad / 2 for p in fused.parameters()], wanted, 0.005)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled_equals_eager(recipe):
    torch._dynamo.reset()
    fused, _ = pair_of("cuda", recipe)
    x, dy = data("cuda")
    assert_equal(all_passes(fused, x, dy), all_passes(fused, x, dy, torch.compile(fused, fullgraph=True)))


@pytest.mark.gpu
def test_a_captured_step_sees_new_inputs_and_weights():
    fused, _ = pair_of("cuda", "blockwise")
    twin = copy.deepcopy(fused)
    x, dy = data("cuda")
    all_passes(fused, x, dy)
    graph, made = captured(lambda: all_passes(fused, x, dy), 0)
    for _ in range(3):
        x.copy_(data("cuda")[0])
        for p in (*fused.parameters(), *twin.parameters()):
            p.data.neg_()
        graph.replay()
        assert_equal(made, all_passes(twin, x, dy))
