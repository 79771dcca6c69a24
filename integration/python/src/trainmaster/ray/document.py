"""JSON from places where others can write (Ray's key-value store, a shared folder), with limits on its size. Pure."""

from __future__ import annotations

import json
import reprlib
from typing import Any, NoReturn, TypeGuard

# The maximum of values: several times as many as in the largest plan.
_MOST_VALUES = 1_000_000
_MOST_DIGITS = 20


class BadDocument(ValueError):
    """An invalid document. The message is short for any content, and equal for equal faults."""


def decode(text: bytes, longest: int) -> dict[str, Any]:
    """Decodes a JSON object of at most `longest` bytes. Raises `BadDocument`."""
    if len(text) > longest:
        raise BadDocument(f"{len(text)} bytes must be at most {longest}")
    # An empty list takes 3 bytes in the text, but 64 in memory.
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise BadDocument(f"it has more than {_MOST_VALUES} values")
    try:
        document = json.loads(text.decode(), parse_int=_integer, parse_constant=_constant)
    except RecursionError:
        raise BadDocument("not JSON: nested too deeply") from None
    except ValueError as error:
        raise BadDocument(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadDocument(f"{brief(document)} must be an object")
    return document


def brief(value: object) -> str:
    """The beginning of a decoded value, for messages."""
    return reprlib.repr(value)


def is_count(value: object, most: int = 2**32 - 1) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
