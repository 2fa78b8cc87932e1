"""Which layers ``convert`` leaves by their names and places in a model, and how it calls a caller's filter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from torch import nn

from octile._types import wrong_type

#: Words of a dotted name that tell a layer's kind, wherever they stand.
_KINDS = {
    "output layer": re.compile(r"unembed\w*|lm_head|output_layer"),
    "embedding": re.compile(r"embed\w*"),
    "router": re.compile(r"router|gate"),
    "low-rank adapter": re.compile(r"lora_[AB]"),
}
#: Presets: modules with such a word in their dotted name stay as they are.
PRESETS = {
    "deepseek-v3": re.compile("|".join(kind.pattern for kind in _KINDS.values())),
    "all-linear": re.compile(r"(?!)"),
}
#: Words of output layers of a model. The "output" of an attention and the "score" of a block are ordinary layers.
_OUTPUTS = re.compile(r"output|head|score|classifier")


class Places:
    """Where the layers of a model stand, and what a preset leaves for that."""

    def __init__(self, model: nn.Module, preset: str) -> None:
        self.preset = preset
        self._linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        self._last = self._linear[-1][0] if self._linear else ""
        self._stacks = {""}  # names of modules that contain numbered blocks
        for name, _ in model.named_modules():
            words = name.split(".")
            numbers = [i for i, word in enumerate(words[:-1]) if word.isdecimal()]
            self._stacks.update(".".join(words[:i]) for i in range(numbers[0] if numbers else 0))
        self.output, self.embedding = self._output_layer(model) if preset == "deepseek-v3" else (None, "")

    def reason_by_name(self, name: str) -> str | None:
        """Returns why the preset leaves a module of this dotted name, or None."""
        words = name.split(".")
        for index, word in enumerate(words):
            if PRESETS[self.preset].fullmatch(word):
                kind = next(kind for kind, pattern in _KINDS.items() if pattern.fullmatch(word))
            elif self.preset == "deepseek-v3" and _OUTPUTS.fullmatch(word) and not self._is_inner(words, index):
                kind = "output layer"
            else:
                continue
            return f"{kind} by its name {word!r} (preset {self.preset})"
        return None

    def reason_by_shape(self, layer: nn.Module) -> str | None:
        """Returns why the preset leaves a layer for its sizes, or None."""
        if layer is not self.output:
            return None
        return f"output layer by its shape, that of {self.embedding!r} (preset {self.preset})"

    def _is_inner(self, words: list[str], index: int) -> bool:
        """Returns whether the part of a model that ``words[: index + 1]`` names is inside a block: a numbered one, or a
        module without numbered blocks behind which other linear layers come."""
        if any(word.isdecimal() for word in words[:index]):
            return True
        parent = ".".join(words[:index])
        return parent not in self._stacks and not self._last.startswith(parent + ".")

    def _output_layer(self, model: nn.Module) -> tuple[nn.Linear | None, str]:
        """Returns the last linear layer that has the shape of the largest embedding, is inside no block, and whose
        results no later layer takes; and the embedding's name."""
        embeddings = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
        name, words = max(embeddings, key=lambda item: item[1].num_embeddings, default=("", None))
        for path, layer in reversed(self._linear if words is not None else []):
            parts = path.split(".")
            if layer.out_features == words.num_embeddings and layer.in_features == words.embedding_dim:
                return (None if self._is_inner(parts, len(parts) - 1) else layer), name
            if layer.in_features == words.num_embeddings:
                break
        return None, name


Filter = Callable[[str, nn.Module], bool]


def as_filter(filter: Callable | None) -> Filter | None:
    """Returns a filter to call with a name and a module. One whose parameters are named, or annotated, (module, fqn) is
    called so, as torchao calls its own. Raises TypeError for an object that cannot be called."""
    if filter is None or isinstance(filter, _Called):
        return filter
    if not callable(filter):
        raise wrong_type("filter", filter, "a function of a name and a layer, or None")
    return _Called(filter, _takes_module_first(filter))


class _Called:
    """A caller's filter. Errors that another order of its arguments would explain say the order."""

    def __init__(self, function: Callable, module_first: bool) -> None:
        self.function, self.module_first = function, module_first

    def __call__(self, name: str, module: nn.Module) -> bool:
        try:
            return self.function(module, name) if self.module_first else self.function(name, module)
        except (AttributeError, TypeError) as error:
            given = "(module, name), as its parameters' names say" if self.module_first else "(name, module)"
            raise TypeError(
                f"octile: filter raised {type(error).__name__}: {error}; it was called with {given}; one with "
                "parameters named (module, fqn), as torchao's are, is called with the module first"
            ) from error


def _takes_module_first(filter: Callable) -> bool:
    try:
        parameters = [*inspect.signature(filter).parameters.values()][:2]
    except (TypeError, ValueError):  # of C
        return False
    if len(parameters) < 2:
        return False
    first, second = map(_kind_of, parameters)
    return (first == "module" and second != "module") or (second == "name" and first != "name")


def _kind_of(parameter: inspect.Parameter) -> str | None:
    """Returns "name" or "module" if a parameter's annotation or name tells its kind."""
    annotation, name = parameter.annotation, parameter.name.lower()
    if annotation in (str, "str"):
        return "name"
    if isinstance(annotation, type) and issubclass(annotation, nn.Module):
        return "module"
    if "name" in name or name in ("fqn", "path", "key"):
        return "name"
    if any(word in name for word in ("module", "layer", "linear")) or name in ("mod", "m"):
        return "module"
    return None
