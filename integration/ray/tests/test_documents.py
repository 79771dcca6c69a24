"""Documents that any user of the cluster can write: every content is read, or refused with a short message."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.ray.document import BadDocument
from trainmaster.ray.plan import Plan
from trainmaster.text import printable

pytestmark = pytest.mark.minimum

NOW = 1_700_000_000_000
DOCUMENTS = 20_000
MIB = 1 << 20

PLAN: dict[str, Any] = {
    "v": 1,
    "decision": 4,
    "name": "a",
    "action": "run",
    "incarnation": 2,
    "revision": 1,
    "reason": "",
    "slots": [{"role": "worker", "index": 3, "server": "n1", "devices": [[0, 500]]}],
    "refused": "no room",
}
TARGET: dict[str, Any] = {"v": 1, "nodes": {"edge": 2, "cloud": 0}, "keep": ["ab"], "at_ms": NOW}

WORST = [
    b"[" * (10 * MIB),
    b"[" * MIB,
    b'{"v":1,"x":' + b"[" * 990 + b"]" * 990 + b"}",
    b'{"a":' * 100_000,
    b'{"v":1,"nodes":{"e":' + b"9" * 1_000_000 + b"}}",
    b'{"v":1,"incarnation":' + b"9" * 4_000 + b"}",
    b'{"v":1,"incarnation":1e999}',
    b'{"v":1,"incarnation":NaN,"at_ms":-Infinity}',
    b'{"v":1,"action":"run","slots":[' + b"[]," * 3_000_000 + b"[]]}",
    b'{"v":1,"action":"run","slots":[' + b"0," * 70_000 + b"0]}",
    b"\xff\xfe\x00",
    b"\x00" * MIB,
    '{"v":1}'.encode("utf-16"),
    b"\xef\xbb\xbf{}",
    b'"' + b"x" * (5 * MIB) + b'"',
    json.dumps({"v": "\x1b[2J\u202e\ud800" * 100_000}).encode(),
    json.dumps({"v": 1, "action": "run", "slots": [{"role": "worker", "index": 0, "server": "\ud800"}]}).encode(),
    json.dumps({"v": 1, "nodes": {"\x1b[2J" * 1000: 1}, "at_ms": NOW}).encode(),
    b"null",
    b"",
]
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**32,
    2**64,
    10**30,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "run",
    "wait",
    "worker",
    "x" * 5000,
    "\ud800",
    "\x1b[2J",
    "\u202e",
    [],
    {},
    [[]],
    [{}],
    {"": None},
    [None],
    {"role": "worker", "index": 0, "server": "n"},
    {"role": "server", "index": 1, "server": "n"},
]


def anything(rng: random.Random, depth: int = 0) -> Any:
    pick = rng.random()
    if depth < 4 and pick < 0.15:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 4 and pick < 0.3:
        keys = [*PLAN, *TARGET, "role", "index", "server", "\ud800"]
        return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(6))}
    return rng.choice(ODD)


def broken(rng: random.Random, good: dict[str, Any]) -> bytes:
    """A document with some changed parts, and sometimes with changed bytes."""
    document = json.loads(json.dumps(good))
    for _ in range(rng.randrange(4)):
        at = rng.choice([document, *(part for part in document.values() if isinstance(part, dict))])
        if slots := document.get("slots"):
            at = rng.choice([at, slots[0]]) if isinstance(slots, list) and isinstance(slots[0], dict) else at
        if at and rng.random() < 0.2:
            del at[rng.choice(list(at))]
        elif at:
            at[rng.choice(list(at))] = anything(rng)
    text = bytearray(json.dumps(anything(rng) if rng.random() < 0.1 else document).encode())
    if rng.random() < 0.3:
        for _ in range(rng.randrange(1, 5)):
            text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text[: rng.randrange(len(text) + 1)]) if rng.random() < 0.1 else bytes(text)


def try_all(read: Callable[[bytes], Any], good: dict[str, Any], refusal: type[Exception]) -> list[Any]:
    """Reads many broken documents. Returns the results. Raises only `refusal`, with a short, printable message."""
    assert read(json.dumps(good).encode())
    rng = random.Random(1)
    found = []
    for text in [*WORST, *(broken(rng, good) for _ in range(DOCUMENTS))]:
        try:
            found.append(read(text))
        except refusal as fault:
            message = str(fault)
            assert len(message) < 700, message[:1000]
            assert not [c for c in message if unicodedata.category(c) in ("Cc", "Cs", "Cf")], message
    return found


def test_a_plan_is_read_or_refused() -> None:
    found = try_all(Plan.read, PLAN, BadDocument)
    assert DOCUMENTS / 20 < len(found) < DOCUMENTS
    for plan in found:
        assert plan.action != "run" or plan.shape[0]
        assert 0 <= plan.incarnation < 2**32
        assert 0 <= plan.revision < 2**32
        for text in (plan.name, plan.reason, plan.refused, *plan.placed.values()):
            assert printable(text) == text.encode().decode(), "can be stored and printed"


def test_a_target_is_read_or_refused() -> None:
    scheduler = pytest.importorskip("trainmaster.ray.scheduler", reason="this Ray has another v2 autoscaler")
    found = try_all(lambda text: scheduler.Target.read(text, NOW), TARGET, scheduler.BadTarget)
    assert DOCUMENTS / 20 < len(found) < DOCUMENTS
    for target in found:
        assert all(0 <= count < 2**32 for count in target.nodes.values())
        assert printable(str(target), 10_000) == str(target)


def test_the_largest_plan_is_read() -> None:
    """Two roles with the maximum of slots, on servers with the longest names."""
    slots = [
        {"role": role, "index": index, "server": f"{index:0256}", "devices": [[0, 500], [1, 500]]}
        for role in ("worker", "server")
        for index in range(10_000)
    ]
    assert Plan.read(json.dumps(PLAN | {"slots": slots}).encode()).shape == (10_000, 10_000)


def test_too_large_documents_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json, "loads")
    for text in (b"[" * (64 * MIB), b'{"x":"' + b"x" * (64 * MIB) + b'"}', b"[]," * (5 * MIB)):
        with pytest.raises(BadDocument, match=r"must be at most|has more than"):
            Plan.read(text)


def test_texts_for_people_are_escaped_and_cut() -> None:
    assert printable("plain, ünïcödé, 漢字") == "plain, ünïcödé, 漢字"
    assert printable("a\nb\x1b]0;x\x07\u202e\ud800") == "a\\u{a}b\\u{1b}]0;x\\u{7}\\u{202e}\\u{d800}"
    assert printable("x" * 2000) == "x" * 1000 + "…"
