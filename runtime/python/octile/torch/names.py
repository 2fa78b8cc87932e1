"""Names of many layers in few words, as reports show them."""

from __future__ import annotations

from collections import Counter, defaultdict

#: How many names or patterns a line of a report shows.
_SHOWN = 8


def by_value(values: dict[str, str]) -> dict[str, list[str]]:
    """Returns the names of each value, in their order."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        names[value].append(name)
    return names


def pattern_of(name: str) -> str:
    """Returns a name with "*" in place of the numbers of blocks; the last part stays."""
    *path, last = name.split(".")
    return ".".join(["*" if part.isdecimal() else part for part in path] + [last])


def shortened(names: list[str], of: Counter[str]) -> str:
    """Returns names as a report shows them: by a pattern if all layers of the pattern are among them, and with their
    number if not all are. of: the layers of each pattern."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for name in names:
        grouped[pattern_of(name)].append(name)
    shown: list[str] = []
    for pattern, group in grouped.items():
        if len(group) == of[pattern] > 1:
            shown.append(pattern)
        elif len(group) <= 3:
            shown += group
        else:
            shown.append(f"{pattern} ({len(group)} of {of[pattern]})")
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
