"""``octile.torch.shapes`` against `octile shapes` of the same configuration, and back into the command."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import octile.torch as ot


def command(*words):
    words = [sys.executable, "-m", "octile", "shapes", "--json", *words]
    called = subprocess.run(words, check=False, capture_output=True, text=True)
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)["models"]


TINY = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen2": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3_moe": {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    made, words, folders = {}, [], []
    for kind, keys in TINY.items():
        config = transformers.AutoConfig.for_model(kind, num_hidden_layers=3, vocab_size=256, **keys)
        folder = tmp_path_factory.mktemp(kind)
        folders.append(folder)
        config.save_pretrained(folder)
        with torch.device("meta"):
            made[kind] = transformers.AutoModelForCausalLM.from_config(config)
        words += ["--model", str(folder)]
    told = command("--layout", "separate", *words)
    return {kind: (model, of, at) for (kind, model), of, at in zip(made.items(), told, folders, strict=True)}


def of_module(weight):
    return {key: value for key, value in weight.items() if "heads" not in key and key != "kv_n"} | {"split": "?"}


@pytest.mark.parametrize("kind", TINY)
def test_a_module_has_the_weights_of_its_configuration(models, tmp_path, kind):
    model, wanted, folder = models[kind]
    found = ot.shapes(model)
    [document] = json.loads(found.to_json())["models"]
    by_role = {weight["role"]: weight for weight in document["weights"]}
    # A module does not say how tensor parallelism would divide it; the command knows by its name.
    assert by_role == {weight["role"]: of_module(weight) for weight in wanted["weights"]}
    assert document["parameters"] == wanted["parameters"]
    assert document["layers"] == 3
    assert "lm_head" in {row.role for row in found.left_out}
    assert str(found).splitlines()[0].split() == ["weight", "layers", "n", "k", "bias", "groups", "why"]
    (tmp_path / "shapes.json").write_text(found.to_json())  # the command reads it again
    for ranks in ("1", "2", "4"):
        words = ("--layout", "separate", "--tp", ranks)
        [again] = command("--model", str(tmp_path / "shapes.json"), *words)
        [by_config] = command("--model", str(folder), *words)
        assert {w["role"]: w for w in again["weights"]} == {w["role"]: w for w in by_config["weights"]}


def test_converted_layers_and_lists_of_experts_count_too():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(32, 64, bias=False)
            self.odd = nn.Linear(32, 24)
            self.experts = nn.ModuleList(nn.ModuleDict({"w1": nn.Linear(32, 48)}) for _ in range(4))
            self.grouped = ot.Experts(3, 32, 16)

    model = nn.ModuleDict({"blocks": nn.ModuleList(Block() for _ in range(2)), "router": nn.Linear(32, 16)})
    before = ot.shapes(model, "rowwise")
    told = {row.role: row for row in before.rows}
    assert told["up"] == ot.model_shapes.Row("up", 2, 64, 32)
    assert told["experts.w1"] == ot.model_shapes.Row("experts.w1", 2, 48, 32, True, 4, 1)
    assert told["grouped"] == ot.model_shapes.Row("grouped", 2, 16, 32, False, 3, 1)
    assert told["odd"].why == "sizes are not multiples of 16"
    assert "router" in told["router"].why
    [document] = json.loads(before.to_json())["models"]
    [up] = (weight for weight in document["weights"] if weight["role"] == "up")
    assert up["bytes_per_token"] == 2 * (64 * 32 + 4 * 64)
    ot.convert(model, min_dims=16)
    assert ot.shapes(model, "rowwise").weights == before.weights


def test_shapes_refuse_what_is_no_model():
    with pytest.raises(TypeError, match="model is of type int; allowed is torch.nn.Module"):
        ot.shapes(3)
    with pytest.raises(ValueError, match="recipe is 'fp4'"):
        ot.shapes(nn.Sequential(nn.Linear(16, 16)), "fp4")
    with pytest.raises(ValueError, match="preset is 'none'"):
        ot.shapes(nn.Sequential(nn.Linear(16, 16)), preset="none")
