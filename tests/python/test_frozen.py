"""Layers whose weight is FP8 in memory and is not trained: values, gradients, memory, and adapters on top."""

import copy
import io

import pytest
import reference
import torch
from torch import nn

import octile.torch as ot

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def frozen(n=144, k=272, bias=True, dtype=torch.bfloat16):
    """Returns a layer that was frozen, and the nn.Linear that it was."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(k, n, bias, dtype=dtype))
    model = copy.deepcopy(plain)
    assert ot.freeze_to_fp8(model).converted == {"0": f"[{n}, {k}]"}
    return model[0], plain[0]


def codes_of(layer):
    """Returns the codes of a layer as bytes."""
    return layer.state_dict()["weight"].view(torch.uint8)


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def fp8(x):
    """Returns x as the layer's GEMMs see it, in FP64."""
    return ot.quantize(x.detach(), scales="f32").dequantize().double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, k", [(144, 272), (16, 16), (256, 128)])
def test_output_and_gradient_against_fp64_of_the_dequantised_weight(n, k, dtype):
    layer, plain = frozen(n, k, dtype=dtype)
    weight = layer.dequantize(torch.float32).double()
    assert 0 < relative(weight, plain.weight) < 0.04
    x, dy = torch.randn(3, 7, k, dtype=dtype, requires_grad=True), torch.randn(3, 7, n, dtype=dtype)
    y = layer(x)
    y.backward(dy)
    assert y.dtype == x.grad.dtype == dtype and y.shape == (3, 7, n) and x.grad.shape == x.shape
    xs, dys = fp8(x.reshape(21, k)), fp8(dy.reshape(21, n))
    y_size = xs.abs() @ weight.abs().t() + layer.bias.double().abs()
    reference.assert_close(y.reshape(21, n), (xs @ weight.t() + layer.bias.double(), y_size))
    reference.assert_close(x.grad.reshape(21, k), (dys @ weight, dys.abs() @ weight.abs()))
    assert relative(x.grad, dy.double() @ weight) < 0.05  # the error of dy's FP8
    with torch.no_grad():
        assert layer(x).equal(y)


def test_a_frozen_weight_takes_a_byte_an_element_and_nothing_beside():
    layer, plain = frozen(256, 512, bias=False)
    held = {name: t.element_size() * t.numel() for name, t in layer.state_dict().items()}
    assert held == {"weight": 256 * 512, "weight_scale_inv": 2 * 4 * 4}
    assert dict(layer.named_parameters())["weight"].dtype == torch.float8_e4m3fn and plain.weight.element_size() == 2
    x, kept = torch.randn(8, 512, dtype=torch.bfloat16, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x).sum().backward()
    own = {parameter.data_ptr() for parameter in layer.parameters()}
    assert kept and {t.data_ptr() for t in kept} == own  # of x nothing is kept
    assert not [t for t in vars(layer).values() if isinstance(t, torch.Tensor)]


def test_the_weight_is_not_trained_and_the_bias_may_be():
    layer, _ = frozen()
    assert not any(p.requires_grad for p in layer.parameters())
    layer.bias.requires_grad_()
    dy = torch.randn(5, 144, dtype=torch.bfloat16)
    layer(torch.randn(5, 272, dtype=torch.bfloat16)).backward(dy)
    assert layer.bias.grad.equal(dy.sum(0, dtype=torch.float32).bfloat16()) and layer.weight.grad is None


def test_tokens_of_none_and_one():
    layer, _ = frozen()
    for shape in ((0, 272), (2, 0, 272), (272,)):
        x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.shape == (*shape[:-1], 144) and x.grad.shape == x.shape


def test_casts_move_the_weight_and_keep_its_bytes():
    layer, _ = frozen()
    codes, scales = codes_of(layer).clone(), layer.weight_scale_inv.clone()
    for cast in (nn.Module.half, nn.Module.float, lambda m: m.to(torch.bfloat16)):
        cast(layer)
        assert codes_of(layer).equal(codes) and layer.weight_scale_inv.equal(scales)
    assert layer.bias.dtype == torch.bfloat16
    meta = layer.to("meta")
    assert meta.weight.is_meta and meta.state_dict()["weight"].dtype == torch.float8_e4m3fn


def test_state_round_trips_by_the_names_of_checkpoints():
    layer, plain = frozen()
    x = torch.randn(5, 272, dtype=torch.bfloat16)
    other = ot.FrozenLinear(272, 144, dtype=torch.bfloat16)
    assert not other(x).any()
    other.load_state_dict(layer.state_dict(), strict=True)
    with torch.device("meta"):
        assigned = ot.FrozenLinear(272, 144, dtype=torch.bfloat16)
    powers = torch.exp2(torch.round(torch.log2(layer.weight_scale_inv)))
    for state in (layer.state_dict(), layer.state_dict() | {"weight_scale_inv": powers.to(torch.float8_e8m0fnu)}):
        assigned.load_state_dict(state, strict=True, assign=True)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for copied in (other, copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert copied(x).equal(layer(x)) and copied.compute_dtype == torch.bfloat16
    assert assigned.weight_scale_inv.equal(powers) and assigned(x).isfinite().all()
    with pytest.raises(RuntimeError, match=r"state_dict\['weight'\].dtype is torch.bfloat16; allowed is torch.float8"):
        layer.load_state_dict(plain.state_dict(), strict=False)
    layer.reset_parameters()
    assert not layer(x).any()


def test_frozen_and_thawed_again():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)).bfloat16()
    model[1].weight = model[0].weight
    report = ot.freeze_to_fp8(model, filter=lambda name, _: name != "2")
    assert str(report).startswith("2 linear layers to frozen FP8, 1 not") and type(model[2]) is nn.Linear
    assert len({id(layer._parameters["weight"]) for layer in model[:2]}) == 1 and len(list(model.parameters())) == 6
    assert ot.freeze_to_fp8(model).skipped["0"] == "is an octile.torch.FrozenLinear already"
    weight = model[0].dequantize(torch.float32)
    assert ot.thaw_from_fp8(model, torch.float32) == 3 and ot.thaw_from_fp8(model) == 0
    assert all(type(layer) is nn.Linear and not layer.weight.requires_grad for layer in model)
    assert model[0].weight is model[1].weight and model[0].weight.equal(weight)
    x = torch.randn(4, 64)
    torch.testing.assert_close(model[0](x), x @ weight.t() + model[0].bias)
    assert set(vars(model[0])) == set(vars(nn.Linear(64, 64)))


def test_layers_of_convert_are_frozen_and_not_the_other_way():
    model = nn.Sequential(nn.Linear(64, 64))
    ot.convert(model, "delayed", min_dims=16)
    assert list(ot.freeze_to_fp8(model).converted) == ["0"] and type(model[0]) is ot.FrozenLinear
    assert ot.convert(model, min_dims=16).skipped == {"0": "is a FrozenLinear, whose forward may differ"}
    ot.thaw_from_fp8(model)
    assert set(vars(model[0])) == set(vars(nn.Linear(64, 64)))


def test_what_is_refused():
    layer, _ = frozen()
    for call, sentence in (
        (lambda: ot.freeze_to_fp8(nn.Linear(64, 64)), "model is 'Linear'; allowed is a module that contains"),
        (lambda: ot.thaw_from_fp8(layer), "model is 'FrozenLinear'; allowed is a module that contains such layers"),
        (lambda: ot.FrozenLinear(100, 64), "in_features is 100; allowed are multiples of 16"),
        (lambda: ot.FrozenLinear(64, 64, dtype=torch.float64), "dtype is torch.float64; allowed are torch.bfloat16"),
        (lambda: layer(torch.ones(4, 100)), "x.shape is (4, 100); allowed is (..., 272)"),
        (lambda: layer(torch.ones(4, 272).double()), "x.dtype is torch.float64; allowed are torch.bfloat16"),
    ):
        with pytest.raises(ValueError) as raised:
            call()
        assert f"octile: {sentence}" in str(raised.value)


def test_autocast_and_compile():
    layer, _ = frozen()
    x = torch.randn(5, 272, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (5, 130):
        a, b = (torch.randn(tokens, 272, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
        compiled(a).square().sum().backward()
        layer(b).square().sum().backward()
        assert a.grad.equal(b.grad)


def test_encoders_of_pytorch_call_frozen_layers():
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    layer = copy.deepcopy(plain)
    assert list(ot.freeze_to_fp8(layer).converted) == ["linear1", "linear2"]
    x = torch.randn(2, 5, 64)
    with torch.no_grad():  # then PyTorch has kernels that read weights themselves
        assert 0 < relative(layer(x), plain(x)) < 0.05


class Adapted(nn.Module):
    """A low-rank adapter on top of a layer, named as peft names its parts."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, False, dtype=base.weight.dtype)
        self.lora_B = nn.Linear(rank, base.out_features, False, dtype=base.weight.dtype)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_adapters_on_frozen_layers_train_as_on_others():
    def train(freeze):
        torch.manual_seed(0)
        model = nn.Sequential(Adapted(nn.Linear(64, 128)), nn.GELU(), Adapted(nn.Linear(128, 32)))
        model.requires_grad_(False)
        for name, p in model.named_parameters():
            p.requires_grad_("lora" in name)
        if freeze:
            report = ot.freeze_to_fp8(model)
            assert list(report.converted) == ["0.base_layer", "2.base_layer"]
        before = {name: p.detach().view(torch.uint8).clone() for name, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, target = torch.randn(256, 64), torch.randn(256, 32)
        losses = []
        for _ in range(40):
            loss = (model(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        changed = {n for n, p in model.named_parameters() if not p.detach().view(torch.uint8).equal(before[n])}
        assert changed == {n for n, _ in model.named_parameters() if "lora" in n}
        return losses

    ours, theirs = train(True), train(False)
    assert ours[-1] < 0.9 * ours[0] and abs(ours[-1] - theirs[-1]) < 0.02 * theirs[-1]


def test_a_frozen_weight_is_read_as_its_values():
    layer, plain = frozen()
    weight, values = layer.weight, layer.dequantize()
    assert weight.dtype == layer.compute_dtype and weight.shape == plain.weight.shape
    assert weight.clone().equal(values) and weight.float().equal(values.float()) and weight.t().equal(values.t())
    assert weight.data.to(torch.float32).norm(dim=1).equal(values.float().norm(dim=1)) and weight[3].equal(values[3])
    x, y = torch.randn(5, 272, dtype=torch.bfloat16), torch.randn(144, 272, dtype=torch.bfloat16)
    assert nn.functional.linear(x, weight).equal(x @ values.t()) and (weight + y).equal(values + y)
    assert relative(values, plain.weight) < 0.04 and copy.deepcopy(weight).clone().equal(values)
    assert weight.codes.view(torch.uint8).equal(codes_of(layer))


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.weight.data.add_(1),
        lambda layer: layer.weight.data.copy_(torch.zeros(144, 272)),
        lambda layer: layer.weight.t().zero_(),
        lambda layer: layer.weight.__setitem__(0, 1),
        lambda layer: setattr(layer.weight, "data", torch.zeros(144, 272)),
        lambda layer: nn.init.normal_(layer.weight),
    ],
)
def test_writes_into_a_frozen_weight_are_refused(write):
    layer, _ = frozen()
    before = codes_of(layer).clone()
    with torch.no_grad(), pytest.raises(NotImplementedError, match="^octile: .* into a frozen weight.*thaw_from"):
        write(layer)
    assert codes_of(layer).equal(before)


def loaded_by_assignment():
    state = frozen()[0].state_dict()
    with torch.device("meta"):
        layer = ot.FrozenLinear(272, 144, dtype=torch.bfloat16)
    layer.load_state_dict(state, assign=True)
    return layer


def pickled():
    file = io.BytesIO()
    torch.save(frozen()[0], file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "made",
    [
        lambda: frozen()[0],
        lambda: copy.deepcopy(frozen()[0]),
        lambda: ot.FrozenLinear(272, 144),
        lambda: frozen()[0].to("meta").to_empty(device="cpu"),
        loaded_by_assignment,
        pickled,
    ],
)
def test_a_frozen_weight_refuses_to_be_trained(made):
    layer = made()
    parameter = dict(layer.named_parameters())["weight"]
    for train in (
        lambda: layer.requires_grad_(),
        lambda: nn.Sequential(layer).requires_grad_(True),
        lambda: parameter.requires_grad_(),
        lambda: setattr(parameter, "requires_grad", True),
        lambda: layer.weight.requires_grad_(),
        lambda: setattr(layer.weight, "requires_grad", True),
    ):
        with pytest.raises(NotImplementedError, match="octile: a gradient is required of a frozen weight, .*thaw_from_fp8"):
            train()
    layer.requires_grad_(False)
    parameter.requires_grad = False
    assert not parameter.requires_grad and not layer.weight.requires_grad
    layer._parameters["weight"] = nn.Parameter(parameter.data, True)
    with pytest.raises(NotImplementedError, match="octile: a gradient is required of a frozen weight"):
        layer(torch.ones(1, 272))
    assert ot.thaw_from_fp8(model := nn.Sequential(layer)) == 1 and model.requires_grad_()[0].weight.requires_grad


@pytest.mark.parametrize("shape", [(8, 272), (2, 8, 272), (272,), (0, 272)])
@pytest.mark.parametrize("write", ["add", "relu", "residual", "slice"])
def test_results_are_written_in_place(shape, write):
    layer, _ = frozen()

    def gradients(in_place):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
        residual = torch.ones((*shape[:-1], 144), dtype=torch.bfloat16, requires_grad=True)
        y = layer(x)
        if not in_place:
            y = y.clone()
        if write == "slice":
            y[..., :3] *= 2
        else:
            y = {"add": lambda: y.add_(1), "relu": y.relu_, "residual": lambda: y.add_(residual * 3)}[write]()
        y.float().square().sum().backward()
        return [y.detach(), x.grad] + [g for g in (residual.grad,) if g is not None]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert ours.equal(theirs)


def adapted_by_peft(freeze, **options):
    """Returns an adapted model, frozen before peft came, after it, or not at all."""
    peft = pytest.importorskip("peft", reason="peft, of tools/requirements/torch.txt, is not installed")
    torch.manual_seed(0)
    model = nn.Sequential()
    for name in ("q_proj", "score_proj"):
        model.add_module(name, nn.Linear(64, 64, dtype=torch.bfloat16))
    if freeze == "before":
        ot.freeze_to_fp8(model)
    config = peft.LoraConfig(target_modules=["q_proj"], r=16, **options)
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    if freeze == "after":
        assert "base_model.model.q_proj.base_layer" in ot.freeze_to_fp8(adapted).converted
    return adapted


def test_adapters_of_peft():
    adapted = adapted_by_peft("before", init_lora_weights=False)
    lora = adapted.base_model.model.q_proj
    assert lora.lora_A["default"].weight.dtype == torch.bfloat16  # by compute_dtype
    x = torch.randn(8, 64, dtype=torch.bfloat16, requires_grad=True)
    y = adapted(x)
    y.sum().backward()
    assert lora.lora_A["default"].weight.grad.any()
    assert all(p.grad is None for p in lora.base_layer.parameters())
    for safe in (False, True):
        with pytest.raises(NotImplementedError, match="octile: .*thaw_from_fp8"):
            adapted.merge_adapter(safe_merge=safe)
    assert adapted(x).equal(y)
    assert ot.thaw_from_fp8(adapted) == 2
    assert relative(adapted.merge_and_unload()(x), y) < 0.05


@pytest.mark.parametrize("freeze", ["before", "after"])
def test_dora_of_peft_in_both_orders(freeze):
    x = torch.randn(8, 64, dtype=torch.bfloat16)

    def step(freeze):
        adapted = adapted_by_peft(freeze, use_dora=True)
        y = adapted(x)
        y.float().square().mean().backward()
        return y, {n: p.grad for n, p in adapted.named_parameters() if p.grad is not None}

    (ours, gradients), (theirs, wanted) = step(freeze), step(None)
    assert gradients.keys() == wanted.keys() and any("magnitude" in name for name in gradients)
    assert relative(ours, theirs) < 0.08
    assert all(relative(g, wanted[n]) < 0.1 for n, g in gradients.items() if wanted[n].any())


def test_what_peft_may_not_do_with_a_frozen_weight():
    with pytest.raises(NotImplementedError, match="octile: a gradient is required of a frozen weight, .*thaw_from_fp8"):
        adapted_by_peft("before", modules_to_save=["score_proj"])
    for init in ("pissa", "olora"):  # they write into the weight that they read
        with pytest.raises((NotImplementedError, TypeError)):
            adapted_by_peft("before", init_lora_weights=init)


def test_frozen_models_are_exported_and_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    ot.use_in_transformers(host=True)
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=384, num_hidden_layers=2, vocab_size=128, num_attention_heads=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ot.freeze_to_fp8(model)
    ot.export_hf(model, tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert again(tokens).logits.equal(model(tokens).logits)


def test_transforms_of_torch_func():
    layer, _ = frozen()
    x = torch.randn(6, layer.in_features).bfloat16()
    x.requires_grad_()
    layer(x).float().sum().backward()
    of_x = torch.func.grad(lambda x: layer(x).float().sum())(x.detach())
    each = torch.func.vmap(torch.func.grad(lambda row: layer(row).float().sum()))(x.detach())
    assert torch.equal(of_x, x.grad) and torch.equal(each, x.grad)
    assert torch.equal(torch.func.vmap(layer)(x.detach()), layer(x.detach()))
    plain = x.detach()
    for tangent in (lambda: torch.func.jvp(layer, (plain,), (plain,)), lambda: torch.func.jacfwd(layer)(plain[0])):
        for context in (torch.enable_grad, torch.no_grad):
            with context(), pytest.raises(NotImplementedError, match="an FP8 layer is differentiated in forward mode"):
                tangent()
