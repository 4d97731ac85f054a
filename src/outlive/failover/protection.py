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

from outlive.base.errors import BadInput, Invalid
from outlive.base.patterns import compile_pattern
from outlive.failover.model import VmView

LEVELS_LIMIT: Final = 100
"""Levels that settings may name."""
PATTERNS_LIMIT: Final = 1_000
"""Patterns of flavors, and of projects, that settings may give a level."""
SLOTS_LIMIT: Final = 16
"""The most slots that a level may ask for."""
PRIORITY_LIMIT: Final = 1_000_000
"""Priorities are between minus this and this."""
KINDS_REMEMBERED: Final = 10_000
"""Kinds of VMs (level, project, flavor) whose level is remembered; beyond it everything is worked out again."""

LEVEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""What a level may be called."""
_HELP = "see docs/reference/failover-rules.md#protection-levels"


class LevelSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A protection level."""

    slots: int | None = None
    """Slots that such a VM needs, whatever ``failover.flavorFailoverRequirements`` says; null: what that says."""
    priority: int = 0
    """Whose slots come first, and who restarts first: larger is earlier."""


class ProtectionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``protection``: levels, and who has which. Without levels nothing differs between VMs."""

    levels: dict[str, LevelSettings] = {}
    """Name → ``slots`` that its VMs need (null: as their flavors ask) and ``priority`` (larger is earlier), such as
    ``{"critical": {"slots": 3, "priority": 100}}``."""
    default: str = ""
    """Level of VMs that nothing else gives one; empty: none, which means priority 0 and slots by flavor."""
    flavors: dict[str, str] = {}
    """Pattern of flavor names → level. Of all that match, the level with the largest priority counts."""
    projects: dict[str, str] = {}
    """Pattern of projects → level. The first that matches counts, before any flavor."""


class Level(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM's level; the empty name is that of VMs without one."""

    name: str = ""
    slots: int | None = None
    priority: int = 0


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


NO_LEVEL: Final = Level()


class Protection:
    """Levels and their patterns, compiled once."""

    def __init__(self, settings: ProtectionSettings) -> None:
        """``BadInput`` for a pattern that is malformed; a pattern of a level that there is not gives none."""
        levels = {
            name: Level(name=name, slots=one.slots, priority=one.priority) for name, one in settings.levels.items()
        }
        self.levels: Mapping[str, Level] = levels
        self._default = levels.get(settings.default, NO_LEVEL)
        self._projects = [(compile_pattern(p), levels[name]) for p, name in settings.projects.items() if name in levels]
        self._flavors = [(compile_pattern(p), levels[name]) for p, name in settings.flavors.items() if name in levels]
        self._remembered: dict[tuple[str, str, str], Level] = {}

    def of(self, vm: VmView) -> Level:
        """The VM's level, with the VM's own priority where it has one."""
        level = self.level_of(vm.level, vm.project, vm.flavor)
        if vm.priority is None or vm.priority == level.priority:
            return level
        return msgspec.structs.replace(level, priority=vm.priority)

    def level_of(self, asked: str, project: str, flavor: str) -> Level:
        """By the level that the VM itself asks for, else by project, else by flavor, else the default.

        A level that there is not counts as none asked for.
        """
        kind = (asked if asked in self.levels else "", project, flavor)
        known = self._remembered.get(kind)
        if known is None:
            if len(self._remembered) >= KINDS_REMEMBERED:
                self._remembered.clear()
            known = self._remembered[kind] = self._work_out(*kind)
        return known

    def _work_out(self, asked: str, project: str, flavor: str) -> Level:
        if asked:
            return self.levels[asked]
        for pattern, level in self._projects:
            if project and pattern.fullmatch(project):
                return level
        found = [level for pattern, level in self._flavors if flavor and pattern.fullmatch(flavor)]
        return min(found, key=_strongest_first, default=self._default)


def _strongest_first(level: Level) -> tuple[int, int, str]:
    """Among equal priorities the level that asks for more slots, then by name."""
    return (-level.priority, -(level.slots or 0), level.name)


FLAVORS_REMEMBERED = 10_000
"""Flavor names whose count is remembered; beyond it everything is forgotten and computed again."""


class Requirements:
    """Patterns and their counts, compiled once. A malformed pattern never matches; ``malformed`` says which and why."""

    def __init__(self, patterns: Mapping[str, int]) -> None:
        self.malformed: dict[str, str] = {}
        self._compiled = []
        for pattern, count in patterns.items():
            try:
                self._compiled.append((compile_pattern(pattern), count))
            except BadInput as error:
                self.malformed[pattern] = error.message
        self._remembered: dict[str, int] = {}

    def required(self, flavor: str) -> int:
        """Slots that a VM of this flavor needs: the largest count of any pattern that matches, never below 0."""
        known = self._remembered.get(flavor)
        if known is None:
            known = self._count(flavor)
            if len(self._remembered) >= FLAVORS_REMEMBERED:
                self._remembered.clear()
            self._remembered[flavor] = known
        return known

    def _count(self, flavor: str) -> int:
        if not flavor:
            return 0
        return max([0, *(count for regex, count in self._compiled if regex.fullmatch(flavor))])


def required(flavor: str, patterns: Mapping[str, int]) -> int:
    """Slots that a VM of this flavor needs under the patterns (glob → count)."""
    return Requirements(patterns).required(flavor)


class Demands:
    """How many slots VMs need and with what priority: where patterns, levels and what VMs ask for meet."""

    def __init__(
        self,
        patterns: Mapping[str, int],
        protection: ProtectionSettings = ProtectionSettings(),
        *,
        everybody: int | None = None,
    ) -> None:
        """``everybody``: so many slots for every VM, whatever else is said; for forecasts."""
        self.protection = Protection(protection)
        self._requirements = Requirements(patterns)
        self._everybody = everybody

    @property
    def malformed(self) -> Mapping[str, str]:
        """Malformed patterns of required slots, and why; they never match."""
        return self._requirements.malformed

    def of(self, vm: VmView) -> Demand:
        """What this VM needs."""
        level = self.protection.of(vm)
        return Demand(required=self._slots(level, vm.flavor), priority=level.priority, level=level.name)

    def required(self, vm: VmView) -> int:
        """Slots that this VM needs."""
        return self.required_by(vm.level, vm.project, vm.flavor)

    def required_by(self, asked: str, project: str, flavor: str) -> int:
        """Slots that such a VM needs: those of its level, else the largest count of the patterns for its flavor."""
        return self._slots(self.protection.level_of(asked, project, flavor), flavor)

    def priority(self, vm: VmView) -> int:
        """Whose slots come first, and who restarts first: larger is earlier."""
        return self.protection.of(vm).priority

    def among(self, vms: Iterable[VmView]) -> Demanded:
        """What these VMs need."""
        levels = self.protection.levels
        found = Demanded(required={}, priorities={}, levels={}, unknown={})
        kinds: dict[tuple[str, str, str], Demand] = {}
        for vm in vms:
            kind = (vm.level, vm.project if levels else "", vm.flavor)
            demand = kinds.get(kind)
            if demand is None:
                level = self.protection.level_of(*kind)
                demand = Demand(required=self._slots(level, vm.flavor), priority=level.priority, level=level.name)
                kinds[kind] = demand
            if demand.required:
                found.required[vm.id] = demand.required
            if priority := demand.priority if vm.priority is None else vm.priority:
                found.priorities[vm.id] = priority
            if demand.level:
                found.levels[vm.id] = demand.level
            if vm.level and vm.level not in levels:
                found.unknown[vm.id] = vm.level
        return found

    def _slots(self, level: Level, flavor: str) -> int:
        if self._everybody is not None:
            return self._everybody
        return level.slots if level.slots is not None else self._requirements.required(flavor)


def restart_order(vms: Iterable[VmView], priorities: Mapping[str, int]) -> list[VmView]:
    """The order in which VMs restart: highest priority first, then largest memory, then by id."""
    return sorted(vms, key=lambda vm: (-priorities.get(vm.id, 0), -vm.memory_bytes, vm.id))


def check_protection(settings: ProtectionSettings) -> None:
    """``BadInput`` names the key of section ``protection`` that is wrong, and what to write instead."""
    if len(settings.levels) > LEVELS_LIMIT:
        raise BadInput(f"{len(settings.levels)} levels", place="protection.levels", remedy=f"at most {LEVELS_LIMIT}")
    for name, level in settings.levels.items():
        _check_level(name, level)
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


def _check_level(name: str, level: LevelSettings) -> None:
    place = f"protection.levels.{name}"
    if not LEVEL_NAME.match(name):
        remedy = "letters, digits, '.', '_' and '-', at most 63 characters"
        raise BadInput(f"{name[:80]!r} cannot be the name of a level", place="protection.levels", remedy=remedy)
    if level.slots is not None and not 0 <= level.slots <= SLOTS_LIMIT:
        raise BadInput(f"{level.slots} slots", place=f"{place}.slots", remedy=f"write 0 to {SLOTS_LIMIT}, or null")
    if abs(level.priority) > PRIORITY_LIMIT:
        remedy = f"write {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        raise BadInput(f"priority {level.priority} is out of range", place=f"{place}.priority", remedy=remedy)


def _check_known(name: str, place: str, names: Sequence[str]) -> None:
    if name not in names:
        known = ", ".join(names) or "none"
        remedy = f"add it to protection.levels, or write one of: {known}; {_HELP}"
        raise BadInput(f"there is no level {name[:80]!r}", place=place, remedy=remedy)
