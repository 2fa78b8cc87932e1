"""The library's table of recipes: in which FP8 types a linear layer keeps its tensors, and how its GEMMs sum."""

from __future__ import annotations

from typing import NamedTuple

from octile import _c
from octile._types import DTYPES, GRANULARITIES, SCALE_FORMATS, TensorType


class Row(NamedTuple):
    """A row of the table."""

    name: str  #: ends in ":f32" if fp32 scales are not powers of two
    activation: TensorType
    weight: TensorType
    gradient: TensorType
    promote_forward: str  #: of Y's GEMM, as its problem text has it
    promote_backward: str  #: of those of dX and dW
    delayed: bool


def _type_of(numbers: _c.TensorTypeNumbers) -> TensorType:
    def name_in(table: dict[str, int], number: int) -> str:
        return next(name for name, value in table.items() if value == number)

    names = name_in(GRANULARITIES, numbers.granularity), name_in(SCALE_FORMATS, numbers.scale_format)
    return TensorType(name_in(DTYPES, numbers.dtype), *names)


def _row_of(row: _c.RecipeRow) -> Row:
    types = map(_type_of, (row.activation, row.weight, row.gradient))
    promotes = ("none" if k < 0 else str(k) for k in (row.promote_forward, row.promote_backward))
    return Row(row.name.decode(), *types, *promotes, bool(row.delayed))


ROWS = tuple(map(_row_of, _c.recipes()))
