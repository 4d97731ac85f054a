"""Why a commitment has no capacity, and what would help, over plain data.

For every missing slot: what each step of placement made of the hosts, which host is nearest and what it lacks, which
commitments end in time, and which hosts out of service would do (docs/design/commitment-rules.md#explanation). What
would help is found slot by slot, so that no room is counted twice. Gathering is ``commitments.trial``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import Final

import msgspec

from outlive.base import as_datetime, count_of, join_parts, shown_bytes, shown_time
from outlive.commitments.acceptance import insufficient_text
from outlive.commitments.state import Commitment
from outlive.placement import MILLI

NAMED: Final = 5
"""Hosts and commitments that a sentence names."""
NEVER: Final = float("inf")


class _ExplanationPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Keys are camelCase."""


class StepCount(_ExplanationPart, frozen=True, kw_only=True):
    """How many hosts a step of placement refused."""

    step: str
    hosts: int


class HostRoom(_ExplanationPart, frozen=True, kw_only=True):
    """What a host has that nobody uses or holds."""

    host: str
    cpu_milli: int
    memory_bytes: int


class ClosedRoom(HostRoom, frozen=True, kw_only=True):
    """The same of a host that would be a candidate if it were in service."""

    why: str
    """What keeps it out of service, to follow its name."""


class MissingSlots(_ExplanationPart, frozen=True, kw_only=True):
    """Slots of one size for which no host was found."""

    flavor: str
    cpu_milli: int
    memory_bytes: int
    count: int
    hosts: int
    """Hosts that placement knows."""
    steps: tuple[StepCount, ...] = ()
    """What each step refused."""
    candidates: tuple[HostRoom, ...] = ()
    """Hosts that would take such a slot if they were empty."""
    closed: tuple[ClosedRoom, ...] = ()


class Ending(_ExplanationPart, frozen=True, kw_only=True):
    """A slot of another commitment that goes when that one ends, with what it holds beside its VMs."""

    commitment: str
    project: str
    host: str
    cpu_milli: int
    memory_bytes: int
    end: float
    """Seconds since 1970."""


class MissingCores(_ExplanationPart, frozen=True, kw_only=True):
    """A commitment of cores; it has no slots."""

    available: int
    message: str


class ExplanationInput(_ExplanationPart, frozen=True, kw_only=True):
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


class Nearest(_ExplanationPart, frozen=True, kw_only=True):
    """The host that lacks least, and what."""

    host: str
    cpu_milli: int
    memory_bytes: int


class ClosedHost(_ExplanationPart, frozen=True, kw_only=True):
    """A host that would take some of the slots if it were in service."""

    host: str
    why: str
    slots: int


class SlotsExplanation(_ExplanationPart, frozen=True, kw_only=True):
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


class EndingCommitment(_ExplanationPart, frozen=True, kw_only=True):
    """A commitment whose end makes room."""

    commitment: str
    project: str
    end: datetime


class CommitmentExplanation(_ExplanationPart, frozen=True, kw_only=True):
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


def explain(given: ExplanationInput) -> CommitmentExplanation:
    """Say why, and what would help."""
    if given.refusal:
        return CommitmentExplanation(possible=False, text=given.refusal)
    if given.cores is not None:
        return _explain_cores(given, given.cores)
    if not given.missing:
        return CommitmentExplanation(
            possible=True, text=f"there is a host for each of {count_of(given.expected, 'slot')}"
        )
    slots = tuple(map(_explain_size, given.missing))
    total = sum(one.count for one in given.missing)
    ends, fitting, at = _find_ends(given)
    helps: list[str] = []
    if ends:
        fit = f"{fitting:,} of the {count_of(total, 'missing slot')} fit" + ("s" if fitting == 1 else "")
        helps.append(_ends_help("it fits" if at is not None else fit, ends))
    for one in slots:
        for closed in one.closed[:NAMED]:
            room = f"room for {closed.slots:,} of the {count_of(one.count, f'slot of {one.flavor}')}"
            helps.append(f"{closed.host} {closed.why}; in service it has {room}")
    for one in slots:
        what = f"{one.flavor} ({shown_size(one.cpu_milli, one.memory_bytes)})"
        if one.nearest is None:
            helps.append(f"no host would take a slot of {what}, however empty: add hosts that do")
        else:
            lack = shown_size(one.nearest.cpu_milli, one.nearest.memory_bytes)
            helps.append(f"{one.nearest.host} is nearest to having room for one of {what}: it lacks {lack}")
    return CommitmentExplanation(
        possible=False,
        text=insufficient_text(given.placed, given.expected),
        helps=tuple(helps),
        slots=slots,
        ends=ends,
        fitting=fitting,
        retry_at=at,
    )


# -- one size of slots ------------------------------------------------------------------------------------------


def _explain_size(missing: MissingSlots) -> SlotsExplanation:
    closed = [
        ClosedHost(host=one.host, why=one.why, slots=min(missing.count, _count_fits(one, missing)))
        for one in missing.closed
    ]
    useful = sorted((one for one in closed if one.slots), key=lambda one: (-one.slots, one.host))
    lacking = [
        Nearest(
            host=one.host,
            cpu_milli=max(0, missing.cpu_milli - max(0, one.cpu_milli)),
            memory_bytes=max(0, missing.memory_bytes - max(0, one.memory_bytes)),
        )
        for one in missing.candidates
    ]
    # the smallest share of a slot; of two resources the worse one counts
    cpu, memory = max(1, missing.cpu_milli), max(1, missing.memory_bytes)
    nearest = min(
        lacking, key=lambda one: (max(one.cpu_milli / cpu, one.memory_bytes / memory), one.host), default=None
    )
    return SlotsExplanation(
        flavor=missing.flavor,
        cpu_milli=missing.cpu_milli,
        memory_bytes=missing.memory_bytes,
        count=missing.count,
        hosts=missing.hosts,
        steps=tuple(sorted(missing.steps, key=lambda one: (-one.hosts, one.step))),
        nearest=nearest,
        closed=tuple(useful),
    )


def _count_fits(room: HostRoom, missing: MissingSlots) -> int:
    """Slots of this size for which there is room."""
    by_memory = max(0, room.memory_bytes) // max(1, missing.memory_bytes)
    return min(by_memory, max(0, room.cpu_milli) // missing.cpu_milli) if missing.cpu_milli > 0 else by_memory


# -- when commitments end ---------------------------------------------------------------------------------------


class _CandidateHost:
    """Room of one host, and what it gets later."""

    def __init__(self, room: HostRoom, endings: Sequence[Ending]) -> None:
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


def _find_ends(given: ExplanationInput) -> tuple[tuple[EndingCommitment, ...], int, datetime | None]:
    """Which commitments have to end, how many missing slots fit then, and when all fit.

    Slot by slot the host is taken that has room first, and of these the first by name.
    """
    on: dict[str, list[Ending]] = {}
    for ending in given.endings:
        on.setdefault(ending.host, []).append(ending)
    hosts: dict[str, _CandidateHost] = {}
    used: dict[str, Ending] = {}
    fitting, last, whole = 0, given.now, True
    for size in given.missing:
        for room in size.candidates:
            hosts.setdefault(room.host, _CandidateHost(room, on.get(room.host, ())))
        queue = [entry for room in size.candidates if (entry := _queue_entry(hosts, room.host, size)) is not None]
        heapq.heapify(queue)
        for _ in range(size.count):
            if not queue:
                whole = False
                break
            at, name, after = heapq.heappop(queue)
            for one in hosts[name].take(size, after):
                used.setdefault(one.commitment, one)
            fitting, last = fitting + 1, max(last, at)
            if (entry := _queue_entry(hosts, name, size)) is not None:
                heapq.heappush(queue, entry)
    ends = sorted(used.values(), key=lambda one: (one.end, one.commitment))
    found = tuple(
        EndingCommitment(commitment=one.commitment, project=one.project, end=as_datetime(ceil(one.end))) for one in ends
    )
    return found, fitting, as_datetime(ceil(last)) if whole and found else None


def _queue_entry(hosts: dict[str, _CandidateHost], name: str, size: MissingSlots) -> tuple[float, str, int] | None:
    host = hosts[name]
    after = host.fits_after(size)
    if after is None:
        return None
    return (host.later[after - 1].end if after > host.used else -NEVER, name, after)


# -- sentences --------------------------------------------------------------------------------------------------


def _ends_help(what: str, ends: Sequence[EndingCommitment]) -> str:
    """When ``what`` comes true, and which commitments have ended then."""
    names = join_parts([one.commitment for one in ends], most=NAMED)
    verb = "has ended" if len(ends) == 1 else "have ended"
    return f"{what} from {shown_time(ends[-1].end)} on, when {count_of(len(ends), 'other commitment')} {verb} ({names})"


def shown_size(cpu_milli: int, memory_bytes: int) -> str:
    """``16 GiB and 4 cores``, without what is nothing."""
    cores = f"{cpu_milli / MILLI:g} core{'' if cpu_milli == MILLI else 's'}"
    parts = [shown_bytes(memory_bytes).replace(".0 ", " ")] * bool(memory_bytes) + [cores] * bool(cpu_milli)
    return join_parts(parts) if parts else "nothing"


# -- cores ------------------------------------------------------------------------------------------------------


def _explain_cores(given: ExplanationInput, cores: MissingCores) -> CommitmentExplanation:
    """Cores are counted for the whole zone: the commitments that end first make room first."""
    if not cores.message:
        return CommitmentExplanation(possible=True, text=f"{count_of(given.commitment.cores, 'core')} are there")
    needed = (given.commitment.cores - cores.available) * MILLI
    ends: list[EndingCommitment] = []
    for one in sorted(given.endings, key=lambda one: (one.end, one.commitment)):
        if needed <= 0:
            break
        needed -= one.cpu_milli
        ends.append(EndingCommitment(commitment=one.commitment, project=one.project, end=as_datetime(ceil(one.end))))
    if needed > 0 or not ends:
        more = -(-needed // MILLI)
        return CommitmentExplanation(
            possible=False, text=cores.message, helps=(f"add hosts with {count_of(more, 'free core')}",)
        )
    return CommitmentExplanation(
        possible=False,
        text=cores.message,
        helps=(_ends_help("it fits", ends),),
        ends=tuple(ends),
        retry_at=ends[-1].end,
    )
