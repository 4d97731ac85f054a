"""Timelines: what proves that a host is dead, and how the network follows a guest that moves."""

from __future__ import annotations

from outlive.node.fencing import BACKOFF_S, PROFILES, READINGS_APART_S, ProfileName
from tests.support.pictures.canvas import Area, Drawing, text_width

WIDTH, LEFT, LANE, TOP = 960, 150, 62, 54
FAST, STEADY = PROFILES[ProfileName.FAST], PROFILES[ProfileName.STEADY]


class Timeline:
    """Lanes (who), marks (what happens when) and arrows (who tells whom)."""

    def __init__(self, title: str, lanes: list[str], seconds: float, ticks: list[float], unit: str = "s") -> None:
        self._lanes, self._seconds = lanes, seconds
        height = TOP + len(lanes) * LANE + 34
        self.drawing = Drawing(title, WIDTH, height)
        for lane in lanes:
            y = self._y(lane)
            self.drawing.line((LEFT, y), (WIDTH - 30, y))
            self.drawing.text(16, y + 4, lane)
        for tick in ticks:
            x = self._x(tick)
            self.drawing.line((x, height - 34), (x, height - 26), colour="grey")
            self.drawing.text(x, height - 12, f"{tick:g} {unit}", size=11, anchor="middle", colour="muted")

    def _x(self, at: float) -> float:
        return LEFT + at / self._seconds * (WIDTH - LEFT - 40)

    def _y(self, lane: str) -> float:
        return TOP + 26 + self._lanes.index(lane) * LANE

    def bar(
        self, lane: str, begin: float, end: float, text: str = "", colour: str = "green", *, indent: float = 6
    ) -> Timeline:
        """What somebody does for a while."""
        area = Area(self._x(begin), self._y(lane) - 9, self._x(end) - self._x(begin), 18)
        self.drawing.rect(area, fill=f"soft-{colour}", stroke=colour, radius=3)
        if text:
            self.drawing.text(area.x + indent, area.y + 13, text, size=11, inside=area)
        return self

    def mark(
        self, lane: str, at: float, text: str, colour: str = "grey", *, above: bool = False, end: bool = False
    ) -> Timeline:
        """What happens at a moment."""
        x, y = self._x(at), self._y(lane)
        self.drawing.circle(x, y, 5, colour)
        left = x - 8 if end else min(x + 8, WIDTH - 12 - text_width(text, 12))
        self.drawing.text(
            left, y - 13 if above else y + 22, text, size=12, anchor="end" if end else "start", colour=colour
        )
        return self

    def arrow(self, at: float, source: str, target: str, until: float | None = None) -> Timeline:
        """Somebody tells somebody."""
        y1, y2 = self._y(source), self._y(target)
        gap = 10 if y2 > y1 else -10
        self.drawing.arrow((self._x(at), y1 + gap), (self._x(at if until is None else until), y2 - gap))
        return self

    def span(self, lane: str, begin: float, end: float, text: str) -> Timeline:
        """How long something takes."""
        y, x1, x2 = self._y(lane) + 32, self._x(begin), self._x(end)
        for x in (x1, x2):
            self.drawing.line((x, y - 4), (x, y + 4), colour="blue")
        self.drawing.line((x1, y), (x2, y), colour="blue")
        self.drawing.text((x1 + x2) / 2, y - 5, text, size=12, anchor="middle", colour="blue")
        return self


def power() -> Drawing:
    """Proof by power."""
    p = Timeline(
        "Proof by power: the BMC of the host's own machine reports off twice",
        ["host", "store", "coordinator", "BMC"],
        13,
        [0, 2, 4, 6, 8, 10, 12],
    )
    silent = 1.8 + FAST.suspicion_s
    p.bar("host", 0, 2, "VMs run").bar("host", 2, silent + 0.5, "hangs: VMs may still run", "amber")
    p.mark("host", silent + 0.5, "is off", "red", above=True)
    p.mark("store", 1.6, "last renewal: number 41", "green").arrow(1.5, "host", "store", 1.6)
    p.mark("coordinator", 1.8, "sees number 41").span(
        "coordinator", 1.8, silent, f"unchanged for {FAST.suspicion_s:g} s"
    )
    p.arrow(silent, "coordinator", "store").mark("store", silent, "Revoked, on number 41", "red", above=True)
    p.arrow(silent + 0.2, "coordinator", "BMC").mark("BMC", silent + 0.2, "switch off", "blue", end=True)
    first = silent + 0.8
    p.mark("BMC", first, "is off", "blue").mark(
        "BMC", first + READINGS_APART_S, f"off, {READINGS_APART_S:g} s later", "blue"
    )
    p.arrow(first + READINGS_APART_S, "BMC", "coordinator").arrow(first + 2.2, "coordinator", "store")
    p.mark("store", first + 2.2, "epoch dead", "green")
    return p.drawing


def watchdog() -> Drawing:
    """Proof by watchdog."""
    timeout, dog, slack, wait = STEADY.guard_timeout_s, STEADY.watchdog_s, STEADY.grace_s, STEADY.watchdog_wait_s
    p = Timeline(
        f"Proof by watchdog: an armed host empties or resets itself in time (T {timeout:g}, W {dog:g}, g {slack:g} s)",
        ["host", "guard", "store", "coordinator"],
        72,
        [0, 10, 20, 30, 40, 50, 60, 70],
    )
    sent, seen = 2, 4
    p.bar("host", 0, sent + timeout, "VMs run; since 4 s the store is out of reach")
    p.mark("store", 3, "last renewal, sent at B", "green", above=True).arrow(sent, "host", "store", 3)
    p.arrow(3.6, "store", "coordinator").mark("coordinator", seen, "receives it at Y", above=True)
    p.span("guard", sent, sent + timeout, f"T = {timeout:g} s after B")
    p.mark("guard", sent + timeout, "allows no start, kills every VM", "red", above=True)
    p.mark("host", sent + timeout + slack, "empty …", "green")
    p.mark("host", sent + timeout + 2 * dog + slack, "… or reset by the watchdog", "amber")
    p.span("coordinator", seen, seen + wait, f"(T + 2W + g)(1 + 2p) = {wait:.1f} s after Y")
    condemned = seen + STEADY.suspicion_s
    p.arrow(condemned, "coordinator", "store").mark("store", condemned, "Revoked", "red", above=True)
    p.mark("store", condemned, "epoch dead", "green")
    return p.drawing


def isolation() -> Drawing:
    """Proof by isolation."""
    p = Timeline(
        "Proof by isolation: the host may live, but reaches no disk or port of the VM",
        ["host", "store", "coordinator", "storage, network"],
        13,
        [0, 2, 4, 6, 8, 10, 12],
    )
    silent = 1.2 + FAST.suspicion_s
    p.bar("host", 0, 13, "VMs may still run here", "amber")
    p.mark("store", 1, "last renewal", "green").span("coordinator", 1.2, silent, "silent")
    p.arrow(silent, "coordinator", "store").mark("store", silent, "Revoked", "red", above=True)
    p.arrow(silent + 0.4, "coordinator", "storage, network")
    p.mark("storage, network", silent + 0.4, "isolate its disks and ports", "blue", end=True)
    p.mark("storage, network", 10, "read back: isolated", "blue").arrow(10, "storage, network", "coordinator")
    p.arrow(10.6, "coordinator", "store").mark("store", 10.6, "isolated, with its scope", "green")
    return p.drawing


def operator() -> Drawing:
    """Proof by operator."""
    p = Timeline(
        "Proof by operator: a person switched the host off, and confirms it by name",
        ["host", "store", "coordinator", "operator"],
        30,
        [0, 5, 10, 15, 20, 25],
        "min",
    )
    again = ", ".join(f"{one:g}" for one in BACKOFF_S)
    p.bar("host", 0, 2).mark("host", 2, "breaks, its BMC too", "red", above=True)
    p.mark("store", 2.5, "Revoked", "red").mark(
        "coordinator", 4, f"unconfirmed: tries again after {again} s", above=True
    )
    p.arrow(6, "coordinator", "operator").mark("operator", 6, "sees the fault and the remedy")
    p.mark("operator", 21, "pulls the plug", "blue", above=True, end=True).mark(
        "operator", 22, "outlive fence … --confirm-off", "blue"
    )
    p.arrow(22, "operator", "coordinator").arrow(22.6, "coordinator", "store").mark(
        "store", 22.6, "epoch dead", "green"
    )
    return p.drawing


def reboot() -> Drawing:
    """Proof by reboot."""
    p = Timeline(
        "Proof by reboot: the same machine reports another boot", ["host", "store"], 12, [0, 2, 4, 6, 8, 10], "min"
    )
    p.bar("host", 0, 2, "epoch 3").mark("host", 2, "crashes", "red", above=True).bar("host", 5, 12, "boot: epoch 4")
    p.mark("store", 1.5, "Held, epoch 3, boot a", "green").arrow(5, "host", "store")
    p.mark("store", 5, "same machine, boot b: epoch 3 is dead, Held in epoch 4", "green")
    return p.drawing


def self_cleaned() -> Drawing:
    """Proof by self-cleaning."""
    p = Timeline(
        "Proof by self-cleaning: the host returns and clears itself", ["host", "store"], 12, [0, 2, 4, 6, 8, 10], "min"
    )
    p.bar("host", 0, 4, "epoch 3: vm-a, vm-b").bar("host", 4, 12, "epoch 4: vm-a")
    p.mark("store", 1.5, "Revoked in epoch 3", "red", above=True).mark("store", 4, "Held in epoch 4", "green")
    p.arrow(4, "host", "store").mark("host", 5.5, "vm-a taken over; vm-b assigned elsewhere: destroyed", above=True)
    p.arrow(8, "host", "store").mark("store", 8, "nothing of epoch 3 left: epoch 3 is dead", "green")
    return p.drawing


def _move(title: str, lanes: list[str]) -> Timeline:
    p = Timeline(title, lanes, 10, [0, 2, 4, 6, 8])
    p.span("source", 6, 6.3, "pause").bar("target", 6.3, 10, "the guest runs", indent=20)
    return p


def layer2() -> Drawing:
    """A live migration on a layer2 network."""
    p = _move(
        "layer2: one port, bound by both hosts; the guest's own announcement switches over",
        ["source", "target", "OVN", "neighbours"],
    )
    p.bar("source", 0, 6, "the guest runs; its memory is sent from 3 s on")
    p.mark("target", 1, "waits, interface plugged", "blue")
    p.arrow(1, "target", "OVN").mark("OVN", 1.2, "port requests source, target; target waits for the guest", "blue")
    p.mark("target", 2.4, "bound, flows installed: prepared", "green", above=True)
    p.mark("target", 6.4, "RARP: unblocked at once, without a database", "green", above=True)
    p.arrow(6.4, "target", "neighbours", 6.5).mark("neighbours", 6.5, "send to the target", "green")
    p.arrow(7, "target", "OVN").mark("OVN", 7.2, "port requests the target alone", "blue")
    return p.drawing


def localnet() -> Drawing:
    """A live migration on a localnet network."""
    p = _move(
        "localnet: the same on a physical network, whose switches learn from the announcement",
        ["source", "target", "OVN", "physical switch"],
    )
    p.bar("source", 0, 6, "the guest runs; its memory is sent from 3 s on")
    p.mark("target", 1, "waits, interface plugged", "blue")
    p.arrow(1, "target", "OVN").mark("OVN", 1.2, "port requests source, target; target waits for the guest", "blue")
    p.mark("physical switch", 1, "MAC is behind the source", above=True)
    p.mark("target", 6.4, "RARP, on the wire too", "green", above=True)
    p.arrow(6.4, "target", "physical switch", 6.5).mark("physical switch", 6.5, "MAC is behind the target", "green")
    p.arrow(7, "target", "OVN").mark("OVN", 7.2, "port requests the target alone", "blue")
    return p.drawing


def routed() -> Drawing:
    """A live migration on a routed network."""
    p = _move(
        "routed: a port on each host's switch; a route to the VM's address changes when the target has it",
        ["source", "target", "OVN", "others"],
    )
    p.bar("source", 0, 6, "the guest runs in its home subnet").mark("target", 1, "waits, its own port plugged", "blue")
    p.arrow(1, "target", "OVN").mark(
        "OVN", 1.2, "a second port on the target's switch, same addresses, same DHCP", "blue"
    )
    p.mark("target", 2.4, "bound, flows installed: prepared", "green", above=True)
    p.arrow(6.4, "target", "OVN", 6.5).mark(
        "OVN", 6.5, "new route, old port removed: one transaction", "blue", above=True
    )
    p.arrow(6.6, "OVN", "others").mark("others", 6.7, "are routed to the target", "green")
    return p.drawing
