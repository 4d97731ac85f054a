"""Worlds about recovery into a promised slot, and about a store that was restored from a backup."""

from __future__ import annotations

from typing import Final

from tests.model.worlds import NO_ENTRY, ORDER, World

RECOVERY_WORLDS: Final = (
    World(
        "takeover",
        "a host is condemned, its power cut, its VM recovered into the slot of the other host",
        faults=1,
        kinds=("lose", "crash", "reboot", "unwanted", "taken", "late"),
    ),
    World("slot-taken", "the slot is taken by another VM", faults=0, slot_taken=True),
    World("not-promised", "the slot was promised to another VM", faults=0, promised=False),
    World(
        "slot-host-condemned",
        "the host of the slot is condemned as well",
        faults=2,
        kinds=("reboot", "condemned-2"),
        proofs=(),
    ),
    World(
        "restored",
        "the store is restored from a backup, and the VM has run elsewhere since",
        start="new",
        faults=2,
        kinds=("restore", "reassign"),
        condemns=False,
        proofs=(),
        recovery=False,
        runs=1,
        judges=(*NO_ENTRY, *ORDER),
    ),
    World(
        "restored-fence",
        "the store is restored from a backup after a fence",
        faults=2,
        kinds=("restore", "reboot"),
        renewals=1,
        proofs=(),
        runs=1,
        judges=(*NO_ENTRY, *ORDER),
    ),
    World(
        "restored-cut",
        "a host is cut off, its VM recovered, and the store restored from a backup of in between",
        faults=1,
        kinds=("restore",),
        proofs=("cut",),
        judges=("S1a", "S1b"),
    ),
    World(
        "restored-armed",
        "the store is restored from a backup in which a host is armed that is not any more",
        armed=True,
        proofs=("watchdog",),
        ticks=4,
        faults=2,
        kinds=("restore", "disarm"),
        second_daemon=False,
        recovery=False,
        judges=(*NO_ENTRY, *ORDER),
    ),
    World(
        "restored-restart",
        "the store is restored from a backup, and a daemon restarts",
        faults=2,
        kinds=("restore", "crash"),
        renewals=1,
        proofs=(),
        second_daemon=False,
        recovery=False,
        judges=(*NO_ENTRY, *ORDER),
    ),
    World(
        "restored-boot",
        "the store is restored from a backup of before a boot, and the daemon restarts",
        start="new",
        faults=3,
        kinds=("restore", "reboot", "crash"),
        condemns=False,
        proofs=(),
        runs=1,
        second_daemon=False,
        recovery=False,
        judges=(*NO_ENTRY, *ORDER),
    ),
)
