"""The lines of the guide for accelerate and for torchtitan. torchtitan is not installed: its converter is called as
version 0.2 calls it (protocols/model_converter.py and train.py there)."""

import copy
import importlib
import logging
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import octile.torch as ot

MODULE = "octile.torch.torchtitan"


# ---- accelerate


def test_accelerate_trains_a_model_that_was_converted_before_prepare():
    accelerate = pytest.importorskip("accelerate")
    made = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    ot.convert(made, min_dims=16)
    prepared, stepping = accelerator.prepare(made, optimizer)
    x, target, losses = torch.randn(64, 64), torch.randn(64, 32), []
    for _ in range(20):
        loss = (prepared(x) - target).square().mean()
        stepping.zero_grad()
        accelerator.backward(loss)
        stepping.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    inside = accelerator.unwrap_model(prepared)
    assert [type(layer) for layer in inside[::2]] == [ot.Linear] * 2
    fresh = copy.deepcopy(inside)  # whose copies of the weights are made anew
    with torch.no_grad():
        assert fresh(x).equal(prepared(x))


# ---- torchtitan


@pytest.fixture
def registry(monkeypatch):
    """Stands for torchtitan: what was registered, by name."""
    found = {}
    modules = {name: ModuleType(name) for name in ("torchtitan", "torchtitan.protocols")}
    converters = ModuleType("torchtitan.protocols.model_converter")
    converters.register_model_converter = lambda converter_cls, name: found.__setitem__(name, converter_cls)
    for name, module in (modules | {converters.__name__: converters}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield found
    sys.modules.pop(MODULE, None)


def model():
    with torch.device("meta"):  # as torchtitan builds it
        return nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4096, 4096)]), "output": nn.Linear(4096, 512)})


def test_importing_registers_a_converter_that_converts_in_place(registry, caplog):
    importlib.import_module(MODULE)
    converter, made = registry["octile"](None, None), model()
    with caplog.at_level(logging.INFO):
        assert converter.convert(made) is None and converter.post_optimizer_hook([made]) is None
    assert type(made["layers"][0]) is ot.Linear and type(made["output"]) is nn.Linear
    assert "1 linear layers to blockwise, 1 not" in caplog.text
    layer = made["layers"][0].to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.ones(2, 4096)).isfinite().all()


def test_other_arguments_under_other_names(registry):
    importlib.import_module(MODULE).register("octile-tensorwise", recipe="tensorwise", min_dims=16)
    made = model()
    registry["octile-tensorwise"](None, None).convert(made)
    assert made["layers"][0].recipe == ot.Recipe("tensorwise")
    assert set(registry) == {"octile", "octile-tensorwise"}


def test_weights_travel_if_the_converter_is_told(registry, caplog):
    importlib.import_module(MODULE).register("octile-travels", travels=True, min_dims=16)
    with caplog.at_level(logging.INFO):
        registry["octile-travels"](None, None).convert(model())
    assert "1 weights travel in FP8" in caplog.text


def test_other_versions_of_torchtitan_are_refused_with_a_sentence(registry, monkeypatch):
    monkeypatch.delitem(sys.modules, "torchtitan.protocols.model_converter")
    with pytest.raises(ImportError, match="octile: this torchtitan registers no model converters, as version 0.2 does"):
        importlib.import_module(MODULE)
