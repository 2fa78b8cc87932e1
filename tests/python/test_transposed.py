"""transformers' Conv1D, the layers of GPT-2, in FP8."""

import copy
import pickle

import pytest
import torch
from torch import nn

import octile.torch as ot

pytest.importorskip("transformers")
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

NAMES = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 96, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=2))


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise", "delayed", "rowwise"])
def test_layers_of_gpt2_compute_as_linear_layers(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(32, 64))
    nn.init.normal_(model[0].bias)
    twin = ot.Linear(64, 32, recipe=recipe)
    with torch.no_grad():
        twin.weight.copy_(model[0].weight.t())
        twin.bias.copy_(model[0].bias)
    weight, x = model[0].weight, torch.randn(3, 5, 64)
    assert ot.convert(model, recipe, min_dims=16).converted == {"0": "[32, 64], whose weight lies [in, out]"}
    results = []
    for layer in (model[0], twin):
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        y.square().sum().backward()
        dw = layer.weight.grad
        results.append((y, inputs.grad, dw.t() if layer is twin else dw, layer.bias.grad))
    assert all(ours.equal(theirs) for ours, theirs in zip(*results, strict=True))
    assert model[0].weight is weight and isinstance(model[0], Conv1D)


def test_gpt2_is_converted_trains_and_comes_back():
    model, tokens = gpt2(), torch.arange(12)[None]
    plain, kinds = copy.deepcopy(model), [type(m) for m in model.modules()]
    report = ot.convert(model, min_dims=16)
    assert list(report.converted) == [f"transformer.h.0.{name}" for name in NAMES] and not report.others
    for one in (model, plain):
        one(tokens, labels=tokens).loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 0.2 * theirs.grad.norm(), name
    shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    model.load_state_dict(plain.state_dict())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied(tokens).logits.equal(model(tokens).logits)
    assert not model(tokens).logits.equal(plain(tokens).logits)
    assert ot.status(model).layers["transformer.h.0.mlp.c_fc"].fp8 > 0
    assert "weight=[in, out], recipe=blockwise)" in repr(model)
    with ot.set_fp8(model, False):
        assert model(tokens).logits.equal(plain(tokens).logits)
    assert len(ot.convert(model, "tensorwise", min_dims=16).converted) == 4
    assert len(ot.unconvert(model).layers) == 4 and [type(m) for m in model.modules()] == kinds
    assert model(tokens).logits.equal(plain(tokens).logits)


def test_others_know_of_them():
    model, tokens = gpt2().bfloat16(), torch.arange(12)[None]
    ot.convert(model, min_dims=16)
    assert ot.warmup(model, tokens=(12, 12)) == 4
    sentry = ot.sentry(model)
    sentry.run(lambda: model(tokens, labels=tokens).loss.backward())
    assert not sentry.found_nonfinite
    sentry.remove()
    with ot.underflow(model) as seen:
        model(tokens, labels=tokens).loss.backward()
    assert set(seen.layers) == {f"transformer.h.0.{name}" for name in NAMES}
    with pytest.raises(ValueError):  # nothing else can be held
        ot.primary_fp8(model)


def test_reasons_to_stay():
    class Other(Conv1D):
        pass

    model = nn.ModuleDict({"mlp": Conv1D(64, 64), "odd": Conv1D(9, 64), "other": Other(64, 64), "head": Conv1D(64, 64)})
    with pytest.warns(UserWarning, match="converted nothing"):
        report = ot.convert(model, min_dims=16, filter=lambda name, _: name != "mlp")
    assert report.skipped == {
        "mlp": "the filter leaves it",
        "odd": "sizes are not multiples of 16",
        "other": "is a Other, whose forward may differ",
        "head": "output layer by its name 'head' (preset deepseek-v3)",
    }
