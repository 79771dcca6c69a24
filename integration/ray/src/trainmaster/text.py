"""Texts that others wrote, for people."""

from __future__ import annotations

import re
from typing import TypeGuard

# As the daemon has it; and surrogates, which can't be printed at all.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = 1000) -> str:
    r"""What would move a terminal's cursor, colour it or turn the direction of writing is escaped; the rest is cut.

    >>> shown("\x1b[2Jgone"), shown("abcdef", 3)
    ('\\u{1b}[2Jgone', 'abc…')
    """
    plain = _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text[:most])
    return f"{plain}…" if len(text) > most else plain


def is_name(text: object) -> TypeGuard[str]:
    """Whether it can be the name of a server or of a type of nodes."""
    return isinstance(text, str) and 0 < len(text) <= 256 and not _UNSEEN.search(text)
