"""``warmup(tune=)``: searches follow the compiles, and name the arguments that they do not take."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import octile.torch as ot
from octile.torch import warm

MODEL = nn.Sequential(ot.Linear(128, 64), nn.ReLU(), ot.Linear(64, 128))


def test_on_the_host_nothing_is_searched():
    assert ot.warmup(MODEL, (1, 64), tune=600) == 2


def test_every_layer_is_prepared_again_with_searches(monkeypatch):
    calls = []

    def noted(name):
        def call(*arguments):
            calls.append((name, arguments[0]) if name == "tune_prepares" else name)
            if name == "prepare_linear" and calls.count(name) > 3:
                raise RuntimeError("no device")

        return call

    names = "tune_prepares", "prepare_linear", "prepare_normed"
    monkeypatch.setattr(warm, "ops", SimpleNamespace(**{name: noted(name) for name in names}))
    with pytest.raises(RuntimeError, match="no device"):
        ot.warmup(MODEL, (1, 64), tune=5)
    assert calls == ["prepare_linear"] * 2 + [("tune_prepares", 5.0)] + ["prepare_linear"] * 2 + [
        ("tune_prepares", 0.0)
    ]
    calls.clear()
    ot.warmup(MODEL, (1, 64))
    assert calls == ["prepare_linear"] * 2


@pytest.mark.parametrize(
    ("tune", "error", "sentence"),
    [
        ("5", TypeError, "tune is of type str; allowed is a number of seconds, or None"),
        (True, TypeError, "tune is of type bool"),
        (0, ValueError, "tune is 0; allowed are None and seconds, more than 0"),
        (-1.5, ValueError, "tune is -1.5"),
        (float("nan"), ValueError, "tune is nan"),
        (float("inf"), ValueError, "tune is inf"),
    ],
)
def test_what_is_no_number_of_seconds_is_refused(tune, error, sentence):
    with pytest.raises(error, match=sentence):
        ot.warmup(MODEL, (1, 64), tune=tune)


def test_a_capture_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="while the current stream captures; allowed before the capture begins"):
        ot.warmup(MODEL, (1, 64), tune=5)
