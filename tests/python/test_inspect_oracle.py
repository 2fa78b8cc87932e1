"""octile.numpy.inspect against sums in fp64 over casts of ml_dtypes, those of tests/oracle/inspect_oracle.py: weights,
activations and gradients of all recipes, whole and in samples."""

import math
import sys
from pathlib import Path

import numpy
import pytest

import octile.numpy as on

ml_dtypes = pytest.importorskip("ml_dtypes")
sys.path.append(str(Path(__file__).resolve().parents[1] / "oracle"))
import inspect_oracle as oracle  # noqa: E402
from oracle_common import Tally  # noqa: E402


def record_of(loss):
    """Returns the numbers as a record of the command has them."""
    finite = lambda value: value if math.isfinite(value) else None  # noqa: E731
    return {"blocks": loss.blocks, "blocks_set_by_one": loss.set_by_one, "flushed_share": loss.flushed_share,
            "saturated_share": loss.saturated_share, "snr_db": finite(loss.snr_db),
            "rest_snr_db": finite(loss.rest_snr_db), "bulk_snr_db": finite(loss.bulk_snr_db),
            "worst_blocks": [{"row": block.row, "col": block.col} for block in loss.worst]}  # fmt: skip


@pytest.mark.parametrize("role", ["weight", "activation", "gradient"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_roles(role, dtype):
    rng = numpy.random.default_rng(7)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else numpy.dtype(dtype)
    x = oracle.matrix(rng, 150, 300, kind)
    seen = on.inspect(x, oracle.RECIPES, role)["array"]
    tally = Tally()
    for recipe in oracle.RECIPES:
        expected = oracle.Expected(recipe, oracle.source_max(kind), role)
        expected.add(x.astype(numpy.float32))
        expected.compare(tally, f"{role} {dtype} {recipe}", record_of(seen.losses[recipe]))
        # Scales are made of the largest magnitude: no element is beyond the format's largest value.
        assert expected.saturated == seen.losses[recipe].saturated == 0
    assert tally.compared > 8 * len(oracle.RECIPES) and not tally.failures


@pytest.mark.parametrize("role", ["weight", "activation", "gradient"])
@pytest.mark.parametrize("recipes", [oracle.RECIPES, ["blockwise_hybrid", "tensorwise:f32", "mxfp8"]])
@pytest.mark.parametrize("shape", [(1300, 1500), (300, 5000)])
def test_samples(role, recipes, shape):
    x = oracle.matrix(numpy.random.default_rng(9), *shape, numpy.float32)
    seen = on.inspect(x, recipes, role, sample=0.4)["array"]
    assert seen.elements == sum(x[part].size for _, _, part in oracle.panels(shape, recipes, 0.4)) < x.size
    tally = Tally()
    for recipe in recipes:
        expected = oracle.Expected(recipe, oracle.source_max(numpy.float32), role)
        expected.add_sample(x, recipes, 0.4)
        expected.compare(tally, f"{role} {recipe}", record_of(seen.losses[recipe]))
    assert tally.compared > 8 * len(recipes) and not tally.failures
