"""Whether layers can compute on a device."""

import pytest
import torch
from reference import ALL_RECIPES

import octile.torch as ot
from octile.torch import availability


@pytest.mark.parametrize("recipe", [*ALL_RECIPES, "rowwise:dw=bf16", ot.Recipe("delayed", scales="f32")])
def test_the_host_computes_all_recipes(recipe):
    assert ot.is_available("cpu", recipe) and ot.why_unavailable("cpu", recipe) is None


def test_what_is_missing_is_said(monkeypatch):
    count = torch.cuda.device_count()
    assert ot.why_unavailable(f"cuda:{count}") == f"PyTorch finds {count} CUDA devices"
    assert not ot.is_available(f"cuda:{count}", "tensorwise")
    assert ot.is_available() == (count > 0)

    class Refusing:
        def prepare_linear(self, *_):
            raise RuntimeError("octile: no NVRTC was found\nC++ frames")

    monkeypatch.setattr(availability, "ops", Refusing())
    assert ot.why_unavailable("cpu") == "octile: no NVRTC was found" and not ot.is_available("cpu")


def test_other_devices_and_recipes_are_refused():
    with pytest.raises(ValueError, match="device is 'meta'; allowed are None, CUDA devices and 'cpu'"):
        ot.is_available("meta")
    with pytest.raises(ValueError, match="recipe is 'int8'"):
        ot.is_available("cpu", "int8")
