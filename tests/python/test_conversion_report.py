"""The text of a report of ``convert``, which layers stay for their place, and how a filter is called."""

import pytest
import torch
from torch import nn

import octile.torch as ot
from octile.torch.conversion_report import sized


def reasons(model, **options):
    options = {"min_dims": 16} | options
    return ot.convert(model, **options).skipped


# ---- nothing is silent


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: nn.Sequential(nn.ReLU()), "of Sequential: it has no nn.Linear"),
        (lambda: nn.Sequential(nn.Linear(64, 7)), "1 linear layers stay: sizes are not multiples of 16 (1)"),
        (lambda: nn.ModuleDict({"lm_head": nn.Linear(64, 64)}), "output layer by its name 'lm_head'"),
        (lambda: nn.Sequential(nn.LSTM(64, 64)), "it has no nn.Linear; others: is of a LSTM"),
    ],
)
def test_a_conversion_of_nothing_warns(make, told):
    with pytest.warns(UserWarning, match="^octile: convert converted nothing") as raised:
        ot.convert(make(), min_dims=16)
    assert told in str(raised[0].message) and raised[0].filename == __file__


def test_thresholds_that_leave_all_say_what_converts_them():
    with pytest.warns(UserWarning, match=r"convert\(model, min_dims=64\) converts them"):
        ot.convert(nn.Sequential(nn.Linear(64, 128)))


def test_a_conversion_of_something_does_not_warn(recwarn):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 7))
    ot.convert(model, min_dims=16)
    ot.convert(model, min_dims=16)  # all that it could do is done
    assert not [one for one in recwarn if "octile" in str(one.message)]


def test_matrices_of_no_linear_layer_are_named():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(32, 64))
            self.scale = nn.Parameter(torch.ones(64))
            self.lora = nn.Parameter(torch.zeros(64, 4))

    model = nn.ModuleDict(
        {
            "up": nn.Linear(64, 64),
            "attention": nn.MultiheadAttention(64, 4),
            "lstm": nn.LSTM(64, 32),
            "both": nn.Bilinear(64, 64, 32),
            "patches": nn.Conv2d(32, 64, 3),
            "depthwise": nn.Conv1d(64, 64, 4, groups=64),
            "words": nn.Embedding(64, 64),
            "norm": nn.LayerNorm([64, 64]),
            "experts": Router(),
        }
    )
    report = ot.convert(model, min_dims=16)
    function = "is of a MultiheadAttention: PyTorch's function multiplies it, and calls no layer"
    assert report.others == {
        "attention.in_proj_weight": function,
        "lstm.weight_ih_l0": "is of a LSTM: PyTorch's kernel of the recurrence multiplies it",
        "lstm.weight_hh_l0": "is of a LSTM: PyTorch's kernel of the recurrence multiplies it",
        "both.weight": "is of a Bilinear: a product of three tensors",
        "patches.weight": "is of a Conv2d: a convolution",
        "experts.weight": "is a parameter of a Router, which is not a linear layer",
    }
    assert f"\n  not converted, {function}: attention.in_proj_weight" in str(report)


@pytest.mark.parametrize("bias", (True, False))
def test_lazy_layers_stay(bias):
    model = nn.Sequential(nn.LazyLinear(64, bias=bias), nn.LazyConv1d(64, 3), nn.Linear(64, 64))
    report = ot.convert(model, min_dims=16)
    assert report.skipped == {"0": "is a LazyLinear that has no sizes before its first call"}
    assert list(report.converted) == ["2"] and ot.freeze_to_fp8(model).skipped == report.skipped


@pytest.mark.parametrize(
    "count, text",
    [(1, "1 byte"), (999, "999 bytes"), (1056, "1.06 kB"), (131_072, "131 kB"), (999_600, "1 MB")],
)
def test_sizes_are_told_in_their_unit(count, text):
    assert sized(count) == text


# ---- output layers


def linear(n=64, k=64):
    return nn.Linear(k, n)


def test_inner_layers_named_as_output_layers_are_converted():
    def block():
        return nn.ModuleDict({"score": linear(), "head": linear(), "mlp": linear(128)})

    model = nn.ModuleDict({"first": block(), "blocks": nn.ModuleList([block()]), "last": linear(), "head": linear(32)})
    assert list(reasons(model)) == ["head"]
    # The output of a model inside of another, and of one whose head is a module, are outputs.
    inner = nn.ModuleDict({"head": linear(), "blocks": nn.ModuleList([block()])})
    inside = nn.ModuleDict({"model": inner, "up": linear()})
    assert list(reasons(inside)) == ["model.head"]
    assert list(reasons(nn.ModuleDict({"up": linear(), "heads": nn.ModuleDict({"head": linear()})}))) == ["heads.head"]
    assert not reasons(nn.ModuleDict({"head": linear()}), preset="all-linear")


def test_inner_layers_shaped_as_the_embedding_are_converted():
    words = nn.Embedding(128, 64)
    mlp = nn.ModuleDict({"up": linear(128, 64), "down": linear(64, 128)})
    assert not reasons(nn.ModuleDict({"words": words, "up": linear(128, 64), "down": linear(64, 128)}))
    assert not reasons(nn.ModuleDict({"words": words, "mlp": mlp, "out": linear(32)}))
    blocks = nn.ModuleList([nn.ModuleDict({"up": linear(128, 64)})])
    assert not reasons(nn.ModuleDict({"words": words, "layers": blocks}))
    first = nn.ModuleDict({"words": words, "predictions": linear(128, 64), "layers": nn.ModuleList([linear()])})
    assert list(reasons(first)) == ["predictions"]


# ---- filters


def by_fqn(module, fqn):
    return "mlp" in fqn and isinstance(module, nn.Linear)


def by_types(a: nn.Module, b: str):
    return "mlp" in b


class Filter:
    def __call__(self, mod, full_name):
        return "mlp" in full_name


@pytest.mark.parametrize(
    "filter",
    [
        by_fqn,
        by_types,
        Filter(),
        lambda name, layer: "mlp" in name,
        lambda a, b: "mlp" in a,
        lambda layer_name, _: "mlp" in layer_name,
        lambda *both: "mlp" in both[0],
    ],
)
@pytest.mark.parametrize("function", (lambda m, f: ot.convert(m, filter=f, min_dims=16), ot.freeze_to_fp8))
def test_filters_take_either_order(filter, function):
    model = nn.ModuleDict({"mlp": linear(), "attention": linear()})
    report = function(model, filter)
    assert list(report.converted) == ["mlp"] and report.skipped == {"attention": "the filter leaves it"}


@pytest.mark.parametrize("filter", [lambda a, b: a.in_features > 0, lambda a, b: "mlp" in b])
def test_a_filter_of_unknown_order_that_fails_is_told_the_order(filter):
    model = nn.ModuleDict({"mlp": linear()})
    told = r"octile: filter raised .*; it was called with \(name, module\); .*\(module, fqn\)"
    with pytest.raises(TypeError, match=told):
        ot.convert(model, filter=filter)
    assert type(model["mlp"]) is nn.Linear


def test_what_is_no_filter_is_refused():
    with pytest.raises(TypeError, match="filter is .*; allowed is a function of a name and a layer, or None|filter"):
        ot.convert(nn.Sequential(linear()), filter="mlp")
