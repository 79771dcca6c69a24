"""Makes foreign texts safe to print."""

from __future__ import annotations

import re
from typing import TypeGuard

# The daemon's set of characters, and surrogates, which can't be printed.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, most: int = 1000) -> str:
    r"""Escapes control characters and characters that change the direction of writing. Cuts the text after `most` ones.

    >>> printable("\x1b[2Jgone"), printable("abcdef", 3)
    ('\\u{1b}[2Jgone', 'abc…')
    """
    plain = _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text[:most])
    return f"{plain}…" if len(text) > most else plain


def is_name(text: object) -> TypeGuard[str]:
    """Whether a text can be the name of a server or of a node type."""
    return isinstance(text, str) and 0 < len(text) <= 256 and not _UNSEEN.search(text)
