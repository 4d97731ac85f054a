"""Kinds as users type them: plural, singular or short name, in any case."""

from __future__ import annotations

import difflib

from outlive.base.errors import Usage
from outlive.resources import KINDS, Resource

ALIASES = {
    "host": "hypervisors",
    "hosts": "hypervisors",
    "vm": "virtualmachines",
    "vms": "virtualmachines",
    "slot": "reservations",
    "slots": "reservations",
}
"""Words of the vocabulary for kinds."""


def kind_named(text: str) -> type[Resource]:
    """The kind; ``Usage`` names the nearest one that there is."""
    names: dict[str, type[Resource]] = {}
    for kind in KINDS.values():
        info = kind.info
        for name in (kind.__name__.lower(), info.singular, info.plural, *info.short_names):
            if name:
                names[name] = kind
    names.update({alias: names[plural] for alias, plural in ALIASES.items()})
    found = names.get(text.lower())
    if found is None:
        near = difflib.get_close_matches(text.lower(), names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        plurals = ", ".join(sorted(kind.info.plural for kind in KINDS.values()))
        raise Usage(f"kind {text!r} is not known", remedy=f"{hint}one of {plurals}")
    return found


def complete_kind(incomplete: str) -> list[str]:
    """Plurals that begin with what is typed so far."""
    return sorted(kind.info.plural for kind in KINDS.values() if kind.info.plural.startswith(incomplete.lower()))
