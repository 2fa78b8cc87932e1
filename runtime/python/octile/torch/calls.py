"""Counts of a layer's calls: in FP8, and without FP8 by the reason."""

from __future__ import annotations

NEVER = 2**62  # tokens that no call has

FP8, FEW, SWITCHED, SCHEDULED, PAUSED, UNALIGNED = range(6)

#: Why calls compute without FP8.
REASONS = {
    FEW: "fewer tokens than FP8 gains from",
    SWITCHED: "switched off by set_fp8",
    SCHEDULED: "outside of the schedule",
    PAUSED: "paused by a sentry",
    UNALIGNED: "sizes are not multiples of 16",
}


def no_calls() -> list[int]:
    """Returns counts of nothing: of ``FP8``, and of each reason."""
    return [0] * (1 + len(REASONS))
