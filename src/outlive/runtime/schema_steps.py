"""``schema.step``: what is done next so that the cluster comes to the storage schema that it is to have.

    rest ──► hold ──► move ──► record ──► (daemons restart) ──► release ──► rest
                       └ its process ends ──► finish, by the next leader

The leader observes, decides this, does that one thing and observes again; so it may end after any of them
(docs/how-to/upgrades.md).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from outlive.base import natural_key
from outlive.resources import SCHEMA_HOLD_S
from outlive.runtime.decisions import Decision
from outlive.store.schema import GateInput, GateNode, open_gate

CONTROLLER: Final = "controller"
"""How a controller that is too old itself is named among those that are waited for; no host is called so."""


class SchemaAction(enum.StrEnum):
    """What is done next."""

    REST = "rest"
    """Nothing."""
    WAIT = "wait"
    """Nothing, until others follow."""
    HOLD = "hold"
    """It is written that hosts are not condemned."""
    FINISH = "finish"
    """A change that was begun is gone on with."""
    MOVE = "move"
    """The store goes to the other schema."""
    RECORD = "record"
    """It is written in ``Cluster/default`` by which schema the store is."""
    RELEASE = "release"
    """The hold is taken back."""


class SchemaHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A host with a daemon of ours."""

    active: int = 0
    """The schema by which it works; 0: it does not say, which means 1."""
    latest: int = 0
    """The newest schema that it knows; 0: it does not say, which means 1."""
    is_member: bool = False
    """Whether it holds its membership, so that it may be at work now."""


class SchemaObservation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is seen."""

    now: float
    version: int
    """The schema that counts in the store."""
    moving: bool = False
    """Whether a change of the store was begun and is not finished."""
    target: int = 0
    """Where that change leads in the end."""
    recorded: int = 0
    """The schema that ``Cluster/default`` names."""
    wanted: int | None = None
    """The schema that an operator asks for; absent: the newest that all know."""
    exclude: tuple[str, ...] = ()
    """Hosts that are not waited for, unless they hold their membership."""
    latest: int
    """The newest schema that this controller knows."""
    hosts: dict[str, SchemaHost] = {}
    """By name."""
    hold_to: int = 0
    """The schema of the hold; 0: there is none."""
    hold_since: float = 0.0
    """When the hold began."""


class SchemaStepResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is done next."""

    action: SchemaAction
    to: int = 0
    """The schema that it is about; 0: none."""
    waiting_for: tuple[str, ...] = ()
    """Hosts that have to know that schema first, in natural order."""


def next_schema_step(seen: SchemaObservation) -> SchemaStepResult:
    """Return the one thing that is done next."""
    holds = seen.hold_to != 0 and abs(seen.now - seen.hold_since) < SCHEMA_HOLD_S
    if seen.moving:
        return SchemaStepResult(action=SchemaAction.FINISH, to=seen.target)
    if seen.recorded != seen.version:
        return SchemaStepResult(action=SchemaAction.RECORD, to=seen.version)
    considered = {name: host for name, host in seen.hosts.items() if host.is_member or name not in seen.exclude}
    to, behind = _find_target(seen, considered)
    if to not in (0, seen.version) and not behind:
        action = SchemaAction.MOVE if holds and seen.hold_to == to else SchemaAction.HOLD
        return SchemaStepResult(action=action, to=to)
    at_work = (one for one in seen.hosts.values() if one.is_member)
    if seen.hold_to and (not holds or all((one.active or 1) == seen.version for one in at_work)):
        return SchemaStepResult(action=SchemaAction.RELEASE, to=seen.version)
    if behind:
        return SchemaStepResult(action=SchemaAction.WAIT, to=to, waiting_for=behind)
    return SchemaStepResult(action=SchemaAction.REST)


def _find_target(seen: SchemaObservation, considered: dict[str, SchemaHost]) -> tuple[int, tuple[str, ...]]:
    """Where the cluster is to go, 0 for nowhere, and who does not know that schema yet."""
    if seen.wanted is None:
        nodes = {name: GateNode(active=one.active or 1, latest=one.latest or 1) for name, one in considered.items()}
        gate = open_gate(GateInput(cluster=seen.version, nodes=nodes))
        to = gate.advance_to or max((one.latest for one in nodes.values()), default=0)
        behind = list(gate.waiting_for)
        if gate.advance_to is None and not behind:
            return 0, ()
    else:
        to = seen.wanted
        names = (name for name, one in considered.items() if (one.latest or 1) < to)
        behind = [] if to == seen.version else sorted(names, key=natural_key)
    if seen.latest < to:
        behind.append(CONTROLLER)
    return to, tuple(behind)


SCHEMA_STEP: Final = Decision(
    "schema.step",
    next_schema_step,
    SchemaObservation,
    SchemaStepResult,
    "What is done next so that the cluster comes to the storage schema that it is to have",
    is_empty=lambda result: result.action in (SchemaAction.REST, SchemaAction.WAIT),
    nulls_are_absent=True,
)
