"""The plug-in of vLLM on a stand-in for the parts of vLLM 0.26 to 0.33 that it uses: their names, and what they do."""

import enum
import importlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from stand_in import stand_in

import octile.torch as ot
from octile.torch.contents import encode

LINEAR = "octile.vllm.linear"
N, K = 264, 400


class Capability(NamedTuple):
    major: int
    minor: int


class Platform(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()


class QuantFP8:
    """Writes 1x128 scales as vLLM's quantiser does: its kernel aligns columns, and the compiled form does not."""

    def __init__(self, static, group_shape, use_ue8m0=None, column_major_scales=False, tma_aligned_scales=False, **_):
        assert not static and not use_ue8m0
        self.in_columns, self.aligned = column_major_scales, tma_aligned_scales

    def __call__(self, x, scale=None, scale_ub=None, use_triton=False):
        return self.forward_native(x, scale, scale_ub, use_triton)

    def forward_native(self, x, scale, scale_ub, use_triton):
        return self.quantized(x, x.shape[0])

    def forward_cuda(self, x, scale, scale_ub, use_triton):
        return self.quantized(x, -(-x.shape[0] // 4) * 4 if self.aligned else x.shape[0])

    def quantized(self, x, stride):
        q = ot.quantize(x, scales="f32")
        m, blocks = x.shape[0], q.scales.shape[0]
        scales = torch.empty_strided((m, blocks), (1, stride) if self.in_columns else (blocks, 1))
        return q.codes, scales.copy_(q.scales[:, :m].t())


class Base:
    """Stands for Fp8BlockScaledMMLinearKernel."""

    def __init__(self, config):
        self.config = config
        self.quant_fp8 = QuantFP8(False, config.activation_quant_key.scale.group_shape)

    @classmethod
    def can_implement(cls, config):
        return (False, "static input") if config.activation_quant_key.scale.static else (True, None)

    def _get_layer_params(self, layer):
        names = "weight", "weight_scale", "weight_scale_inv"
        return SimpleNamespace(**{name: getattr(layer, name, None) for name in names})

    def process_weights_after_loading(self, layer):
        layer.processed = True

    def apply_weights(self, layer, x, bias=None):
        rows = x.view(-1, x.shape[-1])
        codes, scales = self.quant_fp8(rows, None, None, use_triton=False)
        y = self.apply_block_scaled_mm(A=codes, B=layer.weight, As=scales, Bs=layer.weight_scale_inv)
        y = y if bias is None else y + bias
        return y.to(self.config.out_dtype).view(*x.shape[:-1], layer.weight.shape[0])


class Triton(Base):
    """A kernel of vLLM's own."""


@pytest.fixture
def vllm(monkeypatch):
    """Puts the stand-in in vLLM's place. Its ``capability`` and ``is_cuda`` say which GPU is there."""
    state = SimpleNamespace(capability=Capability(9, 0), is_cuda=True, kernels={Platform.CUDA: [Triton]})

    def replace_parameter(layer, name, new):
        setattr(layer, name, torch.nn.Parameter(new, requires_grad=False))

    current = SimpleNamespace(get_device_capability=lambda: state.capability, is_cuda=lambda: state.is_cuda)
    state.config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=40))
    parts = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: state.config},
        "vllm.platforms": {"PlatformEnum": Platform, "current_platform": current},
        "vllm.model_executor.utils": {"replace_parameter": replace_parameter},
        "vllm.model_executor.kernels.linear": {
            "Fp8BlockScaledMMLinearKernel": Base,
            "_POSSIBLE_FP8_BLOCK_KERNELS": state.kernels,
        },
        "vllm.model_executor.layers.quantization.input_quant_fp8": {"QuantFP8": QuantFP8},
    }
    stand_in(monkeypatch, parts)
    monkeypatch.delenv("OCTILE_VLLM", raising=False)
    monkeypatch.delitem(sys.modules, LINEAR, raising=False)
    yield state
    sys.modules.pop(LINEAR, None)


def names(vllm):
    return [kernel.__name__ for kernel in vllm.kernels[Platform.CUDA]]


def register():
    importlib.import_module("octile.vllm").register()


def chosen(vllm, config):
    """Returns the kernel that vLLM picks: the first that serves the layer."""
    register()
    kernels = vllm.kernels[Platform.CUDA]
    return next(k for k in kernels if k is Triton or (k.is_supported(90)[0] and k.can_implement(config)[0]))


def config_of(shape=(N, K), dtype=torch.bfloat16, weight=(128, 128), x=(1, 128), static=False):
    key = lambda blocks, static: SimpleNamespace(scale=SimpleNamespace(group_shape=blocks, static=static))  # noqa: E731
    return SimpleNamespace(
        weight_quant_key=key(weight, True), activation_quant_key=key(x, static), weight_shape=shape, out_dtype=dtype
    )


OURS = "OctileFp8BlockScaledMMKernel"


@pytest.mark.parametrize("capability, first", [((9, 0), True), ((8, 9), True), ((10, 0), False), ((12, 0), False)])
def test_it_stands_first_on_hopper_and_ada_and_last_elsewhere(vllm, capability, first):
    vllm.capability = Capability(*capability)
    for _ in range(3):  # vLLM may call it again
        register()
        assert names(vllm) == ([OURS, "Triton"] if first else ["Triton", OURS])


def test_without_a_gpu_it_stands_last(vllm):
    vllm.capability = None
    register()
    assert names(vllm) == ["Triton", OURS]


def test_a_variable_switches_it_off(vllm, monkeypatch):
    monkeypatch.setenv("OCTILE_VLLM", "0")
    register()
    assert names(vllm) == ["Triton"] and LINEAR not in sys.modules


@pytest.mark.parametrize("missing", ["_POSSIBLE_FP8_BLOCK_KERNELS", "Fp8BlockScaledMMLinearKernel"])
def test_other_releases_stay_as_they_are(vllm, monkeypatch, caplog, missing):
    monkeypatch.delattr(sys.modules["vllm.model_executor.kernels.linear"], missing)
    with caplog.at_level(logging.WARNING):
        register()
    assert names(vllm) == ["Triton"]
    assert "octile: vLLM's FP8 layers stay with its own kernels" in caplog.text and missing in caplog.text


def test_without_vllm_nothing_is_raised(caplog):
    assert importlib.util.find_spec("vllm") is None or pytest.skip("vLLM is installed")
    register()
    assert "No module named 'vllm'" in caplog.text


def test_vllm_finds_it_by_its_entry_point():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["vllm.general_plugins"]["octile"].split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_layers_whose_kernels_cannot_be_had_stay_with_vllm(vllm, monkeypatch, caplog):
    config = config_of((N, K + 16))
    tried = []

    def fail(n, k, tokens, dtype, **_):
        tried.append((n, k, tokens, dtype))
        raise RuntimeError("COMPILE_FAILED: no NVRTC\nits log")

    register()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("octile.torch.engine_layers.prepare", fail)
        for _ in range(2):  # layers of one shape
            assert chosen(vllm, config) is Triton
        assert len(caplog.records) == 1
        vllm.config = None
        assert chosen(vllm, config) is Triton
    assert tried == [(N, K + 16, (1, most), torch.bfloat16) for most in (40, 16384)]
    sentence = f"octile: the kernels of a weight ({N}, {K + 16}) are not available: COMPILE_FAILED: no NVRTC; the engine's"
    assert caplog.text.count(sentence) == 2 and "its log" not in caplog.text
    assert chosen(vllm, config_of()).__name__ == OURS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_computes_what_its_weight_and_input_say(vllm, dtype):
    kernel = chosen(vllm, config_of(dtype=dtype))
    assert kernel.__name__ == OURS
    w = torch.randn(N, K) / K**0.5
    codes, scales = encode(w, "f32")
    layer = torch.nn.Module()
    layer.weight, layer.weight_scale_inv = (torch.nn.Parameter(t, requires_grad=False) for t in (codes, scales))
    made = kernel(config_of(dtype=dtype))
    assert f"n={N} k={K} a=e4m3:1x128 b=e4m3:128x128" in "\n".join(ot.problems())  # prepared by being chosen
    made.process_weights_after_loading(layer)
    assert layer.processed
    values = codes.float() * scales.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
    bias = torch.randn(N).to(dtype)
    for m in (1, 6, 16, 33):
        x = torch.randn(1, m, K).to(dtype)
        y = made.apply_weights(layer, x, bias)
        assert y.shape == (1, m, N) and y.dtype == dtype
        rounded = ot.quantize(x[0], scales="f32").dequantize()
        codes_of_x, packed = QuantFP8(False, None, column_major_scales=True).quantized(x[0], m)  # by a fused SwiGLU
        of_packed = made.apply_block_scaled_mm(codes_of_x, layer.weight, packed, layer.weight_scale_inv)
        assert (of_packed + bias).equal(y[0])
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(y[0].float(), rounded @ values.t() + bias.float(), rtol=2 * step, atol=4 * step)
        reference = x[0].float() @ w.t() + bias.float()
        assert (y[0].float() - reference).norm() < 0.05 * reference.norm()


def test_scales_of_a_checkpoint_become_float32(vllm):
    kernel = chosen(vllm, config_of())(config_of())
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(N, K).to(torch.float8_e4m3fn), requires_grad=False)
    for name in ("weight_scale", "weight_scale_inv"):
        given = torch.full((3, 4), 0.25).to(torch.float8_e8m0fnu)
        setattr(layer, name, torch.nn.Parameter(given, requires_grad=False))
        kernel.process_weights_after_loading(layer)
        assert getattr(layer, name).dtype == torch.float32 and getattr(layer, name).eq(0.25).all()


FLOATS = "allowed are torch.bfloat16 and torch.float16"
REFUSED = [
    (config_of(static=True), "static input"),
    (config_of(weight=(64, 64)), "octile: the weight's blocks are (64, 64); allowed are (128, 128)"),
    (config_of(x=(1, 64)), "octile: the input's blocks are (1, 64); allowed are (1, 128)"),
    (
        config_of(dtype=torch.float32),
        "octile: out_dtype is torch.float32; " + FLOATS,
    ),
    (config_of((100, 256)), "octile: the weight is (100, 256); allowed are n a multiple of 8 and k of 16"),
    (config_of((104, 200)), "octile: the weight is (104, 200); allowed are n a multiple of 8 and k of 16"),
]


@pytest.mark.parametrize("config, reason", REFUSED, ids=[reason for _, reason in REFUSED])
def test_other_layers_stay_with_vllm(vllm, config, reason):
    assert chosen(vllm, config) is Triton
    assert vllm.kernels[Platform.CUDA][0].can_implement(config) == (False, reason)


def test_other_gpus_are_refused(vllm):
    register()
    ours = vllm.kernels[Platform.CUDA][0]
    assert ours.is_supported() == ours.is_supported(120) == (True, None)
    assert ours.is_supported(80) == (False, "octile: the compute capability is 80; allowed are 89 and more")
    vllm.capability = Capability(8, 6)
    assert ours.is_supported() == (False, "octile: the compute capability is 86; allowed are 89 and more")
    sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT = True
    refused, reason = ours.is_supported(90)
    assert not refused and "VLLM_BATCH_INVARIANT is set; a row's bits may depend on the number of tokens" in reason
    vllm.is_cuda = False
    assert ours.is_supported(90) == (False, "octile: the platform is not CUDA")
