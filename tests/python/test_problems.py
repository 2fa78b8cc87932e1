"""`octile compile --for torch` compiles ahead of time the problems that the package asks of the library."""

import json
import subprocess
import sys

import pytest
import torch

import octile
import octile.torch as ot

N, K, EXPERTS, TOKENS = 48, 64, 2, 5
MODEL = {
    "model": "Small",
    "source": "a test",
    "gemms": [{"name": "up", "n": N, "k": K, "split": "none"}],
    "tokens": [8],
    "experts": {"count": EXPERTS, "per_token": 1, "gate_up": {"n": N, "k": K}, "down": {"n": K, "k": N}},
}
OFFSETS = torch.tensor([3, 5])


def compiled(folder, recipe, *words):
    """Returns the problems of a dry run for a model of one layer and, with --ep, of experts."""
    (folder / "model.json").write_text(json.dumps(MODEL))
    run = [octile.command(), "compile", "--model", folder / "model.json", "--recipe", recipe, "--dry-run", *words]
    told = subprocess.run(run, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return set(told.stdout.splitlines())


def calls(layer, k, *offsets, change=ot.weights_changed):
    """Calls a layer in every way in which a model in bf16 does. change: makes its weight another one."""
    x = torch.ones(TOKENS, k, dtype=torch.bfloat16)
    with torch.no_grad():
        layer(x, *offsets)
    for input_gradient, weight_gradient in ((True, True), (False, True), (True, False)):
        layer.weight.requires_grad_(weight_gradient)
        # A weight that a step has changed; of one that is not kept, each pass makes the copy that it needs.
        for kept in (True, False):
            change()
            forget = None if kept else torch.ops.octile.release_weight
            if forget:
                token = torch.ops.octile.keep_weight(layer.weight)
                forget(layer.weight, token)
            layer(x.detach().requires_grad_(input_gradient), *offsets).sum().backward()
            torch.ops.octile.keep_weight(layer.weight)
    layer.weight.requires_grad_(True)
    if isinstance(layer, ot.Linear):
        layer.keeps_input = True
        layer(x).sum().backward()
        layer.keeps_input = False
    layer.weight.main_grad = torch.zeros(layer.weight.shape)
    layer(x, *offsets).sum().backward()


def layers(recipe, experts):
    linear = ot.Linear(K, N, bias=False, dtype=torch.bfloat16, recipe=recipe)
    if not experts:
        return [(linear, K)]
    up, down = (ot.Experts(EXPERTS, a, b, dtype=torch.bfloat16, recipe=recipe) for a, b in ((K, N), (N, K)))
    return [(linear, K), (up, K, OFFSETS), (down, N, OFFSETS)]


ASKED = """
import sys
from test_problems import *
recipe, experts = sys.argv[1], sys.argv[2] == "experts"
made = ot.Recipe("delayed", warmup=1) if recipe == "delayed" else recipe
for one in layers(made, experts):
    calls(*one)
    if recipe == "delayed":
        ot.update_scales(one[0])
        # Scales stay those of a weight that an optimizer changes.
        calls(*one, change=torch.optim.SGD([one[0].weight], lr=0.0).step)
print("\\n".join(ot.problems()))
"""


@pytest.mark.parametrize("recipe, experts", [("blockwise", True), ("delayed", False)])
def test_a_layer_asks_what_was_compiled_for_it(tmp_path, recipe, experts):
    words = [sys.executable, "-W", "ignore", "-c", ASKED, recipe, "experts" if experts else ""]
    ran = subprocess.run(words, capture_output=True, text=True, cwd="tests/python")
    assert ran.returncode == 0, ran.stderr[-800:]
    ahead = compiled(tmp_path, recipe, "--for", "torch", *(("--ep", "1") if experts else ()))
    assert ahead == set(ran.stdout.splitlines())


@pytest.mark.parametrize("recipe", ["tensorwise:f32", "rowwise", "mxfp8"])
def test_other_recipes_compile_their_layers_and_no_others(tmp_path, recipe):
    from octile.torch.recipes import as_recipe

    layer = ot.Linear(K, N, bias=False, dtype=torch.bfloat16, recipe=as_recipe(recipe))
    before = set(ot.problems())
    calls(layer, K)
    asked = set(ot.problems())
    ahead = compiled(tmp_path, recipe, "--for", "torch")
    assert asked - before <= ahead <= asked
    inference = compiled(tmp_path, recipe, "--for", "torch", "--passes", "fprop")
    assert inference < ahead and not any("out=both" in problem or "k=?" in problem for problem in inference)
