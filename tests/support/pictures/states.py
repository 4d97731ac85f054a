"""Diagrams of states: of a host, its fence and its guard, of a VM, its recovery and its move.

A drawing places the states and writes what each arrow means. The states and arrows themselves come from the code:
from its tables of transitions, and for a host from the steps of the safety protocol, tried on every kind of record.
``check`` refuses a drawing that has other states or arrows than the code.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from outlive.guard import LEGAL, Phase
from outlive.node import HostLife, host_liveness
from outlive.node.fencing import (
    ATTEST,
    CONDEMN,
    PROFILES,
    PROVE_OPERATOR,
    TRANSITIONS,
    AttestView,
    CondemnView,
    OperatorView,
    ProfileName,
)
from outlive.node.membership import LEAVE, RENEW, ROWS, JoinView, LeaveView, RenewView
from outlive.node.migration import PHASES as MOVE_PHASES
from outlive.node.vm import PHASES as VM_PHASES
from outlive.recovery import PHASES as RECOVERY_PHASES
from outlive.resources import (
    FencePhase,
    MemberRecord,
    Membership,
    MigrationPhase,
    ObjectMeta,
    RecoveryPhase,
    RenewalSight,
    VmState,
)
from tests.support.pictures.canvas import Area, Drawing

Arrows = frozenset[tuple[str, str]]
NO_MEMBER: Final = "not a member"
NO_FENCE: Final = "none"
HOST: Final = "kvm-7"
AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
FAST, STEADY = PROFILES[ProfileName.FAST], PROFILES[ProfileName.STEADY]


class Mismatch(Exception):
    """A drawing shows other states or arrows than the code has."""


def arrows_of_table(table: Mapping[enum.StrEnum, Iterable[enum.StrEnum]]) -> Arrows:
    """The arrows of a table of transitions, without those from a state to itself."""
    return frozenset((str(one), str(other)) for one, others in table.items() for other in others if one is not other)


def fence_arrows() -> Arrows:
    """The arrows of a fence, with those that stay in a phase."""
    return frozenset(
        (str(phase) or NO_FENCE, str(after) or NO_FENCE)
        for phase, events in TRANSITIONS.items()
        for after in events.values()
    )


def host_arrows() -> Arrows:
    """How a host may go from state to state: each step that can write its Membership, tried on each kind of record."""
    found, records = set[tuple[str, str]](), dict[str, MemberRecord | None]()
    waiting: deque[tuple[str, MemberRecord | None]] = deque([(NO_MEMBER, None)])
    while waiting:
        state, record = waiting.popleft()
        if state in records:
            continue
        records[state] = record
        for after, written in _steps_from(state, record):
            if after != state:
                found.add((state, after))
            waiting.append((after, written))
    return frozenset(found)


def _host_state(record: MemberRecord, *, silent: bool = False) -> str:
    sight = RenewalSight(at=AT, silent={HOST: FAST.silence_s} if silent else {})
    member = Membership(metadata=ObjectMeta(name=HOST, uid="u"), record=record)
    return host_liveness(HOST, None, member, None, sight).state


def _steps_from(state: str, record: MemberRecord | None) -> Iterator[tuple[str, MemberRecord]]:
    """Where each step leads that is allowed. A host whose own write arrives is silent no more."""
    written: list[MemberRecord | None] = []
    if record is not None and state == HostLife.ALIVE:
        yield _host_state(record, silent=True), record
    silent = state == HostLife.SILENT
    boots = ("a",) if record is None else (record.boot_id, record.boot_id + "+")
    for boot in () if silent else boots:
        member = JoinView(host=HOST, record=record, uid="u", machine_id="m", boot_id=boot, nonce="n")
        written += [row.attempt(member).record for row in ROWS]
    if record is None:
        view = AttestView(host=HOST, lost={"old": 1}, named=("old",), token="t", name="root", reason="unplugged")
        written.append(ATTEST.attempt(view).record)
    else:
        fence, reason = record.fence.id, "unplugged"
        written.append(RENEW.attempt(RenewView(host=HOST, record=record, nonce=record.nonce)).record)
        if not silent:
            written.append(LEAVE.attempt(LeaveView(host=HOST, record=record, nonce=record.nonce)).record)
        order = CondemnView(
            host=HOST, record=record, unchanged_s=FAST.suspicion_s, silence_s=FAST.silence_s, observer="kvm-1"
        )
        written.append(CONDEMN.attempt(order).record)
        word = OperatorView(
            host=HOST, record=record, observer="kvm-1", epoch=record.epoch, fence=fence, name="root", reason=reason
        )
        if fence:
            written.append(PROVE_OPERATOR.attempt(word).record)
    yield from ((_host_state(one), one) for one in written if one is not None)


class Diagram:
    """A drawing of states, which knows what it shows."""

    def __init__(self, title: str, width: float, height: float) -> None:
        self.drawing = Drawing(title, width, height)
        self._places: dict[str, Area] = {}
        self._arrows: set[tuple[str, str]] = set()

    def state(self, name: str, x: float, y: float, *notes: str, colour: str = "", width: float = 150) -> None:
        """A state; several of them in one box are parted by commas."""
        area = Area(x, y, width, 34 + 15 * len(notes))
        names = name.split(", ")
        self.drawing.box(area, [name, *notes], colour=colour, data=f' data-state="{"|".join(names)}"')
        self._places.update(dict.fromkeys(names, area))

    def at(self, state: str, where: str) -> tuple[float, float]:
        """A point on the border of a state."""
        return self._places[state].point(where)

    def arrow(
        self,
        sources: str,
        targets: str,
        *points: tuple[float, float],
        label: str = "",
        at: tuple[float, float] = (0, 0),
        anchor: str = "middle",
        colour: str = "grey",
        dashed: bool = False,
    ) -> None:
        """An arrow from each of the sources to each of the targets; names are parted by commas."""
        froms, tos = sources.split(", "), targets.split(", ")
        data = f' data-from="{"|".join(froms)}" data-to="{"|".join(tos)}"'
        self.drawing.arrow(*points, colour=colour, dashed=dashed, data=data)
        self._arrows |= {(one, other) for one in froms for other in tos}
        self.drawing.lines(*at, label.split("\n") if label else [], size=11, anchor=anchor, colour="muted")

    def anywhere(self, area: Area, targets: str, label: str) -> None:
        """A frame around states, each of which leads to these others."""
        froms, tos = list(self._places), targets.split(", ")
        data = f' data-from="{"|".join(froms)}" data-to="{"|".join(tos)}"'
        self.drawing.rect(area, fill="", stroke="blue", dashed=True, data=data)
        self.drawing.text(area.x + 14, area.y + area.height - 12, label, size=12, colour="blue")
        self._arrows |= {(one, other) for one in froms for other in tos if one != other}

    def finish(self, states: Iterable[str], arrows: Arrows) -> Drawing:
        """The drawing, if it shows exactly these states and arrows."""
        wrong = [
            f"the code has {sorted(expected - shown)} and the drawing does not; the drawing has "
            f"{sorted(shown - expected)} and the code does not"
            for shown, expected in ((set(self._places), set(states)), (self._arrows, set(arrows)))
            if shown != expected
        ]
        if wrong:
            raise Mismatch(f"{self.drawing.title}: {'; '.join(wrong)}")
        return self.drawing


def shown_states(svg: str) -> set[str]:
    """The states that a picture shows."""
    return {state for names in re.findall(r' data-state="([^"]+)"', svg) for state in names.split("|")}


def shown_arrows(svg: str) -> set[tuple[str, str]]:
    """The arrows that a picture shows; of a frame those between different states."""
    found = re.findall(r'<(\w+) [^>]*? data-from="([^"]+)" data-to="([^"]+)"', svg)
    return {
        (one, other)
        for element, froms, tos in found
        for one in froms.split("|")
        for other in tos.split("|")
        if element == "path" or one != other
    }


def host() -> Drawing:
    """The states of a host, as all commands show them."""
    d = Diagram("The states of a host", 960, 410)
    d.state(NO_MEMBER, 20, 110, colour="grey", width=130)
    d.state(HostLife.ALIVE, 250, 110, "renews its membership", colour="green", width=170)
    d.state(HostLife.SILENT, 560, 110, "its VMs may still run", colour="amber", width=160)
    d.state(HostLife.CONDEMNED, 760, 215, "starts nothing;", "proofs are looked for", colour="red", width=175)
    d.state(HostLife.DEAD, 560, 335, "its VMs restart elsewhere", colour="red", width=190)
    d.state(HostLife.STOPPED, 250, 335, "left cleanly, runs nothing", colour="grey", width=190)
    at, y = d.at, 127
    d.arrow(NO_MEMBER, "alive", at(NO_MEMBER, "r"), (250, y), label="joins", at=(200, y - 8))
    silence = f"no renewal for {FAST.silence_s:g} s (fast)"
    d.arrow(
        "alive",
        "silent",
        (420, y - 7),
        (560, y - 7),
        label=f"{silence}\nor {STEADY.silence_s:g} s (steady)",
        at=(490, y - 28),
    )
    d.arrow("silent", "alive", (560, y + 12), (420, y + 12), label="renews", at=(490, y + 27))
    checks = f"still silent after {FAST.throws} or {STEADY.throws} checks:\na coordinator condemns it"
    d.arrow("silent", "condemned", (720, y), (850, y), (850, 215), label=checks, at=(730, y - 25), anchor="start")
    d.arrow(
        "alive",
        "condemned",
        (350, 110),
        (350, 62),
        (905, 62),
        (905, 215),
        label="an operator orders it: outlive fence HOST",
        at=(600, 55),
    )
    d.arrow(
        "condemned",
        "dead",
        (850, 279),
        (850, 355),
        (750, 355),
        colour="red",
        label="a proof succeeds",
        at=(770, 374),
        anchor="start",
    )
    d.arrow("condemned", "alive", (760, 247), (395, 247), (395, 159), label="joins again: new epoch", at=(600, 240))
    d.arrow(
        "dead",
        "alive",
        (680, 335),
        (680, 290),
        (355, 290),
        (355, 159),
        label="boots or empties itself, and joins: new epoch",
        at=(365, 306),
        anchor="start",
    )
    d.arrow(
        "alive", "stopped", (285, 159), (285, 335), label="its daemon stops,\nnothing runs", at=(277, 240), anchor="end"
    )
    d.arrow("stopped", "alive", (310, 335), (310, 159))
    d.drawing.text(317, 212, "joins", size=11, colour="muted")
    d.arrow(
        NO_MEMBER,
        "dead",
        (85, 144),
        (85, 396),
        (540, 396),
        (540, 372),
        (560, 372),
        label="its membership was lost, and an\noperator confirms that it is off",
        at=(92, 180),
        anchor="start",
    )
    known = {state for state in HostLife if state is not HostLife.UNKNOWN}
    return d.finish({NO_MEMBER, *known}, host_arrows())


def fence() -> Drawing:
    """The phases of a fence."""
    d = Diagram("The phases of a fence (record.fence of a Membership)", 960, 330)
    d.state(NO_FENCE, 30, 130, "the host is a member,", "or has left", width=170)
    d.state("condemned", 340, 130, "starts nothing new;", "proofs are looked for", colour="amber", width=190)
    d.state(
        "unconfirmed", 340, 255, "no kind of proof succeeded;", "VMs wait: fence-unconfirmed", colour="red", width=220
    )
    d.state("proven", 730, 130, "the epoch is dead;", "its VMs restart", colour="green", width=190)
    y = 160
    d.arrow(NO_FENCE, "condemned", (200, y), (340, y), label="condemn", at=(270, y - 8))
    d.arrow("condemned", "proven", (530, y), (730, y), colour="green", label="prove", at=(630, y - 8))
    d.arrow("condemned", "unconfirmed", (400, 194), (400, 255), label="unconfirmed", at=(392, 228), anchor="end")
    d.arrow(
        "unconfirmed", "condemned", (465, 255), (465, 194), label="attempt, take-over", at=(473, 228), anchor="start"
    )
    d.arrow("unconfirmed", "proven", (560, 287), (825, 287), (825, 194), colour="green", label="prove", at=(690, 280))
    d.arrow(
        "condemned",
        "condemned",
        (400, 130),
        (400, 95),
        (470, 95),
        (470, 130),
        label="attempt: a power command is sent · take-over: the coordinator fell silent",
        at=(435, 86),
    )
    d.arrow(
        "unconfirmed",
        "unconfirmed",
        (340, 275),
        (300, 275),
        (300, 300),
        (340, 300),
        label="tried again",
        at=(292, 292),
        anchor="end",
    )
    d.arrow("proven", "proven", (790, 130), (790, 95), (860, 95), (860, 130), label="switch-on", at=(825, 86))
    d.drawing.text(30, 225, "A host that joins again", size=11, colour="muted")
    d.drawing.text(30, 240, "ends its fence in any phase.", size=11, colour="muted")
    return d.finish((str(one) or NO_FENCE for one in FencePhase), fence_arrows())


def guard() -> Drawing:
    """The phases of a guard."""
    d = Diagram("The phases of a guard", 960, 300)
    d.state("unarmed", 30, 110, "the daemon may start VMs", width=190)
    d.state("watching", 350, 110, "feeds the watchdog", colour="green", width=170)
    d.state("killing", 690, 110, "no start; kills every VM", colour="red", width=190)
    d.state("empty", 350, 225, "no start; feeds the watchdog", colour="amber", width=210)
    d.state("lost", 735, 225, "the watchdog resets the host", colour="red", width=210)
    d.arrow("unarmed", "watching", (220, 124), (350, 124), label="armed", at=(285, 116))
    d.arrow("watching", "unarmed", (350, 146), (220, 146), label="disarmed", at=(285, 162))
    d.arrow(
        "watching",
        "killing",
        (520, 134),
        (690, 134),
        colour="red",
        label="no acknowledged\nrenewal for T",
        at=(605, 110),
    )
    d.arrow("killing", "empty", (720, 159), (720, 252), (560, 252), label="no VM is left", at=(640, 268))
    d.arrow("empty", "killing", (530, 225), (530, 195), (703, 195), (703, 159), label="a VM appears", at=(615, 188))
    d.arrow("empty", "watching", (430, 225), (430, 159), label="a renewal is acknowledged", at=(422, 196), anchor="end")
    d.arrow(
        "killing",
        "lost",
        (820, 159),
        (820, 225),
        colour="red",
        label="not empty in time",
        at=(828, 196),
        anchor="start",
    )
    return d.finish(map(str, Phase), arrows_of_table(LEGAL))


def vm() -> Drawing:
    """The phases of a VM."""
    d = Diagram("The phases of a VM (status.phase on hosts of Outlive)", 960, 430)
    d.state("start", 60, 120, "it runs, or is to run", colour="green", width=170)
    d.state("stop", 60, 320, "it is down, as you asked", colour="grey", width=190)
    d.state("disable", 330, 320, "down until you ask", colour="grey", width=160)
    d.state("shutdown", 290, 220, "the guest is asked to stop", colour="amber", width=200)
    d.state("restart", 430, 120, "the guest is asked to stop", colour="amber", width=200)
    d.state("fail", 700, 313, "its host could not start it;", "you must act", colour="red", width=200)
    d.state("migrate, migrate-live, unmigrate", 620, 215, "it moves to another host", colour="blue", width=280)
    d.anywhere(
        Area(20, 48, 920, 370),
        "start, stop, disable",
        "From every state a request, or its policy, leads to start, stop or disable.",
    )
    d.arrow("start", "restart", (230, 136), (430, 136), label="restart", at=(330, 129))
    d.arrow("restart", "start", (430, 158), (230, 158), label="it is down: started again", at=(330, 174))
    d.arrow("start", "shutdown", (140, 169), (140, 238), (290, 238), label="shutdown", at=(210, 232))
    d.arrow("shutdown", "stop", (290, 256), (100, 256), (100, 320), label="the guest is down", at=(190, 274))
    d.arrow("restart", "shutdown", (460, 169), (460, 220))
    d.arrow(
        "start",
        "migrate, migrate-live, unmigrate",
        (180, 120),
        (180, 84),
        (840, 84),
        (840, 215),
        label="migrate, or a drain",
        at=(500, 77),
    )
    d.arrow(
        "migrate, migrate-live, unmigrate",
        "start",
        (740, 215),
        (740, 100),
        (210, 100),
        (210, 120),
        label="it has arrived, or stays",
        at=(732, 196),
        anchor="end",
    )
    d.arrow("migrate, migrate-live, unmigrate", "fail", (840, 264), (840, 313))
    d.arrow(
        "shutdown",
        "fail",
        (490, 245),
        (555, 245),
        (555, 338),
        (700, 338),
        label="no host could start it",
        at=(630, 331),
    )
    d.arrow("restart", "fail", (575, 169), (575, 298), (730, 298), (730, 313))
    d.arrow("start", "fail", (60, 145), (40, 145), (40, 390), (800, 390), (800, 377))
    return d.finish(map(str, VmState), arrows_of_table(VM_PHASES))


def recovery() -> Drawing:
    """The phases of a recovery."""
    d = Diagram("The recovery of a VM (status.recovery)", 960, 330)
    d.state("waiting", 30, 110, "its host is proven dead,", "or could not start it", width=190)
    d.state("assigned", 390, 110, "a host is to start it,", "in its slot if it has one", colour="blue", width=190)
    d.state("held", 390, 235, "it waits, with a reason", colour="amber", width=190)
    d.state("recovered", 750, 110, "its host sees it run,", "no other host holds it", colour="green", width=190)
    d.state("dropped", 750, 242, "it is not restarted", colour="grey", width=190)
    d.arrow("waiting", "assigned", (220, 142), (390, 142), label="a place is found", at=(305, 134))
    d.arrow("waiting", "held", (100, 174), (100, 260), (390, 260), label="no place, or it may not start", at=(245, 252))
    d.arrow("assigned", "held", (440, 174), (440, 235), label="rejected", at=(432, 212), anchor="end")
    d.arrow("held", "assigned", (520, 235), (520, 174), label="a place is found", at=(528, 212), anchor="start")
    d.arrow("assigned", "recovered", (580, 142), (750, 142), colour="green", label="it runs", at=(665, 134))
    d.arrow(
        "waiting, held",
        "recovered",
        (130, 110),
        (130, 72),
        (845, 72),
        (845, 110),
        colour="green",
        label="waiting or held: it runs, because its host came back or started it",
        at=(490, 64),
    )
    d.arrow(
        "waiting, held, assigned",
        "dropped",
        (580, 265),
        (750, 265),
        label="waiting, held or\nassigned: stopped,\nor policy ignore",
        at=(665, 283),
    )
    return d.finish(map(str, RecoveryPhase), arrows_of_table(RECOVERY_PHASES))


def migration() -> Drawing:
    """The phases of a move."""
    d = Diagram("The phases of a move (status.migration)", 960, 400)
    d.state("requested", 40, 125, "the target prepares", width=160)
    d.state("target-ready", 290, 125, "it may come", colour="blue", width=150)
    d.state("transferring", 500, 125, "its memory is sent", colour="blue", width=160)
    d.state("transferred", 740, 125, "paused at the source", colour="blue", width=180)
    d.state("stopping", 500, 230, "cold: it shuts down", colour="blue", width=160)
    d.state("stopped", 740, 230, "the target starts it", colour="blue", width=180)
    d.state("aborted", 370, 335, "it stays where it is, or recovery restarts it", colour="red", width=310)
    d.arrow("requested", "target-ready", (200, 142), (290, 142), label="prepared", at=(245, 134))
    d.arrow("target-ready", "transferring", (440, 142), (500, 142))
    d.arrow("transferring", "transferred", (660, 142), (740, 142), label="all is sent", at=(700, 134))
    d.arrow("target-ready", "stopping", (400, 174), (400, 255), (500, 255), label="cold", at=(450, 248))
    d.arrow("stopping", "stopped", (660, 255), (740, 255), label="it is down", at=(700, 247))
    d.arrow("stopping", "transferred", (630, 230), (630, 203), (790, 203), (790, 174))
    d.arrow(
        "requested, target-ready",
        "transferred",
        (120, 125),
        (120, 72),
        (830, 72),
        (830, 125),
        label="requested, target-ready or stopping: the guest is found paused at its source",
        at=(475, 64),
    )
    d.arrow(
        "transferring, target-ready",
        "requested",
        (540, 125),
        (540, 96),
        (170, 96),
        (170, 125),
        label="the transfer failed: try again, or cold",
        at=(355, 113),
    )
    d.arrow(
        "requested, target-ready, transferring, stopping, transferred, stopped",
        "aborted",
        (120, 174),
        (120, 357),
        (370, 357),
        label="from each of them: called off, too late,\nor one of the two hosts is lost",
        at=(130, 312),
        anchor="start",
    )
    d.drawing.lines(715, 318, ["The guest runs at the target:", "the record is removed."], size=11, colour="muted")
    d.drawing.arrow((920, 255), (935, 255), (935, 300), colour="green")
    return d.finish(map(str, MigrationPhase), arrows_of_table(MOVE_PHASES))
