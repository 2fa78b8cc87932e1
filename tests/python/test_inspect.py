"""The loss of quantising to FP8, as octile.numpy and octile.torch measure it."""

import fractions
import json
import math
import struct
import subprocess
import warnings

import numpy
import pytest
import torch
import torch.utils.checkpoint
from torch.nn.utils import prune

import octile
import octile.numpy as on
import octile.torch as ot

RECIPES = ["blockwise", "mxfp8", "rowwise:f32", "tensorwise"]


def matrix(rows=150, cols=300, seed=0):
    x = numpy.random.default_rng(seed).standard_normal((rows, cols), numpy.float32)
    x[3, 5] = 1e4
    return x


def snr(x, restored):
    error = x.astype(numpy.float64) - restored
    return 10 * math.log10((x.astype(numpy.float64) ** 2).sum() / (error**2).sum())


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise:f32"])
def test_snr_is_that_of_quantising_and_dequantising(recipe):
    x = matrix()
    kind = {"blockwise": ("128x128", "pow2"), "rowwise": ("row", "pow2"), "tensorwise:f32": ("tensor", "f32")}[recipe]
    restored = on.dequantize(on.quantize(x, "e4m3", *kind))
    loss = on.inspect(x, recipe).tensors[0].losses[recipe]
    # Dequantising rounds to fp32 once more, which powers of two do not need.
    assert loss.snr_db == pytest.approx(snr(x, restored), rel=1e-9 if kind[1] == "pow2" else 1e-6)
    assert loss.flushed == ((restored == 0) & (x != 0)).sum()


def test_numbers_are_those_of_the_command(tmp_path):
    x = matrix()
    numpy.save(tmp_path / "x.npy", x)
    command = [octile.command(), "inspect", "--json", tmp_path / "x.npy", "--recipe", ",".join(RECIPES)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    losses = on.inspect(x, RECIPES).tensors[0].losses
    torches = ot.inspect(torch.from_numpy(x), RECIPES).tensors[0].losses
    for told in json.loads(lines[1])["recipes"]:
        loss = losses[told["recipe"]]
        assert (told["snr_db"], told["rest_snr_db"]) == (loss.snr_db, loss.rest_snr_db)
        assert (told["flushed_share"], told["blocks"]) == (loss.flushed_share, loss.blocks)
        assert told["worst_blocks"][0]["snr_db"] == loss.worst[0].snr_db
        assert loss == torches[told["recipe"]]


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def inspect_command(*arguments):
    """Returns the records of tensors that ``octile inspect`` measures, by their names, and the record of all."""
    command = [octile.command(), "inspect", "--json", *map(str, arguments)]
    lines = [json.loads(line) for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
    return {line["name"]: line for line in lines if line["what"] == "tensor" and "recipes" in line}, lines[-1]


def numbers_of(tensor):
    """Returns what a record of the command has of a tensor, None for an SNR that is not finite."""
    finite = lambda value: value if math.isfinite(value) else None  # noqa: E731
    told = {"elements": tensor.elements, "zeros": tensor.zeros, "nans": tensor.nans, "infinities": tensor.infinities}
    for recipe, loss in tensor.losses.items():
        worst = [(b.row, b.col, b.rows, b.cols, finite(b.snr_db), b.flushed_share, b.amax) for b in loss.worst]
        told[recipe] = (finite(loss.snr_db), finite(loss.rest_snr_db), finite(loss.bulk_snr_db), loss.flushed_share,
                        loss.saturated_share, loss.blocks, loss.set_by_one, worst)
        for form, losses in (("pow2", tensor.pow2), ("f32", tensor.f32)):
            told[recipe, form] = finite(losses[recipe].rest_snr_db) if recipe in losses else None
    return {**told, "amax": tensor.amax}


def numbers_of_record(record):
    told = {name: record[name] for name in ("elements", "zeros", "nans", "infinities", "amax")}
    for one in record["recipes"]:
        worst = [(b["row"], b["col"], b["rows"], b["cols"], b["snr_db"], b["flushed_share"], b["amax"])
                 for b in one["worst_blocks"]]
        told[one["recipe"]] = (one["snr_db"], one["rest_snr_db"], one["bulk_snr_db"], one["flushed_share"],
                               one["saturated_share"], one["blocks"], one["blocks_set_by_one"], worst)
        for form in ("pow2", "f32"):
            told[one["recipe"], form] = one[f"{form}_rest_snr_db"]
    return told


# The recipes are measured over panels that all of them share: rows longer than 4096 have other panels with rowwise.
@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("recipes", [["blockwise", "rowwise"], ["rowwise", "mxfp8"], ["tensorwise", "blockwise"]])
def test_numbers_of_several_recipes_are_those_of_the_command(tmp_path, recipes, sample):
    wide, tall = "model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"
    weights = {wide: matrix(300, 9000), tall: matrix(2000, 700)}
    weights[wide][200, 100] = math.nan
    write_safetensors(tmp_path / "model.safetensors", weights)
    (tmp_path / "config.json").write_text('{"hidden_size": 9000}')
    records, _ = inspect_command(tmp_path, "--recipe", ",".join(recipes), "--sample", sample)
    net = torch.nn.Module()
    for name, x in weights.items():
        *parents, last, _ = name.split(".")
        at = net
        for part in parents:
            at.add_module(part, getattr(at, part, None) or torch.nn.Module())
            at = getattr(at, part)
        at.add_module(last, torch.nn.Linear(*reversed(x.shape), bias=False))
        at.get_submodule(last).weight.data = torch.from_numpy(x)
    for seen in (on.inspect(weights, recipes, sample=sample), ot.inspect(net, recipes, sample=sample)):
        assert {tensor.name for tensor in seen.tensors} == records.keys()
        for tensor in seen.tensors:
            assert numbers_of(tensor) == numbers_of_record(records[tensor.name]), tensor.name
        assert sample == 1 or any(t.elements < math.prod(t.shape) for t in seen.tensors)


def test_several_matrices_and_names(tmp_path):
    x = numpy.stack([matrix(seed=i) for i in range(3)])
    x[2, 7, 7] = 1e9
    numpy.savez(tmp_path / "x.npz", experts=x, vector=x[0, 0], count=numpy.arange(4).reshape(2, 2))
    with numpy.load(tmp_path / "x.npz") as archive:
        seen = on.inspect(archive, "blockwise")
    assert [tensor.name for tensor in seen.tensors] == ["experts"]
    loss = seen["experts"].losses["blockwise"]
    assert loss.worst[0].matrix == 2 and loss.blocks == 3 * 6
    assert loss.signal == sum(on.inspect(one).total().signal for one in x)
    assert seen.worst()[0] == ("experts", loss.rest_snr_db)


def test_values_that_are_not_finite_are_counted():
    x = matrix()
    x[0, :3] = math.nan, math.inf, -math.inf
    seen = on.inspect(x.astype(numpy.float64))
    assert seen.nonfinite == {"array": 3}
    assert "array has 3 NaNs and infinities" in str(seen)
    assert math.isfinite(seen.total().snr_db)


def test_scales_that_are_powers_of_two_against_others():
    x = numpy.full((4, 128), 1.1, numpy.float32)
    seen = on.inspect(x, ["rowwise", "mxfp8"]).tensors[0]
    assert seen.f32["rowwise"].snr_db > seen.pow2["rowwise"].snr_db
    assert seen.gain_db("rowwise") == seen.f32["rowwise"].snr_db - seen.pow2["rowwise"].snr_db > 0
    assert seen.gain_db("mxfp8") is None


def test_an_inspection_is_a_mapping_of_names():
    arrays = {"a": matrix(), "b": matrix(seed=1)}
    seen = on.inspect(arrays)
    assert list(seen) == ["a", "b"] == [name for name, _ in seen.items()]
    assert list(seen.values()) == seen.tensors == [seen["a"], seen["b"]] and len(seen) == 2
    assert "a" in seen and "c" not in seen and 0 not in seen
    assert seen.get("c") is None and seen == on.inspect(arrays)
    with pytest.raises(KeyError, match="c"):
        seen["c"]


def test_tensors_are_ranked_by_what_is_flushed_too():
    good, flushed = matrix(), matrix(seed=1)
    good[3, 5] = 1
    flushed[:2] = 1e9  # two rows have most of the energy, and the others no code
    seen = on.inspect({"good": good, "flushed": flushed}, "tensorwise")
    losses = [seen[name].losses["tensorwise"] for name in ("flushed", "good")]
    assert losses[0].rest_snr_db > losses[1].rest_snr_db and losses[0].rank_db < 0.2 < losses[1].rank_db
    assert [name for name, _ in seen.worst()] == ["flushed", "good"]
    assert [line.split()[0] for line in str(seen).splitlines()[1:]] == ["flushed", "good"]


class Axes:
    """The axes of a plot."""

    def __init__(self):
        self.lines = {}

    def plot(self, x, y, label, **_):
        self.lines[label] = (x, y)

    def __getattr__(self, name):
        return lambda *_, **__: None


def test_tables_and_plots():
    seen = on.inspect({"<a>": matrix(), "b": matrix(seed=1)}, ["blockwise", "mxfp8"])
    assert "&lt;a&gt;" in seen._repr_html_() and seen._repr_html_().count("<tr>") == 5
    assert str(seen).splitlines()[0].split() == ["tensor", "shape", "recipe", "SNR", "rest", "bulk", "flushed",
                                                 "saturated", "fp32", "scales", "worst", "block"]
    axes = Axes()
    assert seen.plot(axes) is axes
    assert axes.lines["mxfp8"] == ([0, 1], [tensor.losses["mxfp8"].rest_snr_db for tensor in seen.tensors])


def model():
    layers = [torch.nn.Embedding(50, 256), torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)]
    return torch.nn.Sequential(*layers).bfloat16()


def test_weights_of_a_model():
    net = torch.nn.ModuleDict({"body": model(), "lm_head": torch.nn.Linear(256, 50)})
    seen = ot.inspect(net, "blockwise")
    assert [tensor.name for tensor in seen.tensors] == ["body.1.weight", "body.3.weight"]
    all_of_them = ot.inspect(net, "blockwise", preset="all-linear")
    assert [tensor.name for tensor in all_of_them.tensors] == ["body.1.weight", "body.3.weight", "lm_head.weight"]


def test_weights_that_are_stored_transposed():
    """transformers' Conv1D and its experts of several releases: [k, n], measured as [n, k] and named as stored."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D

    class Experts(torch.nn.Module):
        def __init__(self, said=None):
            super().__init__()
            if said is not None:
                self.is_transposed = said
            self.gate_up_proj = torch.nn.Parameter(torch.randn(2, 130, 180))
            self.down_proj = torch.nn.Parameter(torch.randn(2, 90, 130))

    experts = {"told": Experts(True), "seen": Experts(), "other": Experts(False)}
    net = torch.nn.ModuleDict({"c_attn": conv1d(390, 130), **experts})
    with torch.no_grad():
        net["c_attn"].weight[7, 300] = 1e4
    seen = ot.inspect(net, RECIPES, preset="all-linear")
    assert {tensor.name: tensor.transposed for tensor in seen.tensors} == {
        "c_attn.weight": True, "told.gate_up_proj": True, "told.down_proj": True, "seen.gate_up_proj": True,
        "seen.down_proj": True, "other.gate_up_proj": False, "other.down_proj": False,
    }  # fmt: skip
    for name, weight in (("c_attn.weight", net["c_attn"].weight), ("seen.down_proj", net["seen"].down_proj)):
        plain = on.inspect(weight.detach().numpy().swapaxes(-1, -2), RECIPES).tensors[0]
        for recipe in RECIPES:
            got, expected = seen[name].losses[recipe], plain.losses[recipe]
            assert (got.signal, got.noise, got.rest_noise) == (expected.signal, expected.noise, expected.rest_noise)
            assert (got.flushed, got.blocks, got.set_by_one) == (expected.flushed, expected.blocks, expected.set_by_one)
            assert [(b.row, b.col, b.rows, b.cols) for b in got.worst] == [
                (b.col, b.row, b.cols, b.rows) for b in expected.worst]
    worst = seen["c_attn.weight"].losses["rowwise:f32"].worst[0]
    assert (worst.row, worst.col, worst.rows, worst.cols) == (0, 300, 130, 1)
    assert "130 x 390 [k, n]" in str(seen)


# Experts with biases [E, n], convolutions, and experts that are saved one by one.
@pytest.mark.parametrize("kind", ["GptOss", "Mamba", "Qwen3Moe"])
def test_weights_are_those_that_the_command_takes_of_the_checkpoint(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "vocab_size": 96, "pad_token_id": 0}
    if kind != "Mamba":
        sizes |= {"intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
        sizes |= {"num_local_experts": 2} if kind == "GptOss" else {"num_experts": 2, "moe_intermediate_size": 128}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    net = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.normal_()
            if name.endswith("bias"):
                parameter[..., 0] = 1e4
    net.save_pretrained(tmp_path)
    recipes = ["blockwise", "rowwise:f32"]
    records, total = inspect_command(tmp_path, "--recipe", ",".join(recipes))
    seen = ot.inspect(net, recipes)
    for told in total["recipes"]:
        of_all = seen.total(told["recipe"])
        assert told["blocks"] == of_all.blocks
        assert told["snr_db"] == pytest.approx(of_all.snr_db, rel=1e-12)
    if kind != "Qwen3Moe":  # whose experts are saved one by one
        assert records.keys() == seen.keys()
        assert all(numbers_of(seen[name]) == numbers_of_record(record) for name, record in records.items())
    assert not [name for name in seen if "bias" in name or "conv" in name]


def test_of_a_computed_weight_its_value_is_measured():
    torch.manual_seed(0)
    parametrizations = torch.nn.utils.parametrizations
    net = torch.nn.ModuleDict({"plain": torch.nn.Linear(40, 50), "shared": torch.nn.Linear(40, 50),
                               "norm": parametrizations.weight_norm(torch.nn.Linear(40, 50)),
                               "spectral": parametrizations.spectral_norm(torch.nn.Linear(40, 50)),
                               "pruned": torch.nn.Linear(40, 50)})  # fmt: skip
    prune.random_unstructured(net["pruned"], "weight", 0.5)
    net["shared"].weight = net["plain"].weight
    with torch.no_grad():
        net["norm"].parametrizations.weight.original0.mul_(1000)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    seen = ot.inspect(net, "rowwise:f32")
    assert list(seen) == ["plain.weight", "norm.weight", "spectral.weight", "pruned.weight"]
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items()) and net["spectral"].training
    for name in ("norm", "pruned"):
        assert seen[f"{name}.weight"].losses == ot.inspect(net[name].weight, "rowwise:f32")["tensor"].losses
    assert seen["pruned.weight"].zeros == 1000


def test_convolutions_are_left_out():
    convolutions = torch.nn.Conv1d(64, 64, 3), torch.nn.Conv1d(64, 64, 4, groups=64)
    net = torch.nn.Sequential(convolutions[0], torch.nn.Linear(64, 64), convolutions[1])
    assert list(ot.inspect(net)) == ["1.weight"]


def test_activations_and_gradients_of_a_running_model():
    net, tokens = model(), torch.randint(0, 50, (4, 16))
    inputs, gradients = [], []
    net[3].register_forward_hook(lambda _, x, y: (inputs.append(x[0]), y.register_hook(gradients.append))[1] and None)
    with ot.watching(net, "blockwise_hybrid", every=2) as watched:
        for _ in range(3):
            net(tokens).float().square().sum().backward()
    assert watched.calls == {"1.input": 2, "3.input": 2, "1.gradient": 2, "3.gradient": 2}
    seen = watched.inspection
    for name, role, values in (("3.input", "activation", inputs), ("3.gradient", "gradient", gradients)):
        once = ot.inspect(values[0].reshape(-1, values[0].shape[-1]), "blockwise_hybrid", role).total()
        assert seen[name].losses["blockwise_hybrid"].signal == 2 * once.signal
        assert seen[name].losses["blockwise_hybrid"].noise == 2 * once.noise
    net(tokens).sum().backward()
    assert watched.calls["1.input"] == 2  # no hook is left
    assert "3.gradient" in str(watched) and "3.gradient" in watched._repr_html_()


def linears():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))


def test_gradients_after_the_block_are_not_measured():
    net, x = linears(), torch.randn(5, 32)
    with ot.watching(net) as watched:
        net(x).sum().backward()
        y = net(x).sum()
    seen = str(watched)
    y.backward()
    assert watched.calls == {"0.input": 2, "2.input": 2, "0.gradient": 1, "2.gradient": 1}
    assert str(watched) == seen


def test_inputs_by_keyword_and_recipes_of_a_generator():
    layer, x = torch.nn.Linear(32, 16), torch.randn(5, 32)
    with ot.watching(layer, (name for name in RECIPES)) as watched:
        layer(input=x)
    assert watched.calls == {"model.input": 1}
    assert list(watched.inspection["model.input"].losses) == watched.inspection.recipes == RECIPES


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_call_that_checkpointing_repeats_counts_once(use_reentrant):
    plain, repeated, x = linears(), linears(), torch.randn(5, 32)
    with ot.watching(plain) as expected:
        plain(x.clone().requires_grad_()).square().sum().backward()
    with ot.watching(repeated) as watched:
        y = torch.utils.checkpoint.checkpoint(repeated, x.clone().requires_grad_(), use_reentrant=use_reentrant)
        y.square().sum().backward()
    assert watched.calls == expected.calls == dict.fromkeys(("0.input", "2.input", "0.gradient", "2.gradient"), 1)
    assert watched.inspection == expected.inspection


def test_layers_that_were_not_called_are_named():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(16, 2)
            self.used, self.spare = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

        def forward(self, x):
            return self.used(self.attention(x, x, x)[0])

    net = Net()
    with ot.watching(net) as watched:
        net(torch.randn(3, 2, 16))
    assert watched.calls == {"used.input": 1}
    remarks = watched.inspection.remarks
    assert len(remarks) == 2 and "attention.out_proj" in remarks[0] and "nn.MultiheadAttention" in remarks[0]
    assert remarks[1] == "not measured, because not called with a matrix of floats: spare"
    assert all(remark in str(watched) and remark in watched._repr_html_() for remark in remarks)
    with ot.watching(linears()) as watched:
        pass
    assert str(watched).splitlines() == [
        "nothing was quantised", "not measured, because not called with a matrix of floats: 0, 2"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: on.inspect(matrix()[0]), r"array.shape is \(300,\)"),
        (lambda: on.inspect(matrix().astype(numpy.int32)), "array.dtype is 'int32'"),
        (lambda: on.inspect(matrix(), "blockwize"), "recipes is 'blockwize'"),
        (lambda: on.inspect(matrix(), []), r"recipes is \[\]"),
        (lambda: on.inspect(matrix(), role="bias"), "role is 'bias'"),
        (lambda: on.inspect(matrix(), sample=0), "sample is 0"),
        (lambda: ot.inspect(torch.ones(3)), r"tensor.shape is \(3,\)"),
        (lambda: ot.inspect(torch.ones(3, 3, dtype=torch.int32)), "tensor.dtype is torch.int32"),
        (lambda: ot.inspect(model(), preset="none"), "preset is 'none'"),
        (lambda: ot.watching(torch.nn.ReLU()).__enter__(), "model is 'ReLU'"),
        (lambda: ot.watching(model(), every=0).__enter__(), "every is 0"),
    ],
)
def test_what_is_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: on.inspect(matrix(), None), TypeError, "recipes is of type NoneType; allowed is a name of"),
        (lambda: ot.inspect(model(), 5), TypeError, "recipes is of type int"),
        (lambda: ot.watching(model(), None).__enter__(), TypeError, "recipes is of type NoneType"),
        (lambda: on.inspect(matrix(), ["blockwise", 5]), ValueError, "recipes is 5; allowed are 'blockwise'"),
        (lambda: on.inspect(matrix(), [["blockwise"]]), ValueError, r"recipes is \['blockwise'\]; allowed are"),
        (lambda: on.inspect(matrix(), sample="1"), ValueError, "sample is '1'; allowed is a number above 0"),
        (lambda: on.inspect(matrix(), sample=True), ValueError, "sample is True"),
        (lambda: on.inspect(matrix(), sample=math.nan), ValueError, "sample is nan"),
        (lambda: on.inspect(numpy.ma.masked_invalid(matrix())), TypeError, "array is of type MaskedArray; allowed"),
        (lambda: on.inspect({"a": numpy.ma.masked_invalid(matrix())}), TypeError, r"array\['a'\] is of type Masked"),
        (lambda: on.inspect(None), TypeError, "array is of type NoneType"),
        (lambda: on.inspect([[1.0], [2.0, 3.0]]), TypeError, "array is of type list; allowed is an argument"),
        (lambda: on.inspect(fp8_array()), ValueError, "'float8_e4m3fn'; allowed are float32.*FP8, its codes"),
        (lambda: ot.inspect(torch.ones(3, 3).to(torch.float8_e5m2)), ValueError, "torch.float8_e5m2.*FP8, its codes"),
        (lambda: ot.inspect(torch.eye(3).to_sparse()), ValueError, "tensor is 'torch.sparse_coo'; allowed is a"),
        (lambda: ot.inspect(torch.eye(3).to_sparse_csr()), ValueError, "tensor is 'torch.sparse_csr'"),
        (lambda: ot.inspect(torch.nested.nested_tensor([torch.eye(3)])), ValueError, "tensor is 'nested'"),
        (lambda: ot.inspect(torch.nn.LazyLinear(4)), ValueError, "weight is 'UninitializedParameter'; allowed is"),
        (lambda: ot.inspect(torch.nn.LazyLinear(4).weight), ValueError, "tensor is 'UninitializedParameter'"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, of its CSR and nested tensors
def test_what_is_refused_by_its_type(call, error, sentence):
    with pytest.raises(error, match="octile: .*" + sentence):
        call()


def fp8_array():
    return matrix().astype(pytest.importorskip("ml_dtypes").float8_e4m3fn)


def test_shares_of_other_number_types():
    assert on.inspect(matrix(), sample=numpy.float32(0.5)) == on.inspect(matrix(), sample=0.5)
    assert on.inspect(matrix(), sample=fractions.Fraction(1)) == on.inspect(matrix(), sample=1)


def test_numbers_beyond_fp32_are_infinities():
    x = matrix().astype(numpy.float64)
    x[0, :4] = 1e300, -1e39, 2.0**128 - 2.0**103, 2.0**128 - 2.0**104
    for invalid in ("warn", "raise"):
        with numpy.errstate(all=invalid), warnings.catch_warnings():
            warnings.simplefilter("error")
            seen = [on.inspect(x)["array"], ot.inspect(torch.from_numpy(x))["tensor"]]
    assert seen[0].losses == seen[1].losses
    assert [(t.infinities, t.amax) for t in seen] == [(3, 2.0**128 - 2.0**104)] * 2


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="model_or_tensor is of type int"):
        ot.inspect(3)
    with pytest.raises(NotImplementedError, match="the tensor is on the meta device"):
        ot.inspect(torch.ones(3, 3, device="meta"))
