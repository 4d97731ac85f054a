"""Who reads what, as the manual prints it."""

from __future__ import annotations

from outlive.resources import KINDS, Reads, find_reads
from outlive.resources.readers import ROLES


def readers_table() -> str:
    """What each role is shown of which kinds, as a table in Markdown with a row for all kinds that are alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, kind in sorted(KINDS.items()):
        alike.setdefault(tuple(_text(find_reads(role, kind)) for role in ROLES), []).append(name)
    lines = [f"| kind | {' | '.join(ROLES)} |", f"|---|{'---|' * len(ROLES)}"]
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in alike.items()]
    return "\n".join(lines) + "\n"


def _text(found: Reads | None) -> str:
    return found.text if found is not None else "–"
