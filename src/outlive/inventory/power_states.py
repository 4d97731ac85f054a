"""Whether a VM runs, by the word that its source has for it: one table for every importer.

A VM that is paused has its memory on its host and counts as running; one that was suspended to a disk does not. A word
that no table has is never guessed at: ``power_state`` gives ``None``, and an import asks for ``--status-map``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from outlive.base import Usage


class GuestPower(enum.StrEnum):
    """What a VM does on its host."""

    RUNNING = "running"
    PAUSED = "paused"
    """It has its memory there, and runs on when somebody says so: it counts as running."""
    STOPPED = "stopped"


VANISHED: Final = "vanished"
"""``status.phase`` of a VM that its source does not list any more."""

_RUNNING: Final[Mapping[str, str]] = {
    "any": "on, up, active, started",
    "VMware": "poweredOn, powered on, resetting",
    "libvirt": "running, idle, blocked, no state, nostate, in shutdown, dying",
    "oVirt": "powering_up, powering_down, wait_for_launch, reboot_in_progress, migrating, not_responding, unassigned, "
    "restoring_state, saving_state",
    "Ganeti": "ERROR_up, ERROR_down, ERROR_nodedown, ERROR_nodeoffline, ERROR_wrongnode",
    "Hyper-V": "starting, stopping, reset, saving, pausing, resuming, running critical, starting critical, "
    "stopping critical, component servicing, force shutdown, force reboot, fast saving, other, unknown",
    "Nova": "build, error, hard_reboot, migrating, password, reboot, rebuild, rescue, resize, revert_resize, "
    "verify_resize",
    "Proxmox": "prelaunch, internal-error, io-error, inmigrate, postmigrate, finish-migrate, restore-vm, save-vm, "
    "watchdog, debug, guest-panicked",
    "KubeVirt": "pending, scheduling, scheduled, provisioning, terminating, wait for sync, waiting for sync, "
    "waiting for volume binding, waiting for receiver, CrashLoopBackOff, ErrorUnschedulable, ErrImagePull, "
    "ImagePullBackOff, ErrorPvcNotFound, ErrorDataVolumeNotFound, DataVolumeError",
}
_PAUSED: Final[Mapping[str, str]] = {
    "any": "paused",
    "libvirt": "pmsuspended",
    "Hyper-V": "paused critical",
}
_STOPPED: Final[Mapping[str, str]] = {
    "any": "off, down, halted, stopped, inactive, failed",
    "VMware": "poweredOff, powered off, suspended",
    "libvirt": "shut off, shutoff, shut down, crashed, shutdown",
    "oVirt": "image_locked, image_illegal",
    "Ganeti": "ADMIN_down, ADMIN_offline, USER_down",
    "Hyper-V": "saved, fast saved, hibernated, off critical, saved critical",
    "Nova": "shelved, shelved_offloaded, soft_deleted, deleted",
    "KubeVirt": "succeeded",
    "OpenNebula": "poweroff, undeployed, done",
    "CloudStack": "destroyed, expunging",
    "Outlive": VANISHED,
}
_NOT_IN_A_WORD: Final = re.compile(r"[^a-z0-9]+")
WORDS_LIMIT: Final = 1000
"""Words of a ``--status-map``."""


def _normalize_word(word: str) -> str:
    """The word without what sources write in different ways: case, blanks, hyphens, underscores."""
    return _NOT_IN_A_WORD.sub("", word.lower())


def _build_table() -> dict[str, GuestPower]:
    tables = ((GuestPower.RUNNING, _RUNNING), (GuestPower.PAUSED, _PAUSED), (GuestPower.STOPPED, _STOPPED))
    return {
        _normalize_word(word): state
        for state, sources in tables
        for words in sources.values()
        for word in words.split(", ")
    }


_STATES: Final = _build_table()
StatusMap = Mapping[str, GuestPower]
"""Words of a source besides those of the table, as ``_normalize_word`` writes them."""


def power_state(word: str, own: StatusMap) -> GuestPower | None:
    """What a VM does of which its source has this word; ``None`` for one that nobody knows. No word is running.

    ``own``: words that count before those of the table.
    """
    plain = _normalize_word(word)
    if not plain:
        return GuestPower.RUNNING
    return own.get(plain) or _STATES.get(plain)


def list_words() -> str:
    """The words that importers know, for a message."""
    off = ", ".join(sorted({word for words in _STOPPED.values() for word in words.split(", ")} - {VANISHED}))
    return f"words for a VM that does not run: {off}; for one that does: running, active, poweredOn, up, on, …"


def parse_status_map(texts: Sequence[str]) -> dict[str, GuestPower]:
    """From ``WORD=running``, ``WORD=stopped`` or ``WORD=paused``; ``Usage`` for what is malformed."""
    found: dict[str, GuestPower] = {}
    for term in (part for text in texts for part in text.split(",") if part.strip()):
        word, equals, state = term.partition("=")
        if not equals or not _normalize_word(word) or state.strip().lower() not in set(GuestPower):
            states = ", ".join(GuestPower)
            raise Usage(f"{term!r} is not WORD=STATE", place="--status-map", remedy=f"STATE is one of {states}")
        found[_normalize_word(word)] = GuestPower(state.strip().lower())
        if len(found) > WORDS_LIMIT:
            raise Usage("too many words", place="--status-map", remedy=f"at most {WORDS_LIMIT}")
    return found
