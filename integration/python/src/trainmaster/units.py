"""Parses quantities such as "10GiB", "1Gbit", "20s" or 0.5 to integers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import JobError

_SHAPE = re.compile(r"\s*([-+.0-9]*)\s*(.*?)\s*", re.DOTALL)
_COUNT = ({"": 1000, "m": 1}, "a number such as 2 or 0.5, or thousandths such as 500m")
_BYTES = ({"MiB": 1, "GiB": 1 << 10, "TiB": 1 << 20}, "a number with MiB, GiB or TiB, such as 10GiB")
_RATE = ({"Mbit": 1, "Gbit": 1000}, "a number with Mbit or Gbit (a second), such as 1Gbit")
_TIME = (
    {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
    "a number with ms, s, m, h or d, such as 20s",
)


def amount(key: str, resource: str, value: object) -> int:
    """Parses the quantity of a resource: thousandths, MiB for memory and disk, or Mbit/s for bandwidth.

    >>> amount("worker.memory", "memory", "10GiB"), amount("worker.gpu", "gpu", 0.5)
    (10240, 500)
    """
    units, allowed = _BYTES if resource in ("memory", "disk") else _RATE if resource == "bandwidth" else _COUNT
    return _scaled(key, value, units, allowed)


def size(key: str, value: object) -> int:
    """Parses a size to MiB."""
    return _scaled(key, value, *_BYTES)


def span(key: str, value: object) -> int:
    """Parses a time to milliseconds.

    >>> span("deadline", "1.5h")
    5400000
    """
    return _scaled(key, value, *_TIME)


def _scaled(key: str, value: object, units: Mapping[str, int], allowed: str) -> int:
    def wrong(problem: str) -> JobError:
        return JobError(f"{key}: {value!r} is not allowed here: {problem}; write {allowed}")

    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise wrong("neither a number nor text")
    # Python writes very small and very large numbers with an exponent, which is no unit.
    text = value if isinstance(value, str) else f"{value:.9f}"
    match = _SHAPE.fullmatch(text)
    assert match, "the pattern takes any text"
    try:
        number = float(match[1])
    except ValueError:
        raise wrong("not a number") from None
    if match[2] not in units:
        raise wrong("unknown unit" if match[2] else "the unit is missing")
    scaled = number * units[match[2]]
    if scaled < 0:
        raise wrong("negative")
    if scaled > 1e15:
        raise wrong("too large")
    if abs(scaled - round(scaled)) > 1e-6:
        raise wrong("finer than the smallest part that is counted")
    return round(scaled)
