"""Who reads what, as the manual prints it."""

from __future__ import annotations

from outlive.resources import KINDS
from outlive.resources.readers import ROLES, Reads, reads


def readers_table() -> str:
    """All kinds, and what each role is shown of them, as a table in Markdown."""
    lines = [f"| kind | {' | '.join(ROLES)} |", f"|---|{'---|' * len(ROLES)}"]
    for name, kind in sorted(KINDS.items()):
        cells = (_text(reads(role, kind)) for role in ROLES)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _text(found: Reads | None) -> str:
    return found.text if found is not None else "–"
