"""The report of ``convert`` and ``freeze_to_fp8`` on a model."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field

from octile.torch.names import by_value, pattern_of, shortened
from octile.torch.recipes import Recipe

_COPIES_TOLD = {
    "none": "training keeps no FP8 copies of weights; {} with weights='rowwise', {} with 'both'",
    "rowwise": "training keeps FP8 copies of weights, one byte an element: {}",
    "both": "training keeps FP8 copies of weights, two bytes an element: {1}",
}


def sized(count: int) -> str:
    """Returns a number of bytes to three digits."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    value, units = float(count), ["kB", "MB", "GB", "TB"]
    for unit in units:
        value /= 1000
        if value < 999.5 or unit == units[-1]:
            break
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


@dataclass
class Report:
    """The result of ``convert`` or ``freeze_to_fp8``: converted modules, and skipped ones with the reason, by name."""

    recipe: Recipe
    converted: dict[str, str] = field(default_factory=dict)  #: name to sizes, and from how many tokens on
    skipped: dict[str, str] = field(default_factory=dict)  #: name to reason
    others: dict[str, str] = field(default_factory=dict)  #: names of matrices of no linear layer, to the reason
    thresholds: str | None = None  #: which verdicts decided; None if ``min_dims`` was given
    min_dims: int | None = None  #: the integer ``min_dims`` that converts every layer which the thresholds leave
    target: str | None = None  #: what the layers are now, if that is not said by the recipe
    keep_input: list[str] = field(default_factory=list)  #: names of those that keep their input itself for backward
    copies: str | None = None  #: what ``convert`` was told of the weights' copies
    elements: int = 0  #: of the converted layers' weights
    kept: tuple[int, int] = (0, 0)  #: bytes a token of the linear layers' inputs until backward, before and now
    norm_kinds: dict[str, str] = field(default_factory=dict)  #: names of norms that PyTorch's kernels compute, to kinds
    fused: list[str] = field(default_factory=list)  #: names of MLPs whose activation quantisers compute
    unfused: dict[str, str] = field(default_factory=dict)  #: names of other MLPs to the reason
    experts: list[str] = field(default_factory=list)  #: names of the experts of mixtures among ``converted``

    @property
    def norms(self) -> list[str]:
        """Names of the RMS norms and layer norms that PyTorch's fused kernels compute."""
        return list(self.norm_kinds)

    def is_too_small(self, *sizes: int) -> None:
        """Says that the thresholds leave a layer of these sizes."""
        self.min_dims = min(sizes if self.min_dims is None else (*sizes, self.min_dims))

    def warn_if_nothing(self, function: str, model: object) -> None:
        """Warns the caller of ``function`` if it found nothing to do."""
        if self.converted:
            return
        reasons = [f"{reason} ({len(names)})" for reason, names in by_value(self.skipped | self.others).items()]
        shown = "; ".join(reasons[:4]) + (f"; and {len(reasons) - 4} more reasons" if len(reasons) > 4 else "")
        found = f"{len(self.skipped)} linear layers stay: {shown}" if self.skipped else "it has no nn.Linear"
        found += f"; others: {shown}" if self.others and not self.skipped else ""
        instead = f"; {function}(model, min_dims={self.min_dims}) converts them" if self.min_dims is not None else ""
        text = f"octile: {function} converted nothing of {type(model).__name__}: {found}{instead}"
        warnings.warn(text, UserWarning, stacklevel=3)

    def __str__(self) -> str:
        sizes, reasons = by_value(self.converted), by_value(self.skipped)
        patterns = Counter(map(pattern_of, [*self.converted, *self.skipped]))
        what = f"{len(self.converted) - len(self.experts)} linear layers"
        if self.experts:
            what += f" and the experts of {len(self.experts)} mixtures"
        lines = [f"{what} to {self.target or self.recipe.text}, {len(self.skipped)} not"]
        if self.thresholds is not None:
            lines.append(f"  thresholds: {self.thresholds}")
        lines += [f"  {len(names)} of {size}: {shortened(names, patterns)}" for size, names in sizes.items()]
        lines += [f"  {reason}: {shortened(names, patterns)}" for reason, names in reasons.items()]
        lines += self._of_others()
        if self.converted and self.copies is not None:
            lines.append("  " + _COPIES_TOLD[self.copies].format(sized(self.elements), sized(2 * self.elements)))
        if self.kept[0]:
            lines.append(self._of_inputs())
        if self.keep_input:
            lines.append(f"  for backward keep their input, as attention does: {shortened(self.keep_input, patterns)}")
        norms = Counter(map(pattern_of, self.norms))
        for kind, names in by_value(self.norm_kinds).items():
            count = f"1 {kind}" if len(names) == 1 else f"{len(names)} {kind}s"
            lines.append(f"  {count} by PyTorch's fused kernel: {shortened(names, norms)}")
        mlps = Counter(map(pattern_of, [*self.fused, *self.unfused]))
        if self.fused:
            lines.append(f"  MLPs whose activation quantisers compute: {shortened(self.fused, mlps)}")
        for reason, names in by_value(self.unfused).items():
            lines.append(f"  MLPs that compute as before, because {reason}: {shortened(names, mlps)}")
        if self.min_dims is not None:
            call = f"convert(model, min_dims={self.min_dims})"
            lines.append(f"  {call} asks no thresholds, and converts these layers too")
        return "\n".join(lines)

    def _of_others(self) -> list[str]:
        patterns = Counter(map(pattern_of, self.others))
        names_by_reason = by_value(self.others).items()
        return [f"  not converted, {reason}: {shortened(names, patterns)}" for reason, names in names_by_reason]

    def _of_inputs(self) -> str:
        before, now = map(sized, self.kept)
        text = f"  of their inputs, backward needs {now} a token, and {before} as nn.Linear"
        if self.kept[1] == 0:
            text = f"  backward takes their inputs from norms' and MLPs' tensors, and nn.Linear keeps {before} a token"
        return f"{text}, if layers of one module share them" + " and norms beside it compute them" * bool(self.norms)
