"""``convert``: which layers it swaps, and what its report says."""

import copy
import json
import os
import re
import statistics
import subprocess
from pathlib import Path

import pytest
import torch
from reference import ALL_RECIPES
from torch import nn

import octile.torch as ot
from octile._paths import command
from octile.torch.thresholds import EXPERTS, LAYERS, measured, points_of, thresholds_of, thresholds_of_recipe


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
        "odd": "sizes are not multiples of 16",
        "router": "router by its name 'router' (preset deepseek-v3)",
        "lm_head": "output layer by its name 'lm_head' (preset deepseek-v3)",
    }
    assert isinstance(model.mlp[0], ot.Linear) and model.mlp[0].recipe == ot.Recipe("rowwise")
    assert type(model.odd) is nn.Linear
    assert all(p is parameters[name] for name, p in model.named_parameters())
    text = str(report)
    assert text.startswith("3 linear layers to rowwise, 3 not") and "sizes are not multiples of 16: odd" in text


def test_thresholds_presets_and_filters():
    report = ot.convert(Block())
    assert not report.converted and report.skipped["attention"] == "too small to gain at any measured number of tokens"
    with torch.device("meta"):
        report = ot.convert(Block(8192))
    assert list(report.converted) == ["attention", "mlp.0", "mlp.2"]
    assert "lm_head" in ot.convert(Block(), min_dims=32, preset="all-linear").converted
    report = ot.convert(Block(), min_dims=32, filter=lambda name, layer: "mlp" in name and layer.in_features == 64)
    assert list(report.converted) == ["mlp.0"] and report.skipped["attention"] == "the filter leaves it"


def test_calls_of_few_tokens_compute_as_nn_linear_does(monkeypatch):
    table = thresholds_of("a card", {"blockwise": [[32, 64, 64, True, False], [128, 64, 64, True, True]]})
    monkeypatch.setattr("octile.torch.thresholds.measured", lambda of: table)
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32))
    plain = copy.deepcopy(model)[0]
    report = ot.convert(model)
    assert report.converted == {
        "0": "[128, 64], FP8 from 32 tokens a call on, in eval() from 2048 on (from 128 on after trust_weights)"
    }
    assert report.skipped == {"1": "too small to gain at any measured number of tokens"}
    assert "thresholds: blockwise by verdicts measured on a card\n  1 of [128, 64], FP8 from 32 tokens a call on" in str(report)
    for least, training, trusted in ((32, True, False), (2048, False, False), (128, False, True)):
        model.train(training)
        ot.trust_weights(model, trusted)
        for tokens in (least - 1, least):
            x = torch.randn(tokens, 1, 64)
            in_fp8 = ot.linear(x, plain.weight, plain.bias)
            assert model[0](x).equal(plain(x) if tokens < least else in_fp8)
    assert model[0].least_tokens == (32, 128, 2048)
    # Told that there are always enough, a layer does not ask.
    model = nn.Sequential(copy.deepcopy(plain))
    ot.convert(model, tokens=(128, 4096))
    assert model[0].least_tokens == (0, 0, 2048)
    model = nn.Sequential(copy.deepcopy(plain))
    assert ot.convert(model, tokens=31).skipped == {"0": "gains from 32 tokens on, and calls have at most 31"}


def test_a_model_that_is_too_small_is_told_how_to_convert_it_all_the_same():
    model = nn.Sequential(nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 64), nn.Linear(64, 7))
    report = ot.convert(model)
    assert not report.converted and report.min_dims == 64
    assert str(report).endswith("\n  convert(model, min_dims=64) asks no thresholds, and converts these layers too")
    again = ot.convert(model, min_dims=report.min_dims)
    assert list(again.converted) == ["0", "2"] and again.min_dims is None
    assert "min_dims" not in str(again)


def test_few_tokens_under_compile():
    torch._dynamo.reset()
    model = nn.Sequential(ot.Linear.from_linear(nn.Linear(64, 32), least_tokens=(40, 40, 40)))
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (77, 129, 39, 7):
        x = torch.randn(tokens, 64)
        wanted = ot.linear(x, model[0].weight, model[0].bias) if tokens >= 40 else model(x)
        assert compiled(x).equal(wanted)


def test_thresholds_follow_from_verdicts():
    table = thresholds_of(
        "a card",
        {
            "blockwise": [
                [128, 4096, 4096, False, True],
                [2048, 4096, 4096, True, None],
                [512, 8192, 8192, True, None],
                [4096, 2048, 2048, False, None],
            ],
            "tensorwise": [[64, 16, 16, True, True]],
        },
    )
    assert table.least_tokens(4096, 4096) == 2048
    assert table.least_tokens(8192, 8192) == 512
    assert table.least_tokens(8192, 4096) == 2048  # the larger point does not speak for it
    assert table.least_tokens(4096, 4095) is None
    assert table.least_tokens(1024, 1024) is None
    assert table.least_tokens(4096, 4096, training=False) == 128
    assert table.least_tokens(1024, 1024, "tensorwise") == 64
    assert table.least_tokens(4096, 4096, "rowwise") == 2048  # not measured
    noisy = thresholds_of("a card", {"blockwise": [[128, 64, 64, True, None], [512, 64, 64, False, None]]})
    assert noisy.least_tokens(64, 64) is None and noisy.least_tokens(128, 128) == 128


def test_rows_of_experts_count_in_all_and_an_expert():
    rows = [
        [16 * 256, 2048, 768, False, True, 16],
        [16 * 512, 2048, 768, True, True, 16],
        [16 * 256, 4096, 1536, True, True, 16],
        [128 * 256, 2048, 768, True, True, 128],
    ]
    table = thresholds_of("a card", {"blockwise": rows})

    def least(n, k, experts, training=True):
        return table.least_tokens(n, k, "blockwise", training, experts)

    assert least(2048, 768, 16) == 16 * 512
    assert least(4096, 1536, 16) == 16 * 256
    assert least(2048, 512, 16) is None and least(1024, 768, 16) is None
    assert least(2048, 768, 32) == 32 * 512  # as many rows an expert as measured with 16
    assert least(2048, 768, 127) == 128 * 256  # as many rows in all as measured with 128
    assert least(2048, 768, 256) == 256 * 256
    assert least(2048, 768, 8) == 16 * 512  # as many rows in all
    assert least(2048, 768, 3) == 16 * 512
    assert least(2048, 768, 8, training=False) == 16 * 256
    # A loss with fewer rows, in all and an expert, says nothing of more.
    table = thresholds_of("a card", {"blockwise": [[512, 64, 64, False, None, 2], [4096, 64, 64, True, None, 32]]})
    assert least(64, 64, 2) == 4096 and least(64, 64, 32) == 4096 and least(32, 64, 2) is None
    # A loss with more of both says otherwise.
    table = thresholds_of("a card", {"blockwise": [[512, 64, 64, True, None, 4], [9000, 64, 64, False, None, 8]]})
    assert least(64, 64, 4) is None and least(64, 64, 8) is None and least(64, 64, 128) == 128 * 128


def test_estimates_serve_a_card_of_another_kind_until_it_is_measured(monkeypatch):
    where = "octile.torch.thresholds."
    monkeypatch.setattr(where + "card_here", lambda: "NVIDIA Test")
    monkeypatch.setattr(where + "_is_like_measured", lambda: False)
    monkeypatch.setattr(where + "_device_here", lambda: "h20")
    table, told = thresholds_of_recipe("rowwise")
    assert told == "rowwise by estimates for NVIDIA Test, on which thresholds.py has not run"
    assert table.card == "NVIDIA Test" and list(table.points) == ["rowwise"]
    shipped = measured(LAYERS).points["blockwise"]
    assert {p[:3] for p in table.points["rowwise"]} >= {(8192, 8192, 8192), (128, 4096, 4096)}
    assert len(table.points["rowwise"]) >= len(shipped) and table.points["rowwise"] != shipped
    # An H20's tensor cores are slow beside its memory: FP8 gains from few tokens on.
    assert table.least_tokens(8192, 8192, "rowwise") <= 2048
    assert table.least_tokens(1024, 1024, "rowwise", training=False) is not None
    monkeypatch.setattr(where + "_device_here", lambda: "gpu of nobody")
    table, told = thresholds_of_recipe("rowwise")
    assert table is measured(LAYERS) and "could not be estimated (octile: " in told and "gpu of nobody" in told
    # Experts pay by estimates if both of their weights do.
    monkeypatch.setattr(where + "_device_here", lambda: "h20")
    rows = {"blockwise": [[16 * rows, 4096, 2048, True, True, 16] for rows in (16, 4096)]}
    monkeypatch.setattr(where + "measured", lambda of: thresholds_of("another card", rows))
    table, told = thresholds_of_recipe("blockwise", EXPERTS)
    assert told == "experts of blockwise by estimates for NVIDIA Test, on which thresholds.py has not run"
    few, many = table.points["blockwise"]
    assert few[:4] == (16 * 16, 4096, 2048, False) and many == (16 * 4096, 4096, 2048, True, True, 16)
    monkeypatch.setattr(where + "measured", measured)
    # Once the table is this card's, or of its kind, nothing is estimated.
    monkeypatch.setattr(where + "card_here", lambda: measured(LAYERS).card)
    assert thresholds_of_recipe("blockwise") == (measured(LAYERS), f"blockwise by verdicts measured on {measured(LAYERS).card}")
    monkeypatch.setattr(where + "card_here", lambda: "NVIDIA Test")
    monkeypatch.setattr(where + "_is_like_measured", lambda: True)
    assert thresholds_of_recipe("blockwise") == (measured(LAYERS), f"blockwise by verdicts measured on {measured(LAYERS).card}")


def verdict(mode, tokens, eager, n=64, k=64, **changes):
    record = {
        "what": f"layer model=M layer=self_attn.q_proj mode={mode} tokens={tokens} n={n} k={k} recipe=blockwise",
        "card": {"name": "NVIDIA Test"}, "ok": True, "median": 40, "peers": [{"name": "bf16", "median": 60}],
        "details": {"groups": 0, "bf16": "measured", "verdict": "pays", "verdict_eager": eager},
    }  # fmt: skip
    return json.dumps(record | changes)


def test_verdicts_of_this_card_are_its_thresholds(monkeypatch, tmp_path):
    path = tmp_path / "verdicts.jsonl"
    pays = {"groups": 0, "bf16": "measured", "verdict_eager": "pays"}
    small = {"n": 16, "k": 16}
    lines = [
        verdict("training", 2048, "pays"),
        verdict("training", 256, "pays"),
        verdict("training", 256, "even"),  # the last one counts
        verdict("prefill", 512, "pays"),  # call by call: as a graph FP8 pays in all of them
        verdict("decode", 64, "loses"),
        verdict("training", 16, "pays", **small, ok=False),
        verdict("training", 16, "pays", **small, card={"name": "NVIDIA Other"}),
        verdict("training", 16, "pays", **small, details=pays | {"groups": 8}),
        verdict("training", 16, "pays", **small, details=pays | {"bf16": "estimated"}),
        verdict("training", 16, "pays", **small, details={"groups": 0, "bf16": "measured"}),  # of an earlier version
        json.dumps({"what": "gemm m=1", "card": {"name": "NVIDIA Test"}, "ok": True}),
    ]
    path.write_text("\n".join(lines))
    monkeypatch.setenv("OCTILE_VERDICTS", str(path))

    def converted(recipe="blockwise"):
        return ot.convert(nn.Sequential(nn.Linear(64, 64)), recipe)

    monkeypatch.setattr("octile.torch.thresholds.card_here", lambda: "NVIDIA Test")
    report = converted()
    assert report.thresholds == f"blockwise by verdicts measured on NVIDIA Test, in {path}"
    assert report.converted == {
        "0": "[64, 64], FP8 from 2048 tokens a call on, in eval() from 2048 on (from 512 on after trust_weights)"
    }
    # Where they do not serve, the report says why the shipped ones do.
    shipped = "blockwise by verdicts measured on NVIDIA H100 80GB HBM3"
    told = f"{shipped}; not OCTILE_VERDICTS={path}: "
    assert converted("rowwise").thresholds == told + "it has no verdicts of recipe rowwise on NVIDIA Test"
    monkeypatch.setattr("octile.torch.thresholds.card_here", lambda: None)
    assert converted().thresholds == told + "no GPU is here"
    monkeypatch.setattr("octile.torch.thresholds.card_here", lambda: "NVIDIA Test")
    path.write_text("no JSON")
    assert converted().thresholds == told + "it is not a file of records: line 1: it is not JSON"
    groups = {"verdict_eager": "pays", "groups": 16}
    experts = "layer model=M layer=experts mode=training tokens=64 n=64 k=64 recipe=blockwise"
    for change, why in (
        ({"details": groups | {"rows": "8192"}}, "details.rows is missing or of another type"),
        ({"what": experts, "details": groups}, "details.rows is missing or of another type"),
        ({"details": groups | {"groups": "16", "rows": 1}}, "details.groups is missing or of another type"),
        ({"details": ["verdict_eager"]}, "details is missing or of another type"),
        ({"card": "NVIDIA Test"}, "card is missing or of another type"),
        ({"ok": "false"}, "ok is missing or of another type"),
        ([], "it is not an object"),
        ("[" * 100_000, "it is not JSON"),
    ):
        line = change if isinstance(change, str) else json.dumps(json.loads(lines[0]) | change if change else change)
        path.write_text("\ufeff" + "\n".join([lines[0], "", line]))
        assert converted().thresholds == told + f"it is not a file of records: line 3: {why}"
    path.unlink()
    os.mkfifo(path)
    assert converted().thresholds == told + "it is not a file of records: it is not a regular file"
    monkeypatch.delenv("OCTILE_VERDICTS")
    assert converted().thresholds == shipped


def test_verdicts_on_experts_are_those_of_whole_modules(monkeypatch, tmp_path):
    path = tmp_path / "verdicts.jsonl"
    module = verdict("training", 4096, "pays", n=4096, k=1536).replace("self_attn.q_proj", "mlp.experts")
    details = {"groups": 16, "rows": 4096 * 8, "gain_eager": 2.0, "verdict": "pays", "verdict_eager": "pays"}

    def experts(what=module, **changes):
        return json.loads(what) | {"details": details | changes}

    lines = [
        experts(),
        experts(module.replace("4096 n=", "2048 n="), rows=2048 * 8, verdict="even"),  # compiled, both take as long
        experts(module.replace("4096 n=", "1024 n="), rows=1024 * 8, verdict_eager="even"),
        experts(module.replace("mlp.experts", "mlp.experts.down_proj")),  # a single weight, by `octile bench verdict`
        experts(groups=8, bf16="estimated"),
        json.loads(verdict("training", 512, "pays")),
    ]
    points = points_of(lines, "NVIDIA Test", EXPERTS)["blockwise"]
    assert points == tuple((t * 8, 4096, 1536, t == 4096, None, 16) for t in (4096, 2048, 1024))
    assert points_of(lines, "NVIDIA Test") == {"blockwise": ((512, 64, 64, True, None, 1),)}
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setenv("OCTILE_VERDICTS", str(path))
    monkeypatch.setattr("octile.torch.thresholds.card_here", lambda: "NVIDIA Test")
    shipped = thresholds_of("a card", {"blockwise": [[16, 64, 32, True, True, 4]]})
    monkeypatch.setattr("octile.torch.thresholds.measured", {EXPERTS: shipped}.__getitem__)
    table, told = thresholds_of_recipe("blockwise", EXPERTS)
    assert told == f"experts of blockwise by verdicts measured on NVIDIA Test, in {path}"
    assert table.points["blockwise"] == points
    # A file without experts leaves the shipped ones.
    path.write_text(verdict("training", 512, "pays"))
    table, told = thresholds_of_recipe("blockwise", EXPERTS)
    assert table is shipped
    assert told.endswith(f"; not OCTILE_VERDICTS={path}: it has no verdicts of experts of recipe blockwise on NVIDIA Test")


FOLDER = Path(ot.__file__).parent


@pytest.mark.parametrize("of, card, count", [(LAYERS, "H100", 70), (EXPERTS, "H200", 31)])
def test_the_shipped_verdicts_are_the_commands(of, card, count):
    path = FOLDER / f"{of}.jsonl"
    judged = subprocess.run([command(), "bench", "verdict", "--judge", path], capture_output=True, text=True)
    assert list(map(json.loads, judged.stdout.splitlines())) == list(map(json.loads, path.read_text().splitlines()))
    assert card in measured(of).card and list(measured(of).points) == ["blockwise"]
    points = measured(of).points["blockwise"]
    assert len(points) >= count and all(None not in point for point in points)


def test_the_shipped_verdicts_choose_only_what_was_measured_to_gain():
    for of in (LAYERS, EXPERTS):
        for record in map(json.loads, (FOLDER / f"{of}.jsonl").read_text().splitlines()):
            tokens, n, k = (int(re.search(rf" {of}=(\d+)", record["what"])[1]) for of in ("tokens", "n", "k"))
            details = record["details"]
            tokens, experts = details.get("rows", tokens), details.get("groups", 1)
            least = measured(of).least_tokens(n, k, "blockwise", " mode=training " in record["what"], experts)
            gain = statistics.median(record.get("samples", [record.get("median")]))
            assert least is None or least > tokens or min(gain, details["gain_eager"]) >= 1.0, record["what"]


def test_experts_of_128_gain_at_8192_tokens():
    """Qwen3-30B-A3B: 512 rows an expert. A step of 4 of its layers is 1.09 times as fast on an H200, compiled."""
    least = measured(EXPERTS).least_tokens(2048, 768, experts=128)
    assert least is not None and least <= 8192 * 8


def test_the_shipped_verdicts_decide_as_measured():
    """least_tokens.txt: from how many tokens on FP8 pays at the measured sizes, beside and between them. New verdicts
    write it anew."""
    for line in (Path(__file__).parent / "least_tokens.txt").read_text().splitlines():
        first, *numbers = line.split()
        if first in ("training", "forward"):
            mode, sizes = first, numbers
            continue
        found = [measured(LAYERS).least_tokens(int(first), int(k), training=mode == "training") for k in sizes]
        assert numbers == ["-" if least is None else str(least) for least in found], (mode, first)


def test_layers_that_cannot_be_swapped():
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"special": Special(64, 64), "tied": nn.Linear(64, 32)})
    model["words"] = nn.Embedding(32, 64)
    model["tied"].weight = model["words"].weight
    model["done"] = ot.Linear(64, 64)
    assert ot.convert(model, min_dims=16).skipped == {
        "special": "is a Special, whose forward may differ",
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
        (lambda: ot.convert(Block(), min_dims=1.5), "min_dims is 1.5; allowed are an integer from 0 on and 'auto'"),
        (lambda: ot.convert(Block(), tokens=(5, 4)), "tokens is (5, 4); allowed are a number from 0 on and (lo, hi)"),
        (lambda: ot.convert(Block(), tokens=-1), "tokens is -1; allowed are a number from 0 on and (lo, hi)"),
        (lambda: ot.convert(Block(), min_dims=64, tokens=5), "tokens is 5; allowed is None with an integer min_dims"),
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

    sizes = {"hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 2, "vocab_size": 512}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    if name == "Llama":
        return transformers.LlamaConfig(**sizes, **heads)
    if name == "Qwen3Moe":
        return transformers.Qwen3MoeConfig(**sizes, **heads, num_experts=4, moe_intermediate_size=4096, head_dim=128)
    return transformers.DeepseekV3Config(
        **sizes, **heads, n_routed_experts=4, n_group=1, topk_group=1, moe_intermediate_size=4096,
        first_k_dense_replace=1, q_lora_rank=4096, kv_lora_rank=512, num_experts_per_tok=2,
    )  # fmt: skip


# The FP8 layers of each architecture: the projections' names in the first and in the last block.
CONVERTED = {
    "Llama": ({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},) * 2,
    "Qwen3Moe": ({"q_proj", "k_proj", "v_proj", "o_proj", "experts"},) * 2,
    "DeepseekV3": (
        {"q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        {"q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts"},
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
    assert report.skipped["lm_head"] == "output layer by its name 'lm_head' (preset deepseek-v3)"
    assert all(type(model.get_submodule(n)) is ot.Linear for n in report.converted if n not in report.experts)
