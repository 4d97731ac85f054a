"""What users and operators do, at any moment: it is legal, and breaks no promise.

An operator who says that a host is off has pulled its cord first, and looks before saying it.
"""

from __future__ import annotations

from typing import Any, Final

from outlive.simulation import PHASES
from tests.swarm.faults.draw import RESTORES, Draw, Kind

ASKED: Final = 4
"""VMs of one dead host of which users want something."""


def _move(draw: Draw, at_s: float) -> None:
    live = draw.random.random() < 0.7
    if draw.random.random() < 0.3:
        draw.add(at_s, "migration-fails", hosts=draw.one(), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=draw.vm().name, to=draw.host().name, live=live)


def _asked_after_a_death(draw: Draw, at_s: float) -> None:
    """A host dies, for good as far as users know, and they want something of the VMs that were on it."""
    host = draw.host().name
    draw.add(at_s, "power-off", hosts=(host,))
    for vm in [one.name for one in draw.vms if one.host == host][:ASKED]:
        asked_s, verb = at_s + draw.short(), draw.random.choice(("start", "stop", "shutdown", "restart", "move"))
        if verb == "move":
            draw.add(asked_s, "move", vm=vm, to=draw.host().name, live=draw.random.random() < 0.5)
        else:
            draw.add(asked_s, "request", vm=vm, verb=verb)


def _request(draw: Draw, at_s: float) -> None:
    vm = draw.vm().name
    verb = draw.random.choice(("stop", "shutdown", "restart"))
    draw.add(at_s, "request", vm=vm, verb=verb)
    if verb != "restart":
        draw.add(at_s + draw.short(), "request", vm=vm, verb="start")


def _maintenance(draw: Draw, at_s: float) -> None:
    """Of everything, of a host, or of the BMC of a host."""
    whose: dict[str, Any] = {"hosts": draw.one()} if draw.random.random() < 0.6 else {}
    if whose and draw.random.random() < 0.3:
        whose["power"] = True
    draw.briefly(at_s, "maintenance", {"on": False}, on=True, **whose)


def _going_down(draw: Draw, at_s: float) -> None:
    """A host is stopped in order for work on it, its VMs left alone or taken down; it comes back, or stays away."""
    host = draw.host().name
    leave = draw.random.random() < 0.5
    draw.add(at_s, "stop-daemon", hosts=(host,), leaveVms=leave, goingDown=not leave)
    off_s = at_s + draw.random.uniform(2.0, 20.0)
    if draw.random.random() < 0.5:
        draw.add(off_s, "power-off", hosts=(host,))
        if draw.random.random() < 0.5:
            return
        draw.add(off_s + draw.short(), "power-on", hosts=(host,))
    draw.add(off_s + draw.short(), "start-daemon", hosts=(host,))


def _fence(draw: Draw, at_s: float) -> None:
    """With the cord pulled and that said as well, or called off again, or neither."""
    host = draw.host().name
    draw.add(at_s, "fence", host=host)
    if draw.random.random() < 0.3:
        draw.add(at_s + 2.0, "power-off", hosts=(host,))
        draw.add(at_s + draw.random.uniform(2.5, 8.0), "confirm-off", host=host, looks=True, reason="cord pulled")
    elif draw.random.random() < 0.4:
        draw.add(at_s + draw.short(), "call-off-fence", host=host)


def _confirm(draw: Draw, at_s: float) -> None:
    """Somebody pulls the cord and says so, once the host is condemned."""
    host = draw.host().name
    draw.add(at_s, "power-off", hosts=(host,))
    draw.add(at_s + draw.random.uniform(8.0, 20.0), "confirm-off", host=host, looks=True, reason="cord pulled")


def _policy(draw: Draw, at_s: float) -> None:
    random = draw.random
    change = random.choice(
        (
            {"stormFraction": random.choice((0.3, 0.5, 1.0))},
            {"fencesLimit": random.choice((1, 2, 10))},
            {"powerOnAfter": random.random() < 0.5},
            {"profile": random.choice(("", "fast", "steady"))},
        )
    )
    draw.add(at_s, "set-policy", policy=change)


def _delete_membership(draw: Draw, at_s: float) -> None:
    """Of a host that runs on, or that is then switched off, of which somebody says so."""
    if not draw.first("delete-membership", RESTORES):
        return
    host = draw.host().name
    draw.add(at_s, "delete-membership", host=host)
    if draw.random.random() < 0.5:
        off_s = at_s + draw.random.uniform(0.0, 10.0)
        draw.add(off_s, "power-off", hosts=(host,))
        draw.add(off_s + draw.random.uniform(0.5, 10.0), "confirm-off", host=host, looks=True, reason="cord pulled")
        draw.add(off_s + draw.short(), "power-on", hosts=(host,))


ASKED_FOR: Final[dict[str, Kind]] = {
    "move": _move,
    "request": _request,
    "asked-after-a-death": _asked_after_a_death,
    "create": lambda draw, at_s: draw.add(at_s, "create-vm", vm=f"new-{len(draw.faults)}", host=draw.host().name),
    "delete": lambda draw, at_s: draw.add(at_s, "delete-vm", vm=draw.vm().name),
    "drain": lambda draw, at_s: draw.while_(at_s, draw.short() + 10.0, "drain", "ready", host=draw.host().name),
    "maintenance": _maintenance,
    "going-down": _going_down,
    "arm": lambda draw, at_s: draw.add(at_s, draw.random.choice(("arm", "disarm")), hosts=draw.one()),
    "fence": _fence,
    "confirm": _confirm,
    "policy": _policy,
    "release": lambda draw, at_s: draw.add(at_s, "release"),
    "delete-membership": _delete_membership,
}
"""What users and operators ask for."""
