"""What came of each mutation when it was tried last, and the part of a page that says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.mutations.catalogue import MUTATIONS

RECORD: Final = Path(__file__).parent / "record.json"


class Caught(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The check that failed."""

    check: str
    """Kind and name; ``""``: none did."""
    found: str = ""
    """What it found wrong."""
    took_s: float = 0.0


def recorded() -> dict[str, Caught]:
    """Mutation → what caught it."""
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Caught]) if RECORD.exists() else {}


def record(caught: dict[str, Caught]) -> None:
    """Keep it, in the order of the list."""
    kept = {one.name: caught[one.name] for one in MUTATIONS if one.name in caught}
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def table(caught: Mapping[str, Caught], worlds: Mapping[str, str]) -> list[str]:
    """Every mutation of the list; ``worlds``: rule → the world of the history that goes wrong without it."""
    lines = ["| mistake | what it would do | noticed by | which finds | s |", "|---|---|---|---|---|"]
    for one in MUTATIONS:
        by = caught.get(one.name, Caught(check=""))
        kind, _, name = by.check.partition(" ")
        where = f"world {worlds[name]}, history of `{name}`" if kind == "history" else f"{kind} `{name}`"
        found = by.found.replace("|", "\\|") or "–"
        lines.append(f"| `{one.name}` | {one.why} | {where if name else 'nothing'} | {found} | {by.took_s:.1f} |")
    return lines
