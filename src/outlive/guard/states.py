"""What the guard knows, what can happen to it, and what it can do about that: plain values without behaviour.

``outlive.guard.core`` is the machine over them. Moments are those of ``outlive.guard.clocks``, which every process of
the host reads alike.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from outlive.guard.clocks import START, Instants

FEED_INTERVAL_S: Final = 1.0
"""Between two feeds, at most; a quarter of T or of W where that is less."""
KILL_INTERVAL_S: Final = 0.1
"""Between two attempts to kill and verify."""
LOST_KILL_INTERVAL_S: Final = 1.0
"""Between two attempts once all is given up and the watchdog is awaited."""
CREATE_LIMIT_S: Final = 600.0
"""After this long a create whose end nobody reported counts as ended, while the gate is open."""
CREATES: Final = 256
"""Creates under way at once."""
CLOSURES: Final = 64
"""Closures of the gate that are remembered one by one; the count goes on."""
TIME_LIMIT_S: Final = 3600.0
"""The largest T and W."""
EPOCH_LIMIT: Final = 2**63
RUN_ID_LENGTH: Final = 128


class Phase(enum.StrEnum):
    """What the guard does."""

    UNARMED = "unarmed"
    """Off: the gate is open, the watchdog is not started."""
    WATCHING = "watching"
    """Armed, and the newest acknowledged renewal is younger than T: the gate is open, the watchdog is fed."""
    KILLING = "killing"
    """The gate is shut; nothing is fed until nothing is left."""
    EMPTY = "empty"
    """The gate is shut and nothing is left: the host may live on, so it is fed, after a look each time."""
    LOST = "lost"
    """Not emptied in time: nothing is ever fed again, the watchdog resets the host."""


LEGAL: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.UNARMED: frozenset({Phase.WATCHING}),
    Phase.WATCHING: frozenset({Phase.UNARMED, Phase.KILLING}),
    Phase.KILLING: frozenset({Phase.EMPTY, Phase.LOST}),
    Phase.EMPTY: frozenset({Phase.WATCHING, Phase.KILLING}),
    Phase.LOST: frozenset(),
}
"""Which phase may follow which."""


class ServiceState(enum.StrEnum):
    """How far the stop of the hypervisor service is, since the gate was shut."""

    UNTOUCHED = "untouched"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class GuardAction(enum.StrEnum):
    """What the process around the machine carries out, in the order given."""

    OPEN_GATE = "open-gate"
    CLOSE_GATE = "close-gate"
    STOP_SERVICE = "stop-service"
    START_SERVICE = "start-service"
    KILL = "kill"
    """Kill everything in the VM cgroups, then count what is left, and say so with ``Looked``."""
    LOOK = "look"
    """Only count, and say so with ``Looked``."""
    FEED = "feed"
    RELEASE = "release"
    """Stop the watchdog cleanly and close it."""
    WARN_LATE = "warn-late"
    VERIFIED = "verified"
    RELAPSED = "relapsed"
    GIVE_UP = "give-up"
    FORGET_CREATE = "forget-create"


class Closure(NamedTuple):
    """One time that the gate was shut."""

    at: Instants
    epoch: int
    verified: bool


class Create(NamedTuple):
    """A domain that somebody is about to start."""

    run_id: str
    begun: Instants


class GuardState(NamedTuple):
    """All that the guard knows; what the process keeps besides are file descriptors."""

    phase: Phase = Phase.UNARMED
    timeout_s: float = 0.0
    """T."""
    watchdog_s: float = 0.0
    """W."""
    beat: Instants | None = None
    """B: when the newest acknowledged renewal was sent."""
    epoch: int = 0
    warned: bool = False
    """Whether the present beat was called late."""
    shut: Instants = START
    """Since when the guard tries to empty the host."""
    acted: Instants = START
    """When it last fed, looked or killed."""
    service: ServiceState = ServiceState.UNTOUCHED
    creates: tuple[Create, ...] = ()
    closures: tuple[Closure, ...] = ()
    closed: int = 0
    """How often the gate was shut."""
    closed_epochs: tuple[int, ...] = ()
    """In which epochs that was, the newest last."""

    @property
    def armed(self) -> bool:
        """Whether the guard enforces anything."""
        return self.phase is not Phase.UNARMED

    @property
    def gate_open(self) -> bool:
        """Whether domains may be started."""
        return self.phase in (Phase.UNARMED, Phase.WATCHING)


class Tick(NamedTuple):
    """Time passed."""


class Beat(NamedTuple):
    """A renewal was acknowledged that was sent at ``sent``."""

    sent: Instants
    epoch: int


class Arm(NamedTuple):
    """Enforce from now on, with these two times."""

    timeout_s: float
    watchdog_s: float


class Disarm(NamedTuple):
    """Enforce nothing any more."""


class CreateBegin(NamedTuple):
    """Somebody asks to start a domain."""

    run_id: str


class CreateEnd(NamedTuple):
    """That start is over, well or badly."""

    run_id: str


class Looked(NamedTuple):
    """So many processes are left in the VM cgroups; what could not be read counts as one."""

    left: int


class ServiceStopped(NamedTuple):
    """The command that stops the hypervisor service ended."""

    well: bool


Event = Tick | Beat | Arm | Disarm | CreateBegin | CreateEnd | Looked | ServiceStopped


class GuardRefusal(NamedTuple):
    """Why a request was not granted: a stable word, and a sentence with the remedy."""

    code: str
    message: str


class Transition(NamedTuple):
    """What follows from an event."""

    state: GuardState
    actions: tuple[GuardAction, ...] = ()
    refusal: GuardRefusal | None = None


# exit codes, as in docs/reference/exit-codes.md: the guard imports nothing else of Outlive
YES: Final = 0
USAGE: Final = 2
BAD_INPUT: Final = 3
NOT_FOUND: Final = 4
IN_USE: Final = 5
UNAVAILABLE: Final = 6
FORBIDDEN: Final = 7
INTERRUPTED: Final = 130


class GuardError(Exception):
    """Something outside is not as the guard needs it; the message says what to do."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
