"""How many slots a VM needs, and whose come first: the patterns of flavors, and protection levels on top of them.

A level is a name with a number of slots and a priority; VMs get it by themselves, by project, by flavor, or by default
(docs/reference/failover-rules.md#protection-levels). Everybody who asks what a VM needs asks ``Demands``, so that
cycles, upkeep, plans and answers agree. Without levels and priorities everything is as the patterns alone say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import BadInput, Invalid, Pattern, compile_pattern
from outlive.placement import VmView

LEVELS_LIMIT: Final = 100
"""Levels that settings may name."""
PATTERNS_LIMIT: Final = 1_000
"""Patterns of flavors, and of projects, that settings may give a level."""
SLOTS_LIMIT: Final = 16
"""The most slots that a level may ask for."""
PRIORITY_LIMIT: Final = 1_000_000
"""Priorities are between minus this and this."""
KINDS_REMEMBERED: Final = 10_000
"""Kinds of VMs (level, project, flavor, in protection or not) whose level is remembered; beyond it everything is worked
out again."""

LEVEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""What a level may be called."""
_HELP = "see docs/reference/failover-rules.md#protection-levels"


class LevelSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A protection level."""

    slots: int | None = None
    """Slots that such a VM needs; null: as ``failover.flavorFailoverRequirements`` says."""
    priority: int = 0
    """Order of slots and restarts: larger is earlier."""


class ProtectionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``protection``: levels, and which VMs have them. Without levels all VMs are alike."""

    levels: dict[str, LevelSettings] = {}
    """Name → ``slots`` that its VMs need (null: as their flavors ask) and ``priority`` (larger is earlier), such as
    ``{"critical": {"slots": 3, "priority": 100}}``."""
    default: str = ""
    """Level of all other VMs; empty: none, which means priority 0 and slots by flavor."""
    flavors: dict[str, str] = {}
    """Pattern of flavor names → level. Of all that match, the level with the largest priority counts."""
    projects: dict[str, str] = {}
    """Pattern of projects → level. The first that matches counts, before any flavor."""


class Demand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one VM needs."""

    required: int
    priority: int
    level: str


class Demanded(msgspec.Struct, frozen=True, kw_only=True):
    """What many VMs need."""

    required: dict[str, int]
    """VM → slots that it needs; those that need none are left out."""
    priorities: dict[str, int]
    """VM → priority; those of priority 0 are left out."""
    levels: dict[str, str]
    """VM → its level; those without one are left out."""
    unknown: dict[str, str]
    """VM → the level that it names and that there is not."""


class Demands:
    """How many slots VMs need and with what priority: where patterns, levels and what VMs ask for meet."""

    def __init__(
        self,
        patterns: Mapping[str, int],
        protection: ProtectionSettings = ProtectionSettings(),
        *,
        everybody: int | None = None,
    ) -> None:
        """``everybody``: so many slots for every VM, whatever else is said; for forecasts.

        ``BadInput`` for a malformed pattern of projects or flavors; a pattern of a level that there is not gives none.
        """
        self.levels = levels = protection.levels
        self.malformed: dict[str, str] = {}
        """Malformed patterns of required slots, and why; they never match."""
        self._counts: list[tuple[Pattern, int]] = []
        for pattern, count in patterns.items():
            try:
                self._counts.append((compile_pattern(pattern), count))
            except BadInput as error:
                self.malformed[pattern] = error.message
        self._default = protection.default if protection.default in levels else ""
        self._projects = [(compile_pattern(p), name) for p, name in protection.projects.items() if name in levels]
        self._flavors = [(compile_pattern(p), name) for p, name in protection.flavors.items() if name in levels]
        self._everybody = everybody
        self._remembered: dict[tuple[str, str, str, bool], Demand] = {}

    def demand_of(self, vm: VmView) -> Demand:
        """What this VM needs, with its own priority where it has one."""
        demand = self._demand_of_kind(vm)
        if vm.priority is None or vm.priority == demand.priority:
            return demand
        return msgspec.structs.replace(demand, priority=vm.priority)

    def required_slots(self, vm: VmView) -> int:
        """Slots that this VM needs: those of its level, else the largest count of the patterns for its flavor.

        One that was taken out of protection needs none.
        """
        return self._demand_of_kind(vm).required

    def priority_of(self, vm: VmView) -> int:
        """Order of slots and restarts: larger is earlier."""
        return self._demand_of_kind(vm).priority if vm.priority is None else vm.priority

    def collect_demands(self, vms: Iterable[VmView]) -> Demanded:
        """What these VMs need."""
        found = Demanded(required={}, priorities={}, levels={}, unknown={})
        for vm in vms:
            demand = self._demand_of_kind(vm)
            if demand.required:
                found.required[vm.id] = demand.required
            if priority := demand.priority if vm.priority is None else vm.priority:
                found.priorities[vm.id] = priority
            if demand.level:
                found.levels[vm.id] = demand.level
            if vm.level and vm.level not in self.levels:
                found.unknown[vm.id] = vm.level
        return found

    def _demand_of_kind(self, vm: VmView) -> Demand:
        """What VMs of this level, project and flavor need."""
        kind = (vm.level, vm.project, vm.flavor, vm.unprotected)
        known = self._remembered.get(kind)
        if known is None:
            if len(self._remembered) >= KINDS_REMEMBERED:
                self._remembered.clear()
            name = self._level_of(vm.level, vm.project, vm.flavor)
            level = self.levels.get(name, LevelSettings())
            slots = level.slots if self._everybody is None else self._everybody
            if slots is None:
                # The largest count of any pattern that matches, never below 0.
                flavor = vm.flavor
                slots = max([0, *(count for pattern, count in self._counts if flavor and pattern.fullmatch(flavor))])
            slots = 0 if vm.unprotected else slots
            known = self._remembered[kind] = Demand(required=slots, priority=level.priority, level=name)
        return known

    def _level_of(self, asked: str, project: str, flavor: str) -> str:
        """By the level that the VM itself asks for, else by project, else by flavor, else the default.

        A level that there is not counts as none asked for.
        """
        if asked in self.levels:
            return asked
        for pattern, level in self._projects:
            if project and pattern.fullmatch(project):
                return level
        found = [level for pattern, level in self._flavors if flavor and pattern.fullmatch(flavor)]
        return min(found, key=self._strongest_first, default=self._default)

    def _strongest_first(self, name: str) -> tuple[int, int, str]:
        """Among equal priorities the level that asks for more slots, then by name."""
        level = self.levels[name]
        return (-level.priority, -(level.slots or 0), name)


def required_slots(flavor: str, patterns: Mapping[str, int]) -> int:
    """Slots that a VM of this flavor needs under the patterns (glob → count)."""
    return Demands(patterns).required_slots(VmView(id="", host="", flavor=flavor))


def restart_order(vms: Iterable[VmView], priorities: Mapping[str, int]) -> list[VmView]:
    """The order in which VMs restart: highest priority first, then largest memory, then by id."""
    return sorted(vms, key=lambda vm: (-priorities.get(vm.id, 0), -vm.memory_bytes, vm.id))


def check_protection(settings: ProtectionSettings) -> None:
    """``BadInput`` names the key of section ``protection`` that is wrong, and what to write instead."""
    if len(settings.levels) > LEVELS_LIMIT:
        raise BadInput(f"{len(settings.levels)} levels", place="protection.levels", remedy=f"at most {LEVELS_LIMIT}")
    for name, level in settings.levels.items():
        place = f"protection.levels.{name}"
        if not LEVEL_NAME.match(name):
            remedy = "letters, digits, '.', '_' and '-', at most 63 characters"
            raise BadInput(f"{name[:80]!r} cannot be the name of a level", place="protection.levels", remedy=remedy)
        if level.slots is not None and not 0 <= level.slots <= SLOTS_LIMIT:
            raise BadInput(f"{level.slots} slots", place=f"{place}.slots", remedy=f"write 0 to {SLOTS_LIMIT}, or null")
        if abs(level.priority) > PRIORITY_LIMIT:
            remedy = f"write {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
            raise BadInput(f"priority {level.priority} is out of range", place=f"{place}.priority", remedy=remedy)
    names = list(settings.levels)
    if settings.default:
        _check_known(settings.default, "protection.default", names)
    for key, patterns in (("flavors", settings.flavors), ("projects", settings.projects)):
        place = f"protection.{key}"
        if len(patterns) > PATTERNS_LIMIT:
            raise BadInput(f"{len(patterns)} patterns", place=place, remedy=f"at most {PATTERNS_LIMIT}")
        for pattern, name in patterns.items():
            _check_known(name, f"{place}.{pattern}", names)
            try:
                compile_pattern(pattern)
            except BadInput as error:
                raise BadInput(error.message, place=f"{place}.{pattern}", remedy=error.remedy) from None


def check_vm_protection(vm: str, level: str, priority: int | None) -> None:
    """``Invalid`` for what a VM asks for and no settings could give; a level that there is not yet is no error."""
    if level and not LEVEL_NAME.match(level):
        remedy = "letters, digits, '.', '_' and '-', at most 63 characters"
        raise Invalid(f"VM {vm}: {level[:80]!r} cannot be the name of a level", place="spec.protection", remedy=remedy)
    if priority is not None and abs(priority) > PRIORITY_LIMIT:
        remedy = f"write {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        raise Invalid(f"VM {vm}: priority {priority} is out of range", place="spec.restartPriority", remedy=remedy)


def _check_known(name: str, place: str, names: Sequence[str]) -> None:
    if name not in names:
        known = ", ".join(names) or "none"
        remedy = f"add it to protection.levels, or write one of: {known}; {_HELP}"
        raise BadInput(f"there is no level {name[:80]!r}", place=place, remedy=remedy)
