"""Reads from a module's forward whether it is down(act(gate(x)) * up(x)) and nothing else."""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from octile.torch.gated import ACTIVATIONS

_MULTIPLY = (operator.mul, torch.mul, "mul")
_CHUNK = (torch.chunk, "chunk")
_SPLIT = (torch.split, "split")
_SIZE_NAMES = {"chunks": "size", "split_size": "size", "split_size_or_sections": "size"}
_SQUARE = (torch.square, "square")
_POWER = (operator.pow, torch.pow, "pow")
#: Names of activations that modules and functions compute, as ``gated_mlp`` takes them. Those that it does not take are
#: named for the reason alone.
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
_FUNCTIONS = {F.silu: "silu", F.relu: "relu", torch.relu: "relu", "relu": "relu", torch.sigmoid: "sigmoid"}
_MODULES = {nn.SiLU: "silu", nn.ReLU: "relu", nn.Sigmoid: "sigmoid"}
#: The same of classes of transformers, by their names in transformers.activations.
_OF_TRANSFORMERS = {
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "ReLUSquaredActivation": "relu2",
}
_UNKNOWN = "its activation is none of those that quantisers compute: SiLU, GELU, ReLU and its square"
OTHER = "its forward is not down(act(gate(x)) * up(x))"


class Structure(NamedTuple):
    """The names of an MLP's layers. up: None if gate has the outputs of both, or nothing is multiplied. reads_dtype: it
    was found of inputs of the weights' type alone, because its forward asks for types."""

    gate: str
    down: str
    up: str | None
    activation: str
    gated: bool
    reads_dtype: bool

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.gate, self.down) if self.up is None else (self.gate, self.down, self.up)


class _NotAnMlp(Exception):
    """Its text is the reason."""


class _Values(fx.Proxy):
    """A tensor of the weights' type."""

    @property
    def dtype(self) -> torch.dtype:
        return self.tracer.dtype_of_weights()


class _Weight(_Values):
    """A parameter, of which a forward may ask its type and whether it is a tensor."""

    __class__ = property(lambda self: torch.Tensor)


class _Tracer(fx.Tracer):
    """Looks into no child."""

    reads_dtype = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return (_Weight if node.op == "get_attr" else _Values)(node, self)

    def dtype_of_weights(self) -> torch.dtype:
        self.reads_dtype = True
        [dtype] = {parameter.dtype for parameter in self.root.parameters()}
        return dtype


def structure_of(module: nn.Module) -> Structure | str:
    """Returns what the forward of the module's class computes, in ``train()`` mode and in ``eval()`` mode, or why that
    is not an MLP whose activation a quantiser computes."""
    found = [_structure_in(module, training) for training in (True, False)]
    if found[0] == found[1]:
        return found[0]
    return next((one for one in found if isinstance(one, str)), OTHER)


def _structure_in(module: nn.Module, training: bool) -> Structure | str:
    before, was, tracer = module.__dict__.copy(), module.training, _Tracer()
    module.__dict__["training"] = training
    try:
        graph = tracer.trace(module)
    except Exception:  # noqa: BLE001  (a forward that is given no tensor may raise anything)
        return OTHER
    finally:
        module.__dict__["training"], reads_dtype = was, tracer.reads_dtype
        vars(tracer).clear()  # so that only the collector's garbage holds the module
        after = module.__dict__.copy()
        module.__dict__.clear()
        module.__dict__.update(before)
    if after.keys() != before.keys() or any(after[name] is not value for name, value in before.items()):
        return "its forward changes its attributes"
    try:
        return _Reader(module, graph).read()._replace(reads_dtype=reads_dtype)
    except _NotAnMlp as reason:
        return str(reason)


class _Reader:
    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self.module, self.graph = module, graph
        self.read_nodes: set[fx.Node] = set()

    def read(self) -> Structure:
        """Raises _NotAnMlp for anything else."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder" and node.users]
        [result] = [node for node in self.graph.nodes if node.op == "output"]
        self._expect(len(inputs) == 1 and inputs[0] is self._first_placeholder())
        self.x = inputs[0]
        down, product = self._linear(self._behind_dropout(result.args[0]))
        product = self._behind_dropout(product)
        if self._is(product, _MULTIPLY) and not self._is_square_of_relu(product):
            self.read_nodes.add(product)
            gate, up, activation = self._gated(*self._two(product.args))
        else:
            activation, node = self._activation(product)
            gate, up = self._layer_of_x(node), None
        gated = self._is(product, _MULTIPLY) and not self._is_square_of_relu(product)
        nodes = {node for node in self.graph.nodes if node.op not in ("placeholder", "output")}
        asked = {node for node in nodes if node.op == "get_attr" and not node.users}
        self._expect(nodes - asked == self.read_nodes)
        names = gate, down, *(() if up is None else (up,))
        self._expect(len(set(names)) == len(names))
        return Structure(gate, down, up, activation, gated, False)

    def _first_placeholder(self) -> fx.Node:
        return next(node for node in self.graph.nodes if node.op == "placeholder")

    @staticmethod
    def _expect(holds: bool, reason: str = OTHER) -> None:
        if not holds:
            raise _NotAnMlp(reason)

    @staticmethod
    def _is(node: object, targets: tuple) -> bool:
        return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets

    def _two(self, arguments: tuple) -> tuple[fx.Node, fx.Node]:
        self._expect(len(arguments) == 2 and all(isinstance(a, fx.Node) for a in arguments))
        return arguments

    def _child(self, node: object) -> nn.Module | None:
        if not isinstance(node, fx.Node) or node.op != "call_module" or "." in node.target:
            return None
        return self.module._modules.get(node.target)

    def _linear(self, node: object) -> tuple[str, fx.Node]:
        """Returns the name of a linear layer, and its input."""
        self._expect(isinstance(self._child(node), nn.Linear) and len(node.args) == 1 and not node.kwargs)
        self.read_nodes.add(node)
        return node.target, node.args[0]

    def _layer_of_x(self, node: object) -> str:
        name, x = self._linear(self._behind_dropout(node))
        self._expect(x is self.x)
        return name

    def _behind_dropout(self, node: object) -> object:
        while True:
            child = self._child(node)
            if isinstance(child, nn.Dropout):
                self._expect(type(child) is nn.Dropout and child.p == 0, "it has dropout")
            elif type(child) is nn.Identity:  # where others have a norm
                pass
            elif self._is_function(node, F.dropout):
                p, training = self._dropout_arguments(node)
                self._expect(p == 0 or training is False, "it has dropout")
            else:
                return node
            self.read_nodes.add(node)
            node = node.args[0]

    @staticmethod
    def _is_function(node: object, function: object) -> bool:
        return isinstance(node, fx.Node) and node.op == "call_function" and node.target is function

    @staticmethod
    def _dropout_arguments(node: fx.Node) -> tuple[object, object]:
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        return given.get("p", 0.5), given.get("training", True)

    def _gated(self, a: fx.Node, b: fx.Node) -> tuple[str, str | None, str]:
        """Returns the layers of gate and up, and the activation, of the two factors."""
        reasons = []
        for gate, up in ((a, b), (b, a)):
            before = set(self.read_nodes)
            try:
                activation, gate = self._activation(gate)
                return *self._sources(gate, self._behind_dropout(up)), activation
            except _NotAnMlp as reason:
                reasons.append(str(reason))
                self.read_nodes = before
        raise _NotAnMlp(next((reason for reason in reasons if reason != OTHER), OTHER))

    def _sources(self, gate: object, up: object) -> tuple[str, str | None]:
        if not self._is_function(gate, operator.getitem) or not self._is_function(up, operator.getitem):
            return self._layer_of_x(gate), self._layer_of_x(up)
        halves, first = gate.args
        self._expect(up.args[0] is halves and [first, up.args[1]] in ([0, 1], [1, 0]))
        self._expect(first == 0, "the outputs of its first layer are up, then gate")
        self._expect(self._is_in_halves(halves))
        self.read_nodes |= {gate, up, halves}
        return self._layer_of_x(halves.args[0]), None

    def _is_in_halves(self, node: fx.Node) -> bool:
        """Returns whether the node cuts the last dimension of a layer's output into two."""
        given = dict(zip(("tensor", "size", "dim"), node.args, strict=False))
        given |= {_SIZE_NAMES.get(name, name): value for name, value in node.kwargs.items()}
        child, size = self._child(node.args[0]), given.get("size")
        if not isinstance(child, nn.Linear) or given.get("dim") != -1:
            return False
        if self._is(node, _CHUNK):
            return size == 2 and child.out_features % 2 == 0
        sizes = list(size) if isinstance(size, list | tuple) else [size, child.out_features - size]
        return self._is(node, _SPLIT) and len(sizes) == 2 and sizes[0] == sizes[1] == child.out_features // 2

    def _is_square_of_relu(self, node: fx.Node) -> bool:
        a, b = node.args if len(node.args) == 2 else (None, 0)
        return a is b and self._activation_name(a) == "relu"

    def _activation(self, node: object) -> tuple[str, fx.Node]:
        """Returns the activation that a node computes, and its operand."""
        node = self._behind_dropout(node)
        squares = self._is(node, _SQUARE) or (self._is(node, _POWER) and tuple(node.args[1:]) == (2,))
        if squares or (self._is(node, _MULTIPLY) and self._is_square_of_relu(node)):
            inner = node.args[0]
            self._expect(self._activation_name(inner) == "relu", _UNKNOWN)
            self.read_nodes |= {node, inner}
            return "relu2", inner.args[0]
        name = self._activation_name(node)
        is_source = isinstance(self._child(node), nn.Linear) or self._is_function(node, operator.getitem)
        self._expect(name is not None, OTHER if is_source else _UNKNOWN)
        self._expect(name in ACTIVATIONS, f"its activation is {name}, which PyTorch computes")
        self.read_nodes.add(node)
        return name, node.args[0]

    def _activation_name(self, node: object) -> str | None:
        if not isinstance(node, fx.Node):
            return None
        child = self._child(node)
        if child is not None:
            return activation_of(child) if len(node.args) == 1 and not node.kwargs else None
        if self._is_function(node, F.gelu):
            is_known = len(node.args) == 1 and set(node.kwargs) <= {"approximate"}
            return _GELU.get(node.kwargs.get("approximate", "none")) if is_known else None
        known = node.op in ("call_function", "call_method") and len(node.args) == 1
        return _FUNCTIONS.get(node.target) if known and set(node.kwargs) <= {"inplace"} else None


def activation_of(module: nn.Module) -> str | None:
    """Returns the name of a module's computation, which ``gated_mlp`` knows if it is one of ``ACTIVATIONS``."""
    kind = type(module)
    if kind is nn.GELU:
        return _GELU.get(module.approximate)
    return _OF_TRANSFORMERS.get(kind.__name__) if kind.__module__ == "transformers.activations" else _MODULES.get(kind)
