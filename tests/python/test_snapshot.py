"""Fused MLPs and norms of models that change after convert(): each call computes what the module computes by then."""

import copy
import functools
import io
import pickle
from types import SimpleNamespace

import pytest
import torch
from test_gated_modules import is_fused
from torch import nn
from torch.nn import functional as F

import octile.torch as ot
from octile.torch.norms import FusedNorm
from octile.torch.snapshot import Snapshot

H, INNER = 64, 256


class Ten(nn.Module):
    def forward(self, x):
        return x * 0 + 10


class Switches(nn.Module):
    """Changes of modules of models."""

    bonus = 0.0  # of the class

    def __init__(self):
        super().__init__()
        self.adapter = self._late = None
        self.extra = nn.ModuleList()
        self.skip, self.steps = False, [0.0]
        self.config = SimpleNamespace(shift=0.0)
        self.register_buffer("mask", None)
        self.register_parameter("bias", None)

    def switched(self, y):
        return self.moved(y)

    def moved(self, y):
        if self.adapter is not None:
            y = self.adapter(y)
        for module in self.extra:
            y = module(y)
        if self.skip:
            y = y * 2
        if self.mask is not None:
            y = y * self.mask
        if self.bias is not None:
            y = y + self.bias
        if self._late is not None or hasattr(self, "later"):
            y = y + 5
        for shift in (self.steps[0], self.config.shift, self.bonus, getattr(self, "unknown", 0.0)):
            if shift:
                y = y + shift
        return y


class Mlp(Switches):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(H, INNER), nn.Linear(INNER, H), nn.ReLU()

    def forward(self, x):
        return self.switched(self.down(self.act(self.up(x))))


class Norm(Switches):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(H)), 1e-5

    def forward(self, x):
        values = x.float()
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.switched(self.weight * values.to(x.dtype))


def converted(module, fuse=True):
    torch.manual_seed(0)
    model = nn.ModuleDict({"module": module(), "layer": nn.Linear(H, H)}).bfloat16()
    report = ot.convert(model, min_dims=16, preset="all-linear", fuse=fuse)
    assert (report.fused + report.norms == ["module"]) == fuse
    return model["module"]


def inputs(**options):
    return torch.randn(2, 10, H, generator=torch.Generator().manual_seed(1), **options).bfloat16()


def vector():
    return nn.Parameter(torch.full((H,), 3.0).bfloat16())


#: Changes of an instance.
CHANGES = {
    "an attribute that was None": lambda m: setattr(m, "adapter", Ten()),
    "a private attribute that was None": lambda m: setattr(m, "_late", 1),
    "a switch": lambda m: setattr(m, "skip", True),
    "an attribute that is asked for": lambda m: setattr(m, "unknown", 3.0),
    "an attribute whose name is asked for": lambda m: setattr(m, "later", None),
    "a module that is asked for": lambda m: m.add_module("later", Ten()),
    "a list": lambda m: m.steps.__setitem__(0, 4.0),
    "a configuration": lambda m: setattr(m.config, "shift", 4.0),
    "a buffer": lambda m: setattr(m, "mask", torch.full((H,), 3.0).bfloat16()),
    "a parameter": lambda m: setattr(m, "bias", vector()),
    "a method": lambda m: setattr(m, "moved", lambda y: y + 1),
}
OF_MLPS = {
    "a child in an empty list": lambda m: m.extra.append(Ten()),
    "an activation": lambda m: setattr(m, "act", nn.Tanh()),
}
OF_NORMS = {"epsilon": lambda m: setattr(m, "eps", 1.0)}
CASES = [
    *((Mlp, name, change) for name, change in (CHANGES | OF_MLPS).items()),
    *((Norm, name, change) for name, change in (CHANGES | OF_NORMS).items()),
]
#: Changes of a class, by the attribute and its new value.
OF_CLASSES = {
    "forward": lambda own: lambda self, x: own(self, x) * 2,
    "moved": lambda own: lambda self, y: own(self, y) * 2,
    "bonus": lambda own: 3.0,
    "unknown": lambda own: 3.0,
}


@pytest.mark.parametrize("make, name, change", CASES, ids=[f"{make.__name__}-{name}" for make, name, _ in CASES])
def test_what_changes_a_module_is_seen_by_the_next_call(make, name, change):
    x = inputs()
    plain, fused = (converted(make, fuse) for fuse in (False, True))
    before = fused(x)
    assert is_fast(fused, x)
    for module in (plain, fused):
        change(module)
    assert not is_fast(fused, x)
    assert fused(x).equal(plain(x)) and not fused(x).equal(before)


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("make", [Mlp, Norm])
def test_patched_classes_are_followed_while_they_are_patched(make, name, monkeypatch):
    x = inputs()
    plain, fused = (converted(make, fuse) for fuse in (False, True))
    before = fused(x)
    with monkeypatch.context() as patch:
        patch.setattr(make, name, OF_CLASSES[name](getattr(make, name, None)), raising=False)
        assert fused(x).equal(plain(x)) and not is_fast(fused, x)
    assert is_fast(fused, x) and fused(x).equal(before)
    with monkeypatch.context() as patch:  # of a base
        patch.setattr(Switches, "moved", lambda self, y: y - 1)
        assert fused(x).equal(plain(x))
    with monkeypatch.context() as patch:  # of a child
        patch.setattr(nn.ReLU, "forward", lambda self, y: y.abs())
        assert fused(x).equal(plain(x)) or make is Norm


def is_fast(module, x):
    if isinstance(module, FusedNorm):
        holder, called = module._fused, []
        kind = holder.kind._replace(fused=lambda *given: called.append(1) or holder.kind.fused(*given))
        module.__dict__["_fused"] = holder._replace(kind=kind)
        module(x)
        module.__dict__["_fused"] = holder
        return bool(called)
    return is_fused(module, x)


COMPILED = {
    Mlp: ["an attribute that was None", "a child in an empty list"],
    Norm: ["an attribute that is asked for", "a list", "epsilon"],
}


@pytest.mark.parametrize("make", COMPILED)
def test_compiled_modules_follow_changes(make):
    x, changes = inputs(), CHANGES | OF_MLPS | OF_NORMS
    for name in COMPILED[make]:
        torch._dynamo.reset()
        plain, fused = (converted(make, fuse) for fuse in (False, True))
        with torch.no_grad():
            run = torch.compile(fused, fullgraph=True, backend="eager")
            torch.testing.assert_close(run(x), fused(x), rtol=0.02, atol=0.02)
            for module in (plain, fused):
                changes[name](module)
            assert run(x).equal(plain(x)), name


def test_sequential_mlps_that_grow_and_shrink():
    def make():
        return nn.Sequential(nn.Linear(H, INNER), nn.ReLU(), nn.Linear(INNER, H))

    x = inputs()
    plain, fused = (converted(make, fuse) for fuse in (False, True))
    for change in (
        lambda m: m.append(Ten()),
        lambda m: m.insert(0, nn.Tanh()),
        lambda m: m.pop(3),
        lambda m: m.__setitem__(1, nn.Tanh()),
    ):
        change(plain)
        change(fused)
        assert fused(x).equal(plain(x))
    fused = converted(make)
    part = fused[:-1]
    assert part(x).equal(F.relu(fused[0](x))) and is_fast(fused, x)
    assert type(part)(nn.Tanh())(x).equal(x.tanh()) and type(fused) is type(part)
    assert pickle.loads(pickle.dumps(part))(x).equal(part(x))


def test_instances_of_a_fused_norms_class_compute_as_the_class():
    fused, x = converted(Norm), inputs()
    other = type(fused)().bfloat16()
    assert other(x).equal(Norm.forward(other, x)) and "_fused" not in other.__dict__
    holder = nn.ModuleDict({"norm": other, "layer": nn.Linear(H, H).bfloat16()})
    assert ot.convert(holder, min_dims=16, preset="all-linear").norms == ["norm"] and is_fast(other, x)


@pytest.mark.parametrize("make", [Mlp, Norm])
def test_copies_are_recognised_again(make, monkeypatch):
    fused, x = converted(make), inputs()
    wanted = fused(x)
    stored = io.BytesIO()
    torch.save(fused, stored)
    for twin in (copy.copy(fused), copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert is_fast(twin, x) and twin(x).equal(wanted) and type(twin) is type(fused)
    twin = copy.deepcopy(fused)
    twin.skip = True
    other = copy.deepcopy(twin)
    assert not is_fast(other, x)
    torch.testing.assert_close(other(x), wanted * 2, rtol=0.02, atol=0.02)
    monkeypatch.setattr(make, "forward", lambda self, x: x + 1)  # another version of the program
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    assert type(loaded) is make and loaded(x).equal(x + 1)


def test_new_names_of_libraries_are_no_change():
    for make in (Mlp, Norm):
        fused = converted(make)
        fused._is_fsdp_managed_module = True
        fused.__dict__["__composable_api_state_key"] = {}
        assert is_fast(fused, inputs())
        fused.label = "mine"
        assert not is_fast(fused, inputs())
        del fused.label
        assert is_fast(fused, inputs())


@pytest.mark.parametrize("make", [Mlp, Norm])
def test_modules_with_tensors_of_their_own_stay(make):
    class Own(make):
        def forward(self, x):
            return super().forward(x) * 2 if self.gain[0] else super().forward(x)

    for gain in (torch.zeros(1), [torch.zeros(1)], nn.Buffer(torch.zeros(1))):
        module = Own()
        module.gain = gain
        model = nn.ModuleDict({"module": module, "layer": nn.Linear(H, H)})
        report = ot.convert(model, min_dims=16, preset="all-linear")
        assert report.norms == report.fused == []


def test_names_are_found_through_wrappers_properties_and_bases(monkeypatch):
    def wrapped(function):
        @functools.wraps(function)
        def call(self, x):
            return function(self, x)

        return call

    class Base(nn.Module):
        def forward(self, x):
            return x * self.scale

    class Derived(Base):
        @property
        def scale(self):
            return getattr(self, "factor", 1.0)

        @wrapped
        def forward(self, x):
            return super().forward(x) + self.shift()

        @staticmethod
        def shift():
            return 1.0

    module = Derived()
    snapshot = Snapshot(module, Derived)
    assert snapshot.holds(module)
    for owner, name, value in (
        (Base, "forward", lambda self, x: x),
        (Derived, "scale", property(lambda self: 2.0)),
        (Derived, "shift", staticmethod(lambda: 2.0)),
        (Derived, "factor", 2.0),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            assert not snapshot.holds(module), name
        assert snapshot.holds(module)
    module.factor = 2.0
    assert not snapshot.holds(module)
