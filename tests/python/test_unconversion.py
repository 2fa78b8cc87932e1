"""Other recipes for converted models, and the way back."""

import copy

import pytest
import torch
from torch import nn

import octile.torch as ot


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 128), nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(64)), 1e-6

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def model_of():
    torch.manual_seed(0)
    return nn.ModuleDict({"norm": Norm(), "mlp": Mlp(), "last": nn.Linear(64, 64)})


def run(model, x):
    return model["last"](model["mlp"](model["norm"](x)))


def converted(model, recipe="blockwise", **options):
    return ot.convert(model, recipe, min_dims=16, preset="all-linear", **options)


def test_a_second_call_changes_the_recipe():
    x, changed, fresh = torch.randn(9, 64), model_of(), model_of()
    layer = changed["last"]
    converted(changed)
    run(changed, x)
    ot.set_fp8(changed["last"], False)
    report = converted(changed, "tensorwise", weights="both")
    converted(fresh, "tensorwise")
    assert set(report.converted) == {"mlp.gate", "mlp.up", "mlp.down", "last"} and report.fused == ["mlp"]
    assert changed["last"] is layer and layer.recipe == ot.Recipe("tensorwise") and not layer.fp8
    ot.set_fp8(changed, True)
    assert run(changed, x).equal(run(fresh, x)) and layer._rule.copies == "both"
    assert converted(changed, "tensorwise").skipped["last"] == "is an octile.torch.Linear already"


def test_what_a_second_call_leaves_keeps_its_recipe():
    model = model_of()
    converted(model)
    report = converted(model, "rowwise", filter=lambda name, _: name == "last")
    assert report.skipped["mlp.up"] == "the filter leaves it; keeps recipe blockwise"
    assert model["mlp"].up.recipe.name == "blockwise" and model["last"].recipe.name == "rowwise"
    model["made"] = ot.Linear(64, 64, recipe="mxfp8")  # by hand: its recipe was chosen
    converted(model, "tensorwise")
    assert model["made"].recipe.name == "mxfp8" and model["last"].recipe.name == "tensorwise"


def test_delayed_scaling_begins_anew():
    model, x = model_of(), torch.randn(9, 64)
    converted(model, "delayed")
    run(model, x).sum().backward()
    ot.update_scales(model)
    assert model["last"]._scaling.steps == 1
    converted(model, ot.Recipe("delayed", history=4))
    assert model["last"]._scaling.steps == 0 and model["last"].recipe.history == 4
    converted(model)
    assert model["last"]._scaling is None


def test_the_way_back_gives_what_was_there():
    model, x = model_of(), torch.randn(9, 64)
    plain, state = copy.deepcopy(model), dict(model.state_dict(keep_vars=True))
    called = []
    model["last"].register_forward_hook(lambda *_: called.append(1))
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    converted(model, "delayed")
    converted(model)
    run(model.eval(), x)
    report = ot.unconvert(model.train())
    assert report.layers == ["mlp.gate", "mlp.up", "mlp.down", "last"] and report.fused == ["norm", "mlp"]
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert all(state[name] is tensor for name, tensor in model.state_dict(keep_vars=True).items())
    new = {name: set(vars(module)) - attributes[name] for name, module in model.named_modules()}
    assert not any(names - {"_is_on"} for names in new.values())
    assert run(model, x).equal(run(plain, x)) and len(called) == 2
    assert "4 layers are nn.Linear again, 0 FP8 modules stay\n  nn.Linear: mlp.gate" in str(report)
    assert ot.unconvert(model).layers == [] and len(converted(model).converted) == 4


def test_encoders_have_their_fast_path_again():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 1)
    before = model.use_nested_tensor, model.layers[0].activation_relu_or_gelu
    converted(model)
    assert (model.use_nested_tensor, model.layers[0].activation_relu_or_gelu) != before
    ot.unconvert(model)
    assert (model.use_nested_tensor, model.layers[0].activation_relu_or_gelu) == before


def test_experts_change_their_recipe_and_come_back():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=1, vocab_size=32, num_experts=2,
        num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    tokens = torch.arange(9)[None]
    wanted, kinds = model(tokens).last_hidden_state, [type(m) for m in model.modules()]
    other = copy.deepcopy(model)
    assert converted(model).experts == converted(other, "tensorwise").experts == ["layers.0.mlp.experts"]
    assert converted(model, "tensorwise").experts == ["layers.0.mlp.experts"]
    assert model(tokens).last_hidden_state.equal(other(tokens).last_hidden_state)
    assert ot.unconvert(model).experts == ["layers.0.mlp.experts"]
    assert [type(m) for m in model.modules()] == kinds and model.layers[0].mlp.experts.config is model.config
    assert model(tokens).last_hidden_state.equal(wanted)


def test_frozen_layers_and_experts_made_by_hand_stay():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), ot.Experts(2, 64, 64))
    ot.freeze_to_fp8(model, lambda name, _: name == "0")
    converted(model)
    report = ot.unconvert(model)
    assert report.layers == ["1"] and report.skipped == {
        "0": "is frozen in FP8: thaw_from_fp8 gives nn.Linear back",
        "2": "is an octile.torch.Experts, which was made as one",
    }


@pytest.mark.parametrize(
    "change, told",
    [
        (ot.primary_fp8, "one whose '0' has its weight held in FP8'?; allowed is a model before primary_fp8"),
        (ot.sentry, "one whose '0' is watched by a sentry"),
    ],
)
def test_models_that_are_more_than_converted_are_refused(change, told):
    model = nn.Sequential(nn.Linear(64, 64)).bfloat16()
    converted(model)
    kept = change(model)
    with pytest.raises(ValueError) as raised:
        ot.unconvert(model)
    assert told.replace("'?", "") in str(raised.value).replace('"', "") and type(model[0]) is ot.Linear and kept is not None
    with pytest.raises(ValueError, match="is a module that contains such layers"):
        ot.unconvert(model[0])
