"""The plug-in of SGLang on a stand-in for the parts of SGLang 0.5.23 that it uses: their names, and what they do."""

import enum
import importlib
import logging
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from stand_in import stand_in

import octile.torch as ot
from octile.torch.contents import encode

LINEAR = "octile.sglang.linear"
UTILS = "sglang.srt.layers.quantization.fp8_utils"
METHOD = "sglang.srt.layers.quantization.fp8"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8"
N, K = 272, 400


class HookType(enum.Enum):
    AFTER = "after"


class HookRegistry:
    """Calls hooks behind functions, as SGLang's does once all plug-ins have registered theirs."""

    hooks = {}

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type is HookType.AFTER
        cls.hooks.setdefault(target, []).append(hook)

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls.hooks.items():
            place, name = target.rsplit(".", 1)
            original = getattr(pkgutil.resolve_name(place), name)
            setattr(pkgutil.resolve_name(place), name, cls.wrapped(original, hooks))

    @staticmethod
    def wrapped(original, hooks):
        def call(*arguments, **options):
            result = original(*arguments, **options)
            for hook in hooks:
                changed = hook(result, *arguments, **options)
                result = result if changed is None else changed
            return result

        return call


def theirs(input, weight, block_size, weight_scale, input_scale=None, bias=None):
    """Stands for a function of SGLang's: its result is none that a product has."""
    return torch.full((*input.shape[:-1], weight.shape[0]), float("nan"), dtype=torch.bfloat16)


def layer_method(scale_name):
    class Method:
        """Stands for a quantisation method: it has the function of its layer, and sees the loaded weight."""

        def __init__(self, block=(128, 128), **options):
            self.block = list(block)
            self.w8a8_block_fp8_linear = sys.modules[UTILS].dispatch_w8a8_block_fp8_linear(self.block, **options)

        def process_weights_after_loading(self, layer):
            layer.processed = True

        def apply(self, layer, x, bias=None, scale=None):
            return self.w8a8_block_fp8_linear(
                input=x, weight=layer.weight, block_size=self.block, weight_scale=getattr(layer, scale_name),
                input_scale=scale, bias=bias,
            )  # fmt: skip

    return Method


@pytest.fixture
def sglang(monkeypatch):
    """Puts the stand-in in SGLang's place, on a GPU that the kernels stand first on. ``invariant``: a row's bits may
    not depend on the number of tokens."""
    state = SimpleNamespace(invariant=False, first=True, auto=True)
    HookRegistry.hooks = {}
    parts = {
        "sglang.srt.plugins.hook_registry": {"HookRegistry": HookRegistry, "HookType": HookType},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": lambda: state.invariant},
        UTILS: {
            "dispatch_w8a8_block_fp8_linear": lambda weight_block_size=None, act_scale_ue8m0=False: theirs,
            "get_fp8_gemm_runner_backend": lambda: SimpleNamespace(is_auto=lambda: state.auto),
        },
        METHOD: {"Fp8LinearMethod": layer_method("weight_scale_inv")},
        SCHEME: {"CompressedTensorsW8A8Fp8": layer_method("weight_scale")},
    }
    stand_in(monkeypatch, parts)
    monkeypatch.delenv("OCTILE_SGLANG", raising=False)
    monkeypatch.delitem(sys.modules, LINEAR, raising=False)
    yield state
    sys.modules.pop(LINEAR, None)


def register(sglang):
    """Does what a process of SGLang does with its plug-ins."""
    importlib.import_module("octile.sglang").register()
    if LINEAR in sys.modules:
        sys.modules[LINEAR].stands_first = lambda: sglang.first
    HookRegistry.apply_hooks()


def loaded_layer(n=N, k=K, dtype=torch.bfloat16, name="weight_scale_inv"):
    codes, scales = encode(torch.randn(n, k) / k**0.5, "f32")
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(codes, requires_grad=False)
    setattr(layer, name, torch.nn.Parameter(scales, requires_grad=False))
    layer.orig_dtype = dtype
    return layer


def is_ours(method, layer, x=None, **others):
    x = torch.randn(3, K, dtype=torch.bfloat16) if x is None else x
    return not method.apply(layer, x, **others).isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "module, name, scales",
    [(METHOD, "Fp8LinearMethod", "weight_scale_inv"), (SCHEME, "CompressedTensorsW8A8Fp8", "weight_scale")],
)
def test_a_layer_computes_what_its_weight_and_input_say(sglang, module, name, scales, dtype):
    register(sglang)
    method, layer = getattr(sys.modules[module], name)(), loaded_layer(dtype=dtype, name=scales)
    method.process_weights_after_loading(layer)
    assert layer.processed
    prepared = set(ot.problems())
    bias = torch.randn(N).to(dtype)
    for shape in ((1,), (2, 5), (33,)):
        x = torch.randn(*shape, K).to(dtype)
        y = method.apply(layer, x, bias)
        assert y.shape == (*shape, N) and y.dtype == dtype
        assert y.equal(ot.block_fp8_linear(x, layer.weight, getattr(layer, scales)) + bias)
    assert not set(ot.problems()) - prepared  # no call asks for a kernel that loading has not prepared


def test_registering_twice_changes_nothing(sglang):
    for _ in range(2):
        register(sglang)
    method = sys.modules[METHOD].Fp8LinearMethod()
    assert method.w8a8_block_fp8_linear.theirs is theirs and method.w8a8_block_fp8_linear.func is theirs


def test_other_layers_and_calls_stay_with_sglang(sglang):
    register(sglang)
    make = sys.modules[METHOD].Fp8LinearMethod
    layer = loaded_layer()
    method = make()
    assert not is_ours(method, layer)  # not loaded
    method.process_weights_after_loading(layer)
    assert is_ours(method, layer)
    assert not is_ours(method, layer, torch.randn(3, K))  # of another dtype than the model
    assert not is_ours(method, layer, scale=torch.ones(3, 4))  # quantised by SGLang
    sglang.invariant = True
    assert not is_ours(method, layer)
    sglang.invariant = False
    other = loaded_layer(280)  # n is a multiple of 8
    method.process_weights_after_loading(other)
    assert not is_ours(method, other)
    exponents = loaded_layer(288)
    exponents.weight_scale_inv.data = exponents.weight_scale_inv.data.to(torch.float8_e8m0fnu)
    method.process_weights_after_loading(exponents)
    assert not is_ours(method, exponents)
    assert make((32, 32)).w8a8_block_fp8_linear is theirs
    assert make(act_scale_ue8m0=True).w8a8_block_fp8_linear is theirs
    sglang.auto = False  # --fp8-gemm-backend
    assert make().w8a8_block_fp8_linear is theirs
    sglang.auto, sglang.first = True, False
    assert make().w8a8_block_fp8_linear is theirs


def test_layers_whose_kernels_cannot_be_had_stay_with_sglang(sglang, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("COMPILE_FAILED: no NVRTC\nits log")

    register(sglang)
    method, layer = sys.modules[METHOD].Fp8LinearMethod(), loaded_layer(N + 16)
    monkeypatch.setattr("octile.torch.engine_layers.prepare", fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            method.process_weights_after_loading(layer)
    assert not is_ours(method, layer) and len(caplog.records) == 1
    assert (
        f"octile: the kernels of a weight ({N + 16}, {K}) are not available: COMPILE_FAILED: no NVRTC; the" in caplog.text
    )


def test_a_variable_switches_it_off(sglang, monkeypatch):
    monkeypatch.setenv("OCTILE_SGLANG", "0")
    register(sglang)
    assert not HookRegistry.hooks and LINEAR not in sys.modules


@pytest.mark.parametrize(
    "module, missing",
    [
        ("sglang.srt.plugins.hook_registry", "HookRegistry"),
        ("sglang.srt.batch_invariant_ops", "is_batch_invariant_mode_enabled"),
        (UTILS, "dispatch_w8a8_block_fp8_linear"),
        (UTILS, "get_fp8_gemm_runner_backend"),
        (METHOD, "Fp8LinearMethod"),
        (SCHEME, "CompressedTensorsW8A8Fp8"),
    ],
)
def test_other_releases_stay_as_they_are(sglang, monkeypatch, caplog, module, missing):
    monkeypatch.delattr(sys.modules[module], missing)
    with caplog.at_level(logging.WARNING):
        register(sglang)
    assert not HookRegistry.hooks and len(caplog.records) == 1
    assert "octile: SGLang's FP8 layers stay with its own kernels" in caplog.text and missing in caplog.text


def test_without_sglang_nothing_is_raised(caplog):
    assert importlib.util.find_spec("sglang") is None or pytest.skip("SGLang is installed")
    importlib.import_module("octile.sglang").register()
    assert "No module named 'sglang'" in caplog.text


def test_sglang_finds_it_by_its_entry_point():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["sglang.srt.plugins"]["octile"].split(":")
    assert callable(getattr(importlib.import_module(module), name))
