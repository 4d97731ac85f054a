"""The servers of a ZooKeeper ensemble below the store of a virtual cluster, and which of them each process is on.

Nothing is read or written while the ensemble has no leader that a majority follows. A process is on one server; it
loses its calls while that server does not answer, and moves to another one. A follower that lags shows its processes
changes later, and older listings. Times are those of three real servers with a tick of 500 ms (bench/RESULTS.md):
they are what makes an outage short or long, and no rule of the product rests on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from outlive.base import BadInput, Clock, stable_hash

ELECTION_S: Final = 0.5
"""From when a majority knows that it has no leader until it has one."""
NOTICE_S: Final = 2.5
"""Until the others notice that a server stands still, or is apart from them; one that died is noticed at once."""
MOVE_S: Final = 0.3
"""How long a process takes to connect to another server."""


@dataclass(slots=True)
class Server:
    """One server of the ensemble."""

    number: int
    up: bool = True
    paused: bool = False
    apart: bool = False
    """Whether the other servers do not reach it; its processes do."""
    lag_s: float = 0.0
    """How much later than the leader it shows changes."""

    @property
    def works(self) -> bool:
        """Whether it can be part of a majority."""
        return self.up and not self.paused and not self.apart


def choose_leader(servers: Collection[Server], present: int) -> int:
    """The number of the server that leads once everything is noticed; 0 where no majority works.

    A leader stays for as long as it works; else the first of those that lag least is chosen.
    """
    working = [one for one in servers if one.works]
    if 2 * len(working) <= len(servers):
        return 0
    if any(one.number == present for one in working):
        return present
    return min(working, key=lambda one: (one.lag_s, one.number)).number


class Ensemble:
    """See the module. ``changed()`` is called whenever somebody may reach the store, or reaches it no more."""

    def __init__(
        self, count: int, clock: Clock, changed: Callable[[], None], start: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self.servers = {number: Server(number) for number in range(1, count + 1)}
        self.leader = choose_leader(self.servers.values(), 0)
        self._clock = clock
        self._changed = changed
        self._start = start
        self._on: dict[str, int] = {}
        """Process's machine → the server that it is on."""
        self._moving: set[str] = set()
        """Machines whose processes are between two servers."""
        self._round = 0
        """Which election is the last one that began."""

    def find_server(self, number: int) -> Server:
        """That one; ``BadInput`` where there is none."""
        if number not in self.servers:
            raise BadInput(f"there is no server {number}", remedy=f"servers are {', '.join(map(str, self.servers))}")
        return self.servers[number]

    def server_of(self, machine: str) -> Server:
        """The server that the processes of a machine are on."""
        numbers = list(self.servers)
        return self.servers[self._on.setdefault(machine, numbers[stable_hash(machine) % len(numbers)])]

    @property
    def undisturbed(self) -> bool:
        """Whether everybody reaches the store and is shown changes at once."""
        return (
            self.leader != 0 and not self._moving and all(one.works and not one.lag_s for one in self.servers.values())
        )

    def is_serving(self, machine: str) -> bool:
        """Whether calls of that machine are answered."""
        return self.leader != 0 and machine not in self._moving and self.server_of(machine).works

    def lag_s(self, machine: str) -> float:
        """How much later that machine is shown changes."""
        server = self.server_of(machine)
        return 0.0 if server.number == self.leader else server.lag_s

    def change(self, number: int, **states: bool | float) -> None:
        """A server dies, stands still, is cut off, lags, or is as before; what follows comes by itself."""
        server = self.find_server(number)
        at_once = states.get("up") is False
        for name, value in states.items():
            setattr(server, name, value)
        self._round += 1
        if not choose_leader(self.servers.values(), 0) or (self.leader == number and not server.works):
            self.leader = 0
        self._changed()
        self._start(self._settle(self._round, 0.0 if at_once or server.works else NOTICE_S))

    def heal(self) -> None:
        """Every server is as it should be."""
        for number, server in self.servers.items():
            if not server.works or server.lag_s:
                self.change(number, up=True, paused=False, apart=False, lag_s=0.0)

    async def _settle(self, election: int, notice_s: float) -> None:
        """What the other servers and the processes do about a change: elect, and move."""
        await self._clock.sleep(notice_s)
        if election != self._round:
            return
        if not self.leader and choose_leader(self.servers.values(), 0):
            await self._clock.sleep(ELECTION_S)
            if election != self._round:
                return
            self.leader = choose_leader(self.servers.values(), 0)
        working = [one.number for one in self.servers.values() if one.works]
        moved = [machine for machine in self._on if not self.server_of(machine).works]
        if moved and working:
            self._moving |= set(moved)
            await self._clock.sleep(MOVE_S)
            for machine in moved:
                self._on[machine] = working[stable_hash(machine) % len(working)]
            self._moving -= set(moved)
        self._changed()
