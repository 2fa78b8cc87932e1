"""The nightly check that releases of engines have what the adapters use, on a package that is made here."""

import importlib.util
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / ".ci/engine_releases.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("engine_releases", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENGINE = {
    "__init__.py": "def __getattr__(name):\n    return {'computed': 1}[name]\n",
    "base.py": "class Base:\n    def __init__(self, aligned, *, size=1): ...\n    def apply(self): ...\n",
    "linear/__init__.py": "if True:\n    from .kernels import Kernel as Kernel\nTABLE: dict = {}\n",
    "linear/kernels.py": "from ..base import Base\nclass Kernel(Base):\n    ROWS = 4\n    def run(self): ...\n",
}
ADAPTER = """
import engine.base
from engine import linear
from engine.linear import Kernel

TABLE = "engine.linear.TABLE"
ROWS = linear.Kernel.ROWS

class Ours(Kernel):
    def __init__(self): ...
    def run(self): ...
    def apply(self): ...

def make():
    return Ours(aligned=True, size=2)
"""


def lacking(check, tmp_path, adapter, **changed):
    for name, text in {**ENGINE, **changed}.items():
        file = tmp_path / "engine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return check.Adapter("engine", [adapter]).lacking(check.Release(tmp_path))


def test_a_release_that_has_everything(check, tmp_path):
    assert lacking(check, tmp_path, ADAPTER) == []


@pytest.mark.parametrize(
    "file, old, new, lacks",
    [
        ("base.py", "apply", "apply_all", ["engine.linear.Kernel.apply"]),
        ("base.py", "aligned", "padded", ["engine.linear.Kernel(aligned=)"]),
        ("linear/kernels.py", "ROWS", "COLUMNS", ["engine.linear.Kernel.ROWS"]),
        ("linear/__init__.py", "TABLE", "_TABLE", ["engine.linear.TABLE"]),
        ("linear/__init__.py", "Kernel as Kernel", "Other", ["engine.linear.Kernel", "engine.linear.Kernel.ROWS"]),
    ],
)
def test_what_a_release_lacks_is_named(check, tmp_path, file, old, new, lacks):
    assert lacking(check, tmp_path, ADAPTER, **{file: ENGINE[file].replace(old, new)}) == lacks


def test_names_that_a_module_computes_are_there(check, tmp_path):
    assert lacking(check, tmp_path, "from engine import computed, other") == ["engine.other"]


def test_what_the_adapters_use_is_read_from_their_sources(check):
    vllm = check.adapter_of("vllm")
    assert "vllm.model_executor.kernels.linear._POSSIBLE_FP8_BLOCK_KERNELS" in vllm.paths
    base = "vllm.model_executor.kernels.linear.Fp8BlockScaledMMLinearKernel"
    assert (base, "apply_block_scaled_mm") in vllm.overridden
    assert ("vllm.model_executor.layers.quantization.input_quant_fp8.QuantFP8", "tma_aligned_scales") in vllm.keywords
    assert "sglang.srt.plugins.hook_registry.HookType.AFTER" in check.adapter_of("sglang").paths
    assert "jax.ffi.register_ffi_target" in check.adapter_of("jax").paths


def test_releases_are_the_newest_two_and_the_oldest(check):
    versions = "0.33.1,0.33.0,0.33.0rc1,0.32.0,0.27.1,0.27.0,0.26.2,0.26.0,0.25.0".split(",")
    assert check.releases_to_read(versions, "0.26", 2) == ["0.33.1", "0.32.0", "0.26.2"]
    assert check.releases_to_read(versions, "0.33", 2) == ["0.33.1"]
    assert check.releases_to_read(["0.5.23", "0.5.22.post1", "0.5.22"], "0.5.22", 3) == ["0.5.23", "0.5.22.post1"]
