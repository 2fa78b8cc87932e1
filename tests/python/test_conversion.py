"""``convert``: which layers it swaps, and what its report says."""

import copy

import pytest
import torch
from reference import ALL_RECIPES
from torch import nn

import octile.torch as ot


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed_tokens = nn.Embedding(32, width)
        self.attention = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.odd = nn.Linear(width, 10)
        self.router = nn.Linear(width, 32)
        self.lm_head = nn.Linear(width, 32, bias=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        return self.lm_head(self.mlp(self.attention(x)))


def test_the_report_says_what_and_why():
    model = Block()
    parameters = dict(model.named_parameters())
    report = ot.convert(model, "rowwise", min_dims=64)
    assert report.converted == {"attention": "[64, 64]", "mlp.0": "[128, 64]", "mlp.2": "[64, 128]"}
    assert report.skipped == {
        "odd": "sizes are no multiples of 16",
        "router": "preset deepseek-v3 leaves 'router'",
        "lm_head": "preset deepseek-v3 leaves 'lm_head'",
    }
    assert isinstance(model.mlp[0], ot.Linear) and model.mlp[0].recipe == ot.Recipe("rowwise")
    assert type(model.odd) is nn.Linear
    assert all(p is parameters[name] for name, p in model.named_parameters())
    text = str(report)
    assert text.startswith("3 linear layers to rowwise, 3 not") and "sizes are no multiples of 16: odd" in text


def test_thresholds_presets_and_filters():
    assert not ot.convert(Block()).converted  # too small to gain
    assert list(ot.convert(Block(1024)).converted) == ["attention", "mlp.0", "mlp.2"]
    assert "lm_head" in ot.convert(Block(), min_dims=32, preset="all-linear").converted
    report = ot.convert(Block(), min_dims=32, filter=lambda name, layer: "mlp" in name and layer.in_features == 64)
    assert list(report.converted) == ["mlp.0"] and report.skipped["attention"] == "the filter leaves it"


def test_layers_that_cannot_be_swapped():
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"special": Special(64, 64), "hooked": nn.Linear(64, 64), "tied": nn.Linear(64, 32)})
    model["hooked"].register_forward_hook(lambda *_: None)
    model["words"] = nn.Embedding(32, 64)
    model["tied"].weight = model["words"].weight
    model["done"] = ot.Linear(64, 64)
    assert ot.convert(model, min_dims=16).skipped == {
        "special": "is a Special, whose forward may differ",
        "hooked": "has hooks",
        "tied": "shares its weight with another module",
        "done": "is an octile.torch.Linear already",
    }


def test_a_layer_at_two_places_stays_one():
    layer = nn.Linear(64, 64)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert list(ot.convert(model, min_dims=16).converted) == ["0", "2"]
    assert model[0] is model[2] and isinstance(model[0], ot.Linear)


def test_a_converted_model_computes_what_its_layers_do():
    model, tokens = Block(), torch.arange(9)
    plain = copy.deepcopy(model)
    ot.convert(model, min_dims=64)
    x = plain.embed_tokens(tokens)
    hidden = ot.linear(x, plain.attention.weight)
    hidden = nn.functional.gelu(ot.linear(hidden, plain.mlp[0].weight, plain.mlp[0].bias))
    hidden = ot.linear(hidden, plain.mlp[2].weight, plain.mlp[2].bias)
    assert model(tokens).equal(plain.lm_head(hidden))
    assert (model(tokens) - plain(tokens)).norm() < 0.1 * plain(tokens).norm()
    model.load_state_dict(plain.state_dict(), strict=True)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: ot.convert(nn.Linear(64, 64)), "model is 'Linear'; allowed is a module that contains linear layers"),
        (lambda: ot.convert(Block(), "fp4"), "recipe is 'fp4'; allowed are 'blockwise'"),
        (lambda: ot.convert(Block(), preset="all"), "preset is 'all'; allowed are 'deepseek-v3', 'all-linear'"),
        (lambda: ot.convert(Block(), min_dims=1.5), "min_dims is 1.5; allowed are an integer and 'auto'"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


@pytest.mark.parametrize("recipe", ALL_RECIPES)
def test_every_recipe_converts_and_trains(recipe):
    model, plain, tokens = Block(), Block(), torch.randint(0, 8, (3, 5))
    plain.load_state_dict(model.state_dict())
    report = ot.convert(model, recipe, min_dims=64)
    assert report.recipe == ot.Recipe(recipe) and report.converted
    for one in (model, plain):
        one(tokens).square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if ours.grad is None:  # of layers that this model does not call
            assert theirs.grad is None
        else:
            assert (ours.grad - theirs.grad).norm() <= 0.2 * theirs.grad.norm(), name


def config_of(name):
    import transformers

    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "vocab_size": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    if name == "Llama":
        return transformers.LlamaConfig(**sizes, **heads)
    if name == "Qwen3Moe":
        return transformers.Qwen3MoeConfig(**sizes, **heads, num_experts=4, moe_intermediate_size=1024, head_dim=128)
    return transformers.DeepseekV3Config(
        **sizes, **heads, n_routed_experts=4, n_group=1, topk_group=1, moe_intermediate_size=1024,
        first_k_dense_replace=1, q_lora_rank=1024, kv_lora_rank=512, num_experts_per_tok=2,
    )  # fmt: skip


# What of each architecture goes to FP8: the projections' names in the first and in the last block.
CONVERTED = {
    "Llama": ({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},) * 2,
    "Qwen3Moe": ({"q_proj", "k_proj", "v_proj", "o_proj"},) * 2,
    "DeepseekV3": (
        {"q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        {"q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_reports_of_the_definitions_in_transformers(name):
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(name))
    report = ot.convert(model)
    for layer, wanted in enumerate(CONVERTED[name]):
        converted = {n.split(".")[-1] for n in report.converted if f".layers.{layer}." in n}
        assert converted == wanted, (layer, converted, report.skipped)
    assert report.skipped["lm_head"] == "preset deepseek-v3 leaves 'lm_head'"
    assert all(type(model.get_submodule(n)) is ot.Linear for n in report.converted)
