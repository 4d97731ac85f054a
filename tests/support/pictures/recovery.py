"""The time line of one recovery, recorded from a simulated run: what happens, and what commands say of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from outlive.node import HostLife, VmLife, host_liveness, vm_liveness
from outlive.resources import CLUSTER, Cluster, Hypervisor, Membership, VirtualMachine
from outlive.simulation import PlayedStory, Story, lines_of, read_scenario
from tests.support.loops import run
from tests.support.pictures.canvas import Area, Drawing, wrap

SCENARIO: Final = Path(__file__).parents[2] / "scenarios/host-loses-power"
HOST: Final = "kvm-4"
VM: Final = "vm-4-1"
BEGIN_S: Final = 19
END_S: Final = 30
EVERY_S: Final = 0.1
"""How often the state is noted."""
TOP, SCALE, WIDTH = 112, 50, 1000
AXIS, EVENTS, BARS, SAID = 62, 84, (420, 478), 530
HOST_COLOURS: Final = {
    HostLife.ALIVE: "green",
    HostLife.SILENT: "amber",
    HostLife.CONDEMNED: "red",
    HostLife.DEAD: "grey",
}
VM_COLOURS: Final = {
    VmLife.RUNNING: "green",
    VmLife.UNKNOWN: "amber",
    VmLife.DOWN: "red",
    VmLife.WAITING: "red",
    VmLife.STARTING: "blue",
}


class Moment(NamedTuple):
    """What commands say at a moment."""

    at_s: float
    host: HostLife
    host_text: str
    vm: VmLife
    vm_text: str


class Recorded(NamedTuple):
    """A run."""

    moments: tuple[Moment, ...]
    events: tuple[tuple[float, str], ...]
    """Second and sentence of each line that the run prints."""
    why: str
    """What ``outlive why`` says of the VM at the end."""


class _RecordedStory(Story):
    def __init__(self) -> None:
        scenario = read_scenario(SCENARIO)
        super().__init__(scenario, seed=scenario.spec.seed, replay="", why=VM)
        self.moments: list[Moment] = []

    async def _run(self) -> None:
        self.world.start_task(self._note(), name="the picture is recorded")
        await super()._run()

    async def _note(self) -> None:
        await self.world.clock.sleep(BEGIN_S)
        while self.now_s <= END_S + EVERY_S:
            store, sight = self.world.store, await self.world.read_sight()
            cluster = store.find(Cluster, CLUSTER)
            hosts = {
                one.name: host_liveness(one.name, store.find(Hypervisor, one.name), one, cluster, sight)
                for one in store.list_all(Membership)
            }
            guest = store.find(VirtualMachine, VM)
            assert guest is not None
            vm, host = vm_liveness(guest, hosts), hosts[HOST]
            self.moments.append(Moment(self.now_s, host.state, host.text, vm.state, vm.text))
            await self.world.clock.sleep(EVERY_S)


def record() -> Recorded:
    """Play the scenario with its own seed."""

    async def play() -> tuple[_RecordedStory, PlayedStory]:
        story = _RecordedStory()
        return story, await story.play()

    story, ended = run(play())
    assert not ended.failed, ended.failed
    assert ended.why is not None
    lines = [re.match(r" *([\d.]+) s  (.+)", line) for line in lines_of(ended.events)]
    events = tuple((float(one[1]), one[2]) for one in lines if one is not None)
    return Recorded(tuple(story.moments), events, ended.why.summary)


def _plain(text: str) -> str:
    """An event in fewer words."""
    text = re.sub(r"the controller of system [0-9a-f-]{36} said", "its BMC said", text)
    text = re.sub(r"; [\d.]+ s = .*|; checked once.*", "", text)
    return re.sub(r" \d{4}-\d\d-\d\d (\d\d:\d\d:\d\d) UTC", r" \1", text)


def timeline() -> Drawing:
    """The time line of one recovery."""
    recorded = record()
    events = [(at_s, _plain(text)) for at_s, text in recorded.events if BEGIN_S <= at_s <= END_S]
    bottom = TOP + (END_S - BEGIN_S) * SCALE
    d = Drawing(f"One recovery, second by second: {HOST} loses power", WIDTH, bottom + 100)
    d.text(EVENTS, TOP - 36, "what happens", bold=True)
    d.text(SAID, TOP - 36, "what outlive status and outlive vm list say", bold=True)
    for x, name in zip(BARS, (HOST, VM), strict=True):
        d.text(x + 11, TOP - 12, name, size=12, anchor="middle", bold=True)
    for second in range(BEGIN_S, END_S + 1):
        y = TOP + (second - BEGIN_S) * SCALE
        d.text(AXIS - 12, y + 4, f"{second} s", size=11, anchor="end", colour="muted")
        d.line((AXIS - 5, y), (AXIS + 5, y), colour="muted")
        d.line((BARS[0] - 12, y), (WIDTH - 20, y))
    d.line((AXIS, TOP), (AXIS, bottom), colour="muted", width=1.5)
    _draw_events(d, events)
    _draw_bar(d, BARS[0], [(one.at_s, one.host) for one in recorded.moments], HOST_COLOURS)
    _draw_bar(d, BARS[1], [(one.at_s, one.vm) for one in recorded.moments], VM_COLOURS)
    _draw_sayings(d, recorded.moments)
    said = wrap(f"outlive why {VM}, afterwards: {_plain(recorded.why)}", WIDTH - 60, 11, mono=True)
    d.rect(Area(16, bottom + 46, WIDTH - 32, 14 + 16 * len(said)))
    d.lines(30, bottom + 64, said, size=11, step=16, mono=True)
    return d


def _draw_events(d: Drawing, events: Sequence[tuple[float, str]]) -> None:
    free_y = 0.0
    for at_s, text in events:
        y = TOP + (at_s - BEGIN_S) * SCALE
        lines = wrap(f"{at_s:.1f} s  {text}", BARS[0] - EVENTS - 30, 12)
        text_y = max(y, free_y)
        d.circle(AXIS, y, 4, "blue")
        d.line((AXIS, y), (EVENTS - 4, text_y), colour="blue")
        d.lines(EVENTS, text_y + 4, lines, size=12, step=15)
        free_y = text_y + 15 * len(lines) + 5


def _draw_bar(
    d: Drawing,
    x: float,
    states: Sequence[tuple[float, HostLife | VmLife]],
    colours: dict[HostLife, str] | dict[VmLife, str],
) -> None:
    changes = [states[0], *(after for before, after in pairwise(states) if before[1] is not after[1])]
    ends = [*(at_s for at_s, _ in changes[1:]), float(END_S)]
    for (at_s, state), end_s in zip(changes, ends, strict=True):
        colour = colours[state]
        top, end = TOP + (at_s - BEGIN_S) * SCALE, TOP + (end_s - BEGIN_S) * SCALE
        d.rect(Area(x, top, 22, end - top), fill=f"soft-{colour}", stroke=colour, radius=2)


def _draw_sayings(d: Drawing, moments: Sequence[Moment]) -> None:
    for second in range(BEGIN_S, END_S + 1):
        one = next(one for one in moments if one.at_s >= second - EVERY_S / 2)
        y = TOP + (second - BEGIN_S) * SCALE
        for at, (name, text, state) in enumerate(((HOST, one.host_text, one.host), (VM, one.vm_text, one.vm))):
            colour = (HOST_COLOURS if at == 0 else VM_COLOURS)[state]
            d.text(SAID, y + 16 + 15 * at, name, size=10.5, mono=True, colour="muted")
            d.text(SAID + 48, y + 16 + 15 * at, _plain(text), size=10.5, mono=True, colour=colour)
