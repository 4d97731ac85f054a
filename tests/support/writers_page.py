"""The table "who writes what" of docs/reference/permissions.md.

``python -m tests.support.writers_page`` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outlive.node import NAMED_AFTER_HOSTS, RULES_OF_HOSTS, RULES_OF_OTHERS
from outlive.resources import ADMIN, DAEMON, KINDS, ROLES, Resource

PAGE: Final = Path(__file__).parents[2] / "docs/reference/permissions.md"
BEGIN, END = "<!-- who writes what: generated -->", "<!-- end of who writes what -->"
_HOSTS: Final = ("host", "coordinator")


ALONE: Final = "admin alone"
"""Who writes what no other role may."""


def render() -> str:
    """The names of roles, a line for each kind, and under them the rules, as Markdown."""
    lines = [f"* {role}: {', '.join(f'`{name}`' for name in dict.fromkeys(names))}" for role, names in ROLES.items()]
    named = ", ".join(kind.kind() for kind in NAMED_AFTER_HOSTS)
    lines += ["", f"Of {named} a host writes as `daemon` only the one of its own name.", ""]
    alike: dict[str, list[str]] = {}
    for name, kind in sorted(KINDS.items()):
        alike.setdefault(_writers_of(kind), []).append(name)
    lines += [f"* **{', '.join(names)}**: {text}." for text, names in alike.items()]
    lines += ["", '### <a id="rules"></a>Rules', ""]
    for who, rules in (("hosts", RULES_OF_HOSTS), ("others", RULES_OF_OTHERS)):
        said: dict[str, list[str]] = {}
        for each, rule in rules.items():
            said.setdefault(" ".join((rule.__doc__ or "").replace("``", "`").split()), []).append(each.__name__)
        lines += [f"* **{', '.join(names)}**, {who}: {text}" for text, names in said.items()]
    return "\n".join(lines) + "\n"


def _writers_of(kind: type[Resource]) -> str:
    """What of a kind is written under which names."""
    alike: dict[str, list[str]] = {}
    for what, owners in _rows(kind):
        alike.setdefault(ALONE if set(owners) <= {ADMIN} else ", ".join(owners), []).append(what)
    return "; ".join(f"{', '.join(fields)} by {owners}" for owners, fields in alike.items())


def _rows(kind: type[Resource]) -> Iterator[tuple[str, tuple[str, ...]]]:
    writers = kind.info.writers
    yield "create", writers.creates
    yield "delete", writers.deletes
    for path, owners in writers.given.items():
        yield f"`{path}` (at creation)", owners
    for path, owners in writers.fields.items():
        yield f"`{path}`" if path else "all", owners


def cell(kind: type[Resource], role: str, owners: tuple[str, ...]) -> str:
    """What a token of that role may: ``yes``, ``own`` (of its own host), ``by rule``, or nothing."""
    names = [name for name in ROLES[role] if name in owners]
    if not names:
        return ""
    if role in _HOSTS and issubclass(kind, NAMED_AFTER_HOSTS) and set(names) <= set(DAEMON):
        return "own"
    return "by rule" if kind in (RULES_OF_HOSTS if role in _HOSTS else RULES_OF_OTHERS) else "yes"


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
