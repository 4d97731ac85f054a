"""All verbs by their words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from outlive.simulation.verbs import hardware, operating, software, storing

Act = Callable[[Any, Mapping[str, Any]], Awaitable[None]]

VERBS: Final[Mapping[str, Act]] = {
    "power-off": hardware.power_off,
    "power-on": hardware.power_on,
    "pause-host": hardware.pause_host,
    "resume-host": hardware.resume_host,
    "kill-daemon": software.kill_daemon,
    "stop-daemon": software.stop_daemon,
    "start-daemon": software.start_daemon,
    "pause-daemon": software.pause_daemon,
    "resume-daemon": software.resume_daemon,
    "hog-daemon": software.pause_daemon,
    "kill-guard": software.kill_guard,
    "cut": hardware.cut,
    "heal": hardware.heal,
    "bmc": hardware.bmc,
    "store-outage": software.store_outage,
    "store-heal": software.store_heal,
    "store-faults": software.store_faults,
    "store-snapshot": software.store_snapshot,
    "store-restore": software.store_restore,
    "clock": hardware.clock,
    "start-fails": hardware.start_fails,
    "slow-starts": hardware.slow_starts,
    "guest-ignores-shutdown": hardware.guest_ignores_shutdown,
    "guest-crash": hardware.guest_crash,
    "lock-disks": storing.lock_disks,
    "unlock-disks": storing.unlock_disks,
    "watchdog-broken": hardware.watchdog_broken,
    "migration-fails": hardware.migration_fails,
    "lost-answers": hardware.lost_answers,
    "unkillable": hardware.unkillable,
    "replace-machine": hardware.replace_machine,
    "second-daemon": software.second_daemon,
    "kill-controller": software.kill_controller,
    "start-controller": software.start_controller,
    "pause-controller": software.pause_controller,
    "resume-controller": software.resume_controller,
    "move": operating.move,
    "request": operating.request,
    "drain": operating.drain,
    "ready": operating.ready,
    "maintenance": operating.maintenance,
    "arm": operating.arm,
    "disarm": operating.disarm,
    "confirm-off": operating.confirm_off,
    "fence": operating.fence,
    "create-vm": operating.create_vm,
    "delete-vm": operating.delete_vm,
    "delete-membership": operating.delete_membership,
    "forget-membership": hardware.forget_membership,
    "accept-machine": operating.accept_machine,
    "set-policy": operating.set_policy,
    "release": operating.release,
    "confirm-incarnation": operating.confirm_incarnation,
}
