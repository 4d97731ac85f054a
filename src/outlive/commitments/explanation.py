"""Why a commitment has no capacity, and what would help, over plain data.

For every missing slot: what each step of placement made of the hosts, which host is nearest and what it lacks, which
commitments end in time, and which hosts out of service would do (docs/reference/commitments.md#explanation). What would
help is found slot by slot, so that no room is counted twice. Gathering is ``commitments.trial``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from math import ceil
from typing import Final

import msgspec

from outlive.base.clock import as_datetime
from outlive.base.phrases import count_of, listing, shown_bytes, shown_time
from outlive.commitments.acceptance import insufficient_text
from outlive.commitments.state import Commitment
from outlive.placement.vms import MILLI

NAMED: Final = 5
"""Hosts and commitments that a sentence names."""
NEVER: Final = float("inf")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Keys are camelCase."""


class StepCount(_Part, frozen=True, kw_only=True):
    """How many hosts a step of placement refused."""

    step: str
    hosts: int


class Room(_Part, frozen=True, kw_only=True):
    """What a host has that nobody uses or holds."""

    host: str
    cpu_milli: int
    memory_bytes: int


class ClosedRoom(Room, frozen=True, kw_only=True):
    """The same of a host that would be a candidate if it were in service."""

    why: str
    """What keeps it out of service, to follow its name."""


class MissingSlots(_Part, frozen=True, kw_only=True):
    """Slots of one size for which no host was found."""

    flavor: str
    cpu_milli: int
    memory_bytes: int
    count: int
    hosts: int
    """Hosts that placement knows."""
    steps: tuple[StepCount, ...] = ()
    """What each step refused."""
    candidates: tuple[Room, ...] = ()
    """Hosts that would take such a slot if they were empty."""
    closed: tuple[ClosedRoom, ...] = ()


class Ending(_Part, frozen=True, kw_only=True):
    """A slot of another commitment that goes when that one ends, with what it holds beside its VMs."""

    commitment: str
    project: str
    host: str
    cpu_milli: int
    memory_bytes: int
    end: float
    """Seconds since 1970."""


class MissingCores(_Part, frozen=True, kw_only=True):
    """A commitment of cores; it has no slots."""

    available: int
    message: str


class ExplanationInput(_Part, frozen=True, kw_only=True):
    """One commitment for which there is no capacity now, or only some."""

    commitment: Commitment
    expected: int = 0
    """Slots that it needs."""
    placed: int = 0
    """Slots that have a host, or were found one."""
    missing: tuple[MissingSlots, ...] = ()
    endings: tuple[Ending, ...] = ()
    """Of commitments of cores in the same group and zone, where the commitment is of cores: without hosts."""
    cores: MissingCores | None = None
    refusal: str = ""
    """Why it cannot be had at all, such as an unknown flavor group."""
    now: float


class Nearest(_Part, frozen=True, kw_only=True):
    """The host that lacks least, and what."""

    host: str
    cpu_milli: int
    memory_bytes: int


class ClosedHost(_Part, frozen=True, kw_only=True):
    """A host that would take some of the slots if it were in service."""

    host: str
    why: str
    slots: int


class SlotsExplanation(_Part, frozen=True, kw_only=True):
    """What is the matter with slots of one size."""

    flavor: str
    cpu_milli: int
    memory_bytes: int
    count: int
    hosts: int
    steps: tuple[StepCount, ...] = ()
    nearest: Nearest | None = None
    """Absent: no host would take one, however empty."""
    closed: tuple[ClosedHost, ...] = ()


class EndingCommitment(_Part, frozen=True, kw_only=True):
    """A commitment whose end makes room."""

    commitment: str
    project: str
    end: datetime


class Explanation(_Part, frozen=True, kw_only=True):
    """The answer."""

    possible: bool
    text: str
    """What is the matter, in one line."""
    helps: tuple[str, ...] = ()
    """What would help, a sentence each, the most certain first."""
    slots: tuple[SlotsExplanation, ...] = ()
    ends: tuple[EndingCommitment, ...] = ()
    """Commitments whose ends together make room for as many missing slots as possible, in order of time."""
    fitting: int = 0
    """So many of the missing slots fit then."""
    retry_at: datetime | None = None
    """When all of it fits, if nobody else takes the room; absent: that is not known."""


def explain(given: ExplanationInput) -> Explanation:
    """Say why, and what would help."""
    if given.refusal:
        return Explanation(possible=False, text=given.refusal)
    if given.cores is not None:
        return _explain_cores(given, given.cores)
    if not given.missing:
        return Explanation(possible=True, text=f"there is a host for each of {count_of(given.expected, 'slot')}")
    slots = tuple(map(_of_size, given.missing))
    total = sum(one.count for one in given.missing)
    ends, fitting, at = _when(given)
    return Explanation(
        possible=False,
        text=insufficient_text(given.placed, given.expected),
        helps=(*_ends_help(ends, fitting, total, at), *_hosts_help(slots), *_room_help(slots)),
        slots=slots,
        ends=ends,
        fitting=fitting,
        retry_at=at,
    )


# -- one size of slots ------------------------------------------------------------------------------------------


def _of_size(missing: MissingSlots) -> SlotsExplanation:
    closed = [
        ClosedHost(host=one.host, why=one.why, slots=min(missing.count, _fits(one, missing))) for one in missing.closed
    ]
    useful = sorted((one for one in closed if one.slots), key=lambda one: (-one.slots, one.host))
    return SlotsExplanation(
        flavor=missing.flavor,
        cpu_milli=missing.cpu_milli,
        memory_bytes=missing.memory_bytes,
        count=missing.count,
        hosts=missing.hosts,
        steps=tuple(sorted(missing.steps, key=lambda one: (-one.hosts, one.step))),
        nearest=_nearest(missing),
        closed=tuple(useful),
    )


def _fits(room: Room, missing: MissingSlots) -> int:
    """Slots of this size for which there is room."""
    by_memory = max(0, room.memory_bytes) // max(1, missing.memory_bytes)
    return min(by_memory, max(0, room.cpu_milli) // missing.cpu_milli) if missing.cpu_milli > 0 else by_memory


def _nearest(missing: MissingSlots) -> Nearest | None:
    """The candidate with the smallest share of a slot missing; of two resources the worse one counts."""

    def lack(room: Room) -> tuple[float, str]:
        cpu, memory = _lacking(room, missing)
        return max(cpu / max(1, missing.cpu_milli), memory / max(1, missing.memory_bytes)), room.host

    if not missing.candidates:
        return None
    best = min(missing.candidates, key=lack)
    cpu, memory = _lacking(best, missing)
    return Nearest(host=best.host, cpu_milli=cpu, memory_bytes=memory)


def _lacking(room: Room, missing: MissingSlots) -> tuple[int, int]:
    return (
        max(0, missing.cpu_milli - max(0, room.cpu_milli)),
        max(0, missing.memory_bytes - max(0, room.memory_bytes)),
    )


# -- when commitments end ---------------------------------------------------------------------------------------


class _Host:
    """Room of one host, and what it gets later."""

    def __init__(self, room: Room, endings: Sequence[Ending]) -> None:
        self.cpu, self.memory = max(0, room.cpu_milli), max(0, room.memory_bytes)
        self.later = sorted(endings, key=lambda one: (one.end, one.commitment))
        self.used = 0
        """Endings whose room is in ``cpu`` and ``memory``."""

    def fits_after(self, size: MissingSlots) -> int | None:
        """How many endings it needs before a slot fits; ``None``: it never does."""
        cpu, memory = self.cpu, self.memory
        for count, more in enumerate((None, *self.later[self.used :])):
            if more is not None:
                cpu, memory = cpu + more.cpu_milli, memory + more.memory_bytes
            if cpu >= size.cpu_milli and memory >= size.memory_bytes:
                return self.used + count
        return None

    def take(self, size: MissingSlots, after: int) -> list[Ending]:
        """Put a slot there after so many endings; which of them are new."""
        new = self.later[self.used : after]
        self.cpu += sum(one.cpu_milli for one in new) - size.cpu_milli
        self.memory += sum(one.memory_bytes for one in new) - size.memory_bytes
        self.used = after
        return new


def _when(given: ExplanationInput) -> tuple[tuple[EndingCommitment, ...], int, datetime | None]:
    """Which commitments have to end, how many missing slots fit then, and when all fit.

    Slot by slot the host is taken that has room first, and of these the first by name.
    """
    on: dict[str, list[Ending]] = {}
    for ending in given.endings:
        on.setdefault(ending.host, []).append(ending)
    hosts: dict[str, _Host] = {}
    used: dict[str, Ending] = {}
    fitting, last, whole = 0, given.now, True
    for size in given.missing:
        for room in size.candidates:
            hosts.setdefault(room.host, _Host(room, on.get(room.host, ())))
        queue = [entry for room in size.candidates if (entry := _entry(hosts, room.host, size)) is not None]
        heapq.heapify(queue)
        for _ in range(size.count):
            if not queue:
                whole = False
                break
            at, name, after = heapq.heappop(queue)
            for one in hosts[name].take(size, after):
                used.setdefault(one.commitment, one)
            fitting, last = fitting + 1, max(last, at)
            if (entry := _entry(hosts, name, size)) is not None:
                heapq.heappush(queue, entry)
    ends = sorted(used.values(), key=lambda one: (one.end, one.commitment))
    found = tuple(
        EndingCommitment(commitment=one.commitment, project=one.project, end=as_datetime(ceil(one.end))) for one in ends
    )
    return found, fitting, as_datetime(ceil(last)) if whole and found else None


def _entry(hosts: dict[str, _Host], name: str, size: MissingSlots) -> tuple[float, str, int] | None:
    host = hosts[name]
    after = host.fits_after(size)
    if after is None:
        return None
    return (host.later[after - 1].end if after > host.used else -NEVER, name, after)


# -- sentences --------------------------------------------------------------------------------------------------


def _ends_help(ends: Sequence[EndingCommitment], fitting: int, total: int, at: datetime | None) -> Iterator[str]:
    if not ends:
        return
    names = listing([one.commitment for one in ends], most=NAMED)
    until = shown_time(ends[-1].end)
    if at is not None:
        yield f"it fits from {until} on, when {_commitments(len(ends))} {_end(len(ends))} ({names})"
    else:
        fit = f"{fitting:,} of the {count_of(total, 'missing slot')} fit" + ("s" if fitting == 1 else "")
        yield f"{fit} from {until} on, when {_commitments(len(ends))} {_end(len(ends))} ({names})"


def _commitments(count: int) -> str:
    return count_of(count, "other commitment")


def _end(count: int) -> str:
    return "has ended" if count == 1 else "have ended"


def _hosts_help(slots: Iterable[SlotsExplanation]) -> Iterator[str]:
    for one in slots:
        for closed in one.closed[:NAMED]:
            room = f"room for {closed.slots:,} of the {count_of(one.count, f'slot of {one.flavor}')}"
            yield f"{closed.host} {closed.why}; in service it has {room}"


def _room_help(slots: Iterable[SlotsExplanation]) -> Iterator[str]:
    for one in slots:
        size = shown_size(one.cpu_milli, one.memory_bytes)
        if one.nearest is None:
            yield f"no host would take a slot of {one.flavor} ({size}), however empty: add hosts that do"
        else:
            lack = shown_size(one.nearest.cpu_milli, one.nearest.memory_bytes)
            yield f"{one.nearest.host} is nearest to having room for one of {one.flavor} ({size}): it lacks {lack}"


def shown_size(cpu_milli: int, memory_bytes: int) -> str:
    """``16 GiB and 4 cores``, without what is nothing."""
    cores = f"{cpu_milli / MILLI:g} core{'' if cpu_milli == MILLI else 's'}"
    parts = [shown_bytes(memory_bytes).replace(".0 ", " ")] * bool(memory_bytes) + [cores] * bool(cpu_milli)
    return listing(parts) if parts else "nothing"


# -- cores ------------------------------------------------------------------------------------------------------


def _explain_cores(given: ExplanationInput, cores: MissingCores) -> Explanation:
    """Cores are counted for the whole zone: the commitments that end first make room first."""
    if not cores.message:
        return Explanation(possible=True, text=f"{count_of(given.commitment.cores, 'core')} are there")
    needed = (given.commitment.cores - cores.available) * MILLI
    ends: list[EndingCommitment] = []
    for one in sorted(given.endings, key=lambda one: (one.end, one.commitment)):
        if needed <= 0:
            break
        needed -= one.cpu_milli
        ends.append(EndingCommitment(commitment=one.commitment, project=one.project, end=as_datetime(ceil(one.end))))
    if needed > 0 or not ends:
        more = -(-needed // MILLI)
        return Explanation(possible=False, text=cores.message, helps=(f"add hosts with {count_of(more, 'free core')}",))
    names = listing([one.commitment for one in ends], most=NAMED)
    until = shown_time(ends[-1].end)
    return Explanation(
        possible=False,
        text=cores.message,
        helps=(f"it fits from {until} on, when {_commitments(len(ends))} {_end(len(ends))} ({names})",),
        ends=tuple(ends),
        retry_at=ends[-1].end,
    )
