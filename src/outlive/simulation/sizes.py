"""Whether sizes and settings of a scenario can be read, told with their place before anything is played.

They are read by the product when the world is built, which knows no file; so they are read here once, for the
complaint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from outlive.base.errors import BadInput
from outlive.resources import Amounts
from outlive.resources.documents import Problems
from outlive.roles.settings import SECTIONS
from outlive.runtime.units import decode_unit
from outlive.runtime.validation import at_text, mistakes
from outlive.simulation.spec import HostsSpec, VmsSpec, WorldSpec


def check_sizes(spec: WorldSpec, place: str, problems: Problems) -> None:
    """Every ``cpu`` and ``memory`` is a quantity above 0."""
    for where, cpu, memory in _sizes(spec):
        for name, text in (("cpu", cpu), ("memory", memory)):
            at = f"{place}: {where}: {name}"
            try:
                if Amounts.parse({name: text})[name] <= 0:
                    problems.add(at, f"is {text!r}", "write more than 0")
            except BadInput as error:
                problems.add(at, error.message.removeprefix(f"{name}: "), error.remedy)


def _sizes(spec: WorldSpec) -> Iterator[tuple[str, str, str]]:
    for what, given in (("hosts", spec.hosts), ("vms", spec.vms)):
        if isinstance(given, HostsSpec | VmsSpec):
            yield what, given.cpu, given.memory
        else:
            yield from ((f"{what}: {one.name}", one.cpu, one.memory) for one in given)


def check_settings(settings: Mapping[str, Any], place: str, problems: Problems) -> None:
    """Every section is one of ours, and reads as such."""
    for name, value in settings.items():
        kind = SECTIONS.get(name)
        if kind is None:
            problems.add(place, f"there is no section {name!r}", f"sections are {', '.join(SECTIONS)}")
            continue
        try:
            msgspec.convert(value, kind, dec_hook=decode_unit)
        except (msgspec.ValidationError, BadInput):
            for one in mistakes(value, kind, dec_hook=decode_unit):
                where = f"{place}: {at_text((name, *one.at))}"
                problems.add(where, one.text, "see docs/reference/configuration.md")
