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


def describe_least(least: tuple[int, int, int], unit: str) -> str:
    """Returns what a report says of the least tokens or rows of calls in FP8: in training, and without gradients with
    weights trusted and compared."""
    training, trusted, compared = least
    parts = []
    if 0 < training < NEVER:
        parts.append(f"FP8 from {training} {unit} a call on")
    elif training == 0 and compared > 0:
        parts.append(f"FP8 at any number of {unit}")
    if training == NEVER and compared == 0:
        parts.append("FP8 in eval() alone")
    elif 0 < compared < NEVER:
        others = "at any number" if trusted == 0 else f"from {trusted} on"
        after = f" ({others} after trust_weights)" if trusted != compared else ""
        parts.append(f"{'' if parts else 'FP8 '}in eval() from {compared} on{after}")
    return "".join(f", {text}" for text in parts)


def no_calls() -> list[int]:
    """Returns counts of nothing: of ``FP8``, and of each reason."""
    return [0] * (1 + len(REASONS))
