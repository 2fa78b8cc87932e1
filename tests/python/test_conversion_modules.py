"""``convert``: what a layer has besides weight and bias comes along, or the layer stays with a reason."""

import copy
import io
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import octile.torch as ot


def relative(y, wanted):
    return ((y - wanted).norm() / wanted.norm()).item()


def single():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64))


def told(hook_of):
    """Returns a change that makes a hook, and what the hook appends to."""
    calls = []

    def change(layer):
        hook_of(layer, lambda *_, **__: calls.append(1))

    return change, calls


HOOKS = {
    "forward": lambda layer, hook: layer.register_forward_hook(hook),
    "forward with keywords": lambda layer, hook: layer.register_forward_hook(hook, with_kwargs=True),
    "forward pre": lambda layer, hook: layer.register_forward_pre_hook(hook),
    "backward": lambda layer, hook: layer.register_full_backward_hook(hook),
    "backward pre": lambda layer, hook: layer.register_full_backward_pre_hook(hook),
    "state_dict": lambda layer, hook: layer.register_state_dict_post_hook(hook),
    "state_dict pre": lambda layer, hook: layer.register_state_dict_pre_hook(hook),
    "load_state_dict": lambda layer, hook: layer.register_load_state_dict_post_hook(hook),
    "load_state_dict pre": lambda layer, hook: layer.register_load_state_dict_pre_hook(hook),
    "gradient of the weight": lambda layer, hook: layer.weight.register_post_accumulate_grad_hook(hook),
}


@pytest.mark.parametrize("way", ("convert", "from_linear"))
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_come_along(name, way):
    model, (change, calls) = single(), told(HOOKS[name])
    change(model[0])
    if way == "convert":
        assert list(ot.convert(model, min_dims=16).converted) == ["0"]
    else:
        model[0] = ot.Linear.from_linear(model[0])
    model(torch.randn(4, 64, requires_grad=True)).sum().backward()
    model.load_state_dict(model.state_dict())
    assert type(model[0]) is ot.Linear and calls == [1]


def test_handles_remove_hooks_of_converted_layers():
    model, calls = single(), []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    ot.convert(model, min_dims=16)
    handle.remove()
    model(torch.randn(4, 64))
    assert not calls


def test_a_hook_of_from_linear_is_registered_in_one_layer():
    linear, calls = nn.Linear(64, 64), []
    made = ot.Linear.from_linear(linear)
    made.register_forward_hook(lambda *_: calls.append(1))
    linear(torch.randn(4, 64))
    assert not calls and made.weight is linear.weight


def test_buffers_parameters_modules_and_attributes_come_along():
    model = single()
    model[0].register_buffer("scale", torch.ones(1))
    model[0].register_buffer("hidden", torch.ones(1), persistent=False)
    model[0].register_parameter("gain", nn.Parameter(torch.ones(1)))
    model[0].dropout = nn.Dropout()
    model[0].layer_idx = 3
    names, before = sorted(model.state_dict()), [id(p) for p in model.parameters()]
    ot.convert(model, min_dims=16)
    assert sorted(model.state_dict()) == names and [id(p) for p in model.parameters()] == before
    assert (
        model[0].layer_idx == 3 and type(model[0].dropout) is nn.Dropout and "0.hidden" in dict(model.named_buffers())
    )


@pytest.mark.parametrize("recipe", ("blockwise", "delayed"))
def test_converted_layers_are_the_same_objects_and_copy(recipe):
    model, x = single(), torch.randn(4, 64)
    layer, held = model[0], {model[0]: "held"}
    layer.layer_idx = 3
    ot.convert(model, recipe, min_dims=16)
    assert model[0] is layer and type(layer) is ot.Linear and held[layer] == "held"
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert type(other[0]) is ot.Linear and other[0].layer_idx == 3 and other[0].weight is not layer.weight
        assert other(x).equal(model(x))


def test_models_compiled_before_they_are_converted():
    for compile in (lambda m: torch.compile(m, backend="eager"), lambda m: (m[0].compile(backend="eager"), m)[1]):
        torch._dynamo.reset()
        model, x = single(), torch.randn(4, 64)
        compiled = compile(model)
        plain = compiled(x)
        ot.convert(model, min_dims=16)
        assert compiled(x).equal(ot.linear(x, model[0].weight, model[0].bias)) and not compiled(x).equal(plain)


def of_another_type(layer):
    layer.weight = nn.Parameter(layer.weight.detach().double())


def parametrized(layer):
    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    parametrize.register_parametrization(layer, "weight", Halved())


STAYS = {
    "forward": (lambda layer: setattr(layer, "forward", lambda x: 2 * x), "has a forward of its own"),
    "method": (
        lambda layer: setattr(layer, "forward", (lambda self, x: 2 * x).__get__(layer)),
        "has a forward of its own",
    ),
    "parametrization": (parametrized, "has a parametrization of weight"),
    "weight norm": (parametrizations.weight_norm, "has a parametrization of weight"),
    "old weight norm": (torch.nn.utils.weight_norm, "computes its weight from other tensors"),
    "spectral norm": (torch.nn.utils.spectral_norm, "computes its weight from other tensors"),
    "pruned": (lambda layer: prune.random_unstructured(layer, "weight", 0.5), "computes its weight from other tensors"),
    "pruned bias": (
        lambda layer: prune.random_unstructured(layer, "bias", 0.5),
        "computes its bias from other tensors",
    ),
    "float64": (of_another_type, "its weight is of type float64"),
    "attribute": (
        lambda layer: setattr(layer, "recipe", "cake"),
        "has an attribute 'recipe', which octile.torch.Linear has too",
    ),
    "buffer": (
        lambda layer: layer.register_buffer("fp8", torch.ones(1)),
        "has an attribute 'fp8', which octile.torch.Linear has too",
    ),
    "resized": (
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(96, 64))),
        "its weight is [96, 64], not [64, 64]",
    ),
}


@pytest.mark.parametrize("name", STAYS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_layers_that_compute_something_else_stay(name):
    change, reason = STAYS[name]
    model, x = single(), torch.randn(4, 64)
    change(model[0])
    if name == "float64":
        model[0].bias, x = None, x.double()
    elif name == "resized":
        model[0].bias = None
    model.eval()
    before, kind = model(x), type(model[0])
    assert ot.convert(model, min_dims=16).skipped == {"0": reason}
    assert type(model[0]) is kind and model(x).equal(before)
    with pytest.raises(ValueError, match="linear is .*; allowed is a layer that computes as torch.nn.Linear"):
        ot.Linear.from_linear(model[0])


def test_one_name_keeps_a_layer_at_two_places():
    layer = nn.Linear(64, 64)
    model = nn.ModuleDict({"proj": layer, "lm_head": layer, "other": nn.Linear(64, 64)})
    report = ot.convert(model, min_dims=16)
    assert list(report.converted) == ["other"] and list(report.skipped) == ["proj", "lm_head"]
    assert type(model["proj"]) is nn.Linear


def test_a_filter_that_raises_changes_nothing():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def filter(name, layer):
        if name == "1":
            raise KeyError(name)
        return True

    with pytest.raises(KeyError):
        ot.convert(model, min_dims=16, filter=filter)
    assert type(model[0]) is nn.Linear


# ---- layers without data


def test_a_model_on_meta_converts_and_computes_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))
    assert len(ot.convert(model, min_dims=16).converted) == 2
    y = model(torch.empty(3, 64, device="meta"))
    assert y.is_meta and y.shape == (3, 32)


def test_a_layer_on_meta_in_a_model_with_data_stays():
    model = nn.Sequential(nn.Linear(64, 64, device="meta"), nn.Linear(64, 64))
    report = ot.convert(model, min_dims=16)
    assert report.skipped == {"0": "its weight is on the meta device, and the model's others are not"}


def offload(where, model, folder):
    accelerate = pytest.importorskip("accelerate")
    cpu = torch.device("cpu")
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device=cpu)
    elif where == "disk":
        accelerate.disk_offload(model, folder, execution_device=cpu)
    else:
        places = {"0": "cpu", "2": "disk"}
        accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).requires_grad_(False)


@pytest.mark.parametrize("where, stay", [("cpu", ["0", "2"]), ("disk", ["0", "2"]), ("map", ["2"])])
def test_layers_that_accelerate_offloads_stay(where, stay, tmp_path):
    model, x = two_layers(), torch.randn(8, 64)
    wanted = model(x)
    offload(where, model, str(tmp_path))
    report = ot.convert(model, min_dims=16)
    assert report.skipped == dict.fromkeys(stay, "accelerate offloads its weight")
    assert relative(model(x), wanted) < (0.1 if report.converted else 1e-5)


@pytest.mark.parametrize("where", ("cpu", "disk", "map"))
def test_converted_layers_are_offloaded(where, tmp_path):
    model, x = two_layers(), torch.randn(8, 64)
    ot.convert(model, min_dims=16)
    wanted = model(x)
    offload(where, model, str(tmp_path))
    for _ in range(2):
        assert model(x).equal(wanted)


def test_hooks_of_accelerate_come_along_and_go():
    hooks = pytest.importorskip("accelerate.hooks")
    model, x = two_layers(), torch.randn(8, 64)
    hooks.add_hook_to_module(model[0], hooks.AlignDevicesHook("cpu", io_same_device=True))
    hooks.add_hook_to_module(model[2], hooks.ModelHook())
    hooks.remove_hook_from_module(model[2])  # leaves a forward in the layer, that of its class
    plain = model(x)
    assert list(ot.convert(model, min_dims=16).converted) == ["0", "2"]
    y = model(x)
    assert 0 < relative(y, plain) < 0.1
    hooks.remove_hook_from_module(model[0])
    assert model(x).equal(y)


# ---- the order with other libraries


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_model_that_is_sharded_is_refused(mesh):
    from torch.distributed.fsdp import fully_shard

    root, block, inner = single(), nn.Sequential(single(), single()), single()
    fully_shard(root, mesh=mesh)
    fully_shard(block[1], mesh=mesh)
    fully_shard(inner[0], mesh=mesh)
    for model, what in ((root, "sharded by FSDP'"), (block, "sharded by FSDP in '1'"), (inner, "by FSDP in '0'")):
        with pytest.raises(ValueError) as raised:
            ot.convert(model, min_dims=16)
        assert what in str(raised.value) and "call convert first, and fully_shard after it" in str(raised.value)
    part = nn.Sequential(root[0])  # of a sharded model
    reason = "its weight is a DTensor: convert goes before fully_shard and parallelize_module"
    assert ot.convert(part, min_dims=16).skipped == {"0": reason}
    model, x = single(), torch.randn(4, 64)
    ot.convert(model, min_dims=16)
    wanted = model(x)
    fully_shard(model, mesh=mesh)
    assert model(x).equal(wanted)


def test_tensor_parallel_layers_stay(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(4, 64)
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    wanted = model(x)
    parallelize_module(model, mesh, plan)
    assert list(ot.convert(model, min_dims=16).converted) == ["2"]
    assert relative(model(x), wanted) < 0.1
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    ot.convert(model, min_dims=16)
    with pytest.raises(ValueError, match="weight is 'DTensor'; allowed is a plain tensor: filter the layers"):
        parallelize_module(model, mesh, plan)


class Adapted(nn.Module):
    """A layer with a low-rank adapter beside it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, 16, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(16, base_layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_layers_inside_adapters_convert_and_adapters_stay():
    model, x = nn.Sequential(Adapted(nn.Linear(64, 64))), torch.randn(4, 64)
    wanted = model(x)
    report = ot.convert(model, min_dims=16)
    assert list(report.converted) == ["0.base_layer"] and "lora_A" in report.skipped["0.lora_A.default"]
    assert 0 < relative(model(x), wanted) < 0.1
    assert len(ot.convert(nn.Sequential(Adapted(nn.Linear(64, 64))), preset="all-linear", min_dims=16).converted) == 3


@pytest.mark.parametrize("options", ({}, {"use_dora": True}, {"modules_to_save": ["classifier"]}))
def test_models_of_peft_convert_before_and_after(options):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = nn.Sequential()
    base.add_module("q_proj", nn.Linear(64, 64))
    base.add_module("classifier", nn.Linear(64, 16))
    config = peft.LoraConfig(target_modules=["q_proj"], r=16, init_lora_weights=False, **options)
    plain = peft.get_peft_model(copy.deepcopy(base), config)
    after = copy.deepcopy(plain)
    before = copy.deepcopy(base)
    ot.convert(before, min_dims=16)
    before = peft.get_peft_model(before, config)
    before.load_state_dict(plain.state_dict())
    assert list(ot.convert(after, min_dims=16).converted) == ["base_model.model.q_proj.base_layer"]
    x = torch.randn(8, 64)
    assert 0 < relative(after(x), plain(x)) < 0.1 and after(x).equal(before(x))


# ---- output layers, and how a report names layers


@pytest.mark.parametrize("name", ("output", "head", "score", "classifier", "embed_out", "unembed", "lm_head"))
def test_output_layers_stay_by_name(name):
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"output": nn.Linear(64, 64)})])})
    model[name] = nn.Linear(64, 128)
    report = ot.convert(model, min_dims=16)
    kind = "embedding" if name == "embed_out" else "output layer"
    assert report.skipped == {name: f"{kind} by its name {name!r} (preset deepseek-v3)"}
    assert list(report.converted) == ["layers.0.output"]  # that of a block is none of the model's


def test_output_layers_stay_by_structure():
    def model():
        return nn.ModuleDict(
            {
                "positions": nn.Embedding(64, 64),
                "words": nn.Embedding(128, 64),
                "up": nn.Linear(64, 128),
                "down": nn.Linear(128, 64),
                "proj": nn.Linear(64, 64),
                "predictions": nn.Linear(64, 128),
            }
        )

    reason = "output layer by its shape, that of 'words' (preset deepseek-v3)"
    assert ot.convert(model(), min_dims=16).skipped == {"predictions": reason}
    assert not ot.convert(model(), min_dims=16, preset="all-linear").skipped
    tied = model()
    tied["predictions"].weight = tied["words"].weight
    assert ot.convert(tied, min_dims=16).skipped == {"predictions": "shares its weight with another module"}


def test_reports_name_layers_by_patterns():
    def block(i):
        return nn.ModuleDict(
            {"up": nn.Linear(64, 128), "down": nn.Linear(128, 64), "odd": nn.Linear(64, 9 if i else 64)}
        )

    model = nn.ModuleDict({"layers": nn.ModuleList(map(block, range(6)))})
    text = str(ot.convert(model, min_dims=16, filter=lambda name, _: name != "layers.0.down"))
    assert "\n  6 of [128, 64]: layers.*.up\n" in text
    assert "\n  5 of [64, 128]: layers.*.down (5 of 6)\n" in text
    assert "\n  1 of [64, 64]: layers.0.odd\n" in text
    assert "\n  sizes are not multiples of 16: layers.*.odd (5 of 6)" in text
    assert "\n  the filter leaves it: layers.0.down" in text
    text = str(ot.convert(nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))), min_dims=16))
    assert "\n  12 of [64, 64]: 0, 1, 2, 3, 4, 5, 6, 7 and 4 more\n" in text
    told = "\n  training keeps no FP8 copies of weights; 49.2 kB with weights='rowwise', 98.3 kB with 'both'\n"
    assert told in text
    told = "of their inputs, backward needs 66 bytes a token, and 256 bytes as nn.Linear"
    assert text.endswith(f"\n  {told}, if layers of one module share them")


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.last = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        return self.last(nn.functional.scaled_dot_product_attention(q, k, k))


def test_reports_say_what_backward_needs_of_inputs():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(64, 256, bias=False), nn.Linear(64, 256, bias=False)
            self.down = nn.Linear(256, 64, bias=False)

        def forward(self, x):
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    def kept(recipe="blockwise", **options):
        attention = Attention(64)
        model = nn.ModuleDict({"attention": attention, "mlp": Mlp()}).bfloat16()
        return ot.convert(model, recipe, min_dims=16, preset="all-linear", **options).kept

    before = 2 * (64 + 64 + 256)  # of q and k, of gate and up, and the product; attention keeps the input of last
    assert kept() == (before, 66 + 66)
    assert kept("tensorwise") == (before, 64 + 64)
    assert kept(fuse=False) == (before, 66 + 66 + 264)
    assert kept("delayed")[1] == 3 * 64 + 2 * 64 + 256  # a copy for each layer


# ---- what reads weights without calling layers, or compiles modules


@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("part", ("layer", "encoder", "transformer"))
def test_encoders_of_pytorch_call_converted_layers(part, padded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = layer
    if part == "encoder":
        model = nn.TransformerEncoder(layer, 2)
    elif part == "transformer":
        model = nn.ModuleDict({"model": nn.Transformer(64, 4, 2, 2, 128, batch_first=True)})
    # The first layer stays: the encoder looks at it alone.
    report = ot.convert(model, min_dims=16, filter=lambda name, _: "layers.0" not in name)
    if part == "transformer":
        model = model["model"].encoder
    calls = []
    for module in model.modules():
        if type(module) is ot.Linear:
            module.forward = lambda x, module=module: (calls.append(1), ot.Linear.forward(module, x))[1]
    mask = torch.arange(8) >= torch.tensor([[8], [5]]) if padded else None
    model.eval()
    with torch.no_grad():
        y = model(torch.randn(2, 8, 64), src_key_padding_mask=mask)
    assert report.converted and len(calls) == 2 and y.isfinite().all()


def test_encoders_that_stay_keep_their_fast_path():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
    assert not ot.convert(model).converted
    assert model.use_nested_tensor and model.layers[0].activation_relu_or_gelu == 1


def test_weights_that_pytorch_swaps():
    model, x = single(), torch.randn(4, 64)
    ot.convert(model, min_dims=16)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model(x)
        model.to(torch.bfloat16)
        assert model[0].weight.dtype == torch.bfloat16
        model(x)
        model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
        assert not model(x).any()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    with pytest.raises(RuntimeError, match="Cannot swap t1"):
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(64, 64)))


class OfLayers(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return isinstance(module, ot.Linear) or super().is_leaf_module(module, name)


def test_traces_of_fx_have_layers_as_leaves():
    model, x = single(), torch.randn(4, 64)
    ot.convert(model, min_dims=16)
    for least in ((0, 0, 0), (2, 2, 2)):
        model[0].least_tokens = least
        with pytest.raises(TypeError, match="x is of type Proxy; allowed is .* as a leaf, by is_leaf_module"):
            torch.fx.symbolic_trace(model)
    assert torch.fx.GraphModule(model, OfLayers().trace(model))(x).equal(model(x))


def test_torchscript_is_refused_and_its_layers_stay():
    model = single()
    scripted = torch.jit.script(nn.ModuleDict({"a": single()})["a"]) if sys.version_info < (3, 14) else None
    ot.convert(model, min_dims=16)
    with pytest.raises(TypeError, match="a module that TorchScript compiles; use torch.compile or torch.export"):
        torch.jit.script(model)
    if scripted is not None:
        assert ot.convert(scripted, min_dims=16).skipped == {"0": "is compiled by TorchScript"}
