"""What becomes of the virtual machines of a fenced host that have no slot: where each restarts, or why it does not.

The path for virtual machines with slots is recovery proper; this one is for those without, and for configurations
that were imported. It drops nobody's holders and proves nothing: who calls it has the proof
(docs/design/node-decisions.md#fencerecover).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.node.vm import RUN, Books, Choosing, Needing, NodeFigures, home_after
from outlive.runtime import Amount, Decision

MOVING: Final = frozenset({"migrate", "migrate-live"})
"""States of a virtual machine on its way."""
RESTARTED: Final = frozenset({"start", "restart"}) | MOVING
"""States in which a virtual machine should run."""


class RecoverReason(enum.StrEnum):
    """Why virtual machines are, or are not, restarted elsewhere."""

    FENCED_MIGRATE = "fenced_migrate"
    FENCED_NO_ACTION = "fenced_no_action"
    UNFENCED_NO_ACTION = "unfenced_no_action"
    UNFENCED_NO_SELF_FENCE = "unfenced_no_self_fence"
    UNFENCED_PROOF_PENDING = "unfenced_proof_pending"
    SELF_FENCE_PROVEN = "self_fence_proven"


RECOVERING: Final = frozenset({RecoverReason.FENCED_MIGRATE, RecoverReason.SELF_FENCE_PROVEN})
"""The reasons for which they are."""

Action = Literal["migrate", "none"]


class RecoverConfig(Choosing, frozen=True, kw_only=True):
    """What the operator wants done."""

    successful_fence: Action = "migrate"
    failed_fence: Action = "none"
    self_fence_intervals: Amount = 0


class LostVm(Needing, frozen=True, kw_only=True):
    """A virtual machine that may have been on the host. Memory in MiB."""

    uuid: str
    state: str
    node: str | None
    last_node: str | None = ""
    running_on: str | None = None
    volumes: tuple[str, ...] = ()
    lock_release: Literal["ok", "fail"] = "ok"


class RecoverInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host after an attempt to fence it, and who was on it."""

    node: str
    fence_ok: bool
    vms: tuple[LostVm, ...]
    nodes: tuple[NodeFigures, ...]
    config: RecoverConfig = RecoverConfig()
    self_fence_proof: bool = False
    coordinator: bool = False
    primary: str | None = None


class WrittenFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a virtual machine that are written; the others stay."""

    state: str
    node: str | UnsetType = UNSET
    last_node: str | UnsetType = UNSET
    failed_reason: str | UnsetType = UNSET
    autostart: bool | UnsetType = UNSET


class RecoverResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is written of the host, of the role of primary, and of every virtual machine; null: nothing."""

    recover: bool
    reason: RecoverReason
    daemon_state: Literal["fenced", "dead"]
    router_state: Literal["secondary"] | None
    primary_key: Literal["none"] | None
    domain_state: Literal["flushed"] | None
    vms: dict[str, WrittenFields]
    skipped: dict[str, str]


def recover(given: RecoverInput) -> RecoverResult:
    """Settle host and role, and place the virtual machines one after the other, each booked before the next."""
    reason = recover_reason(given)
    deposed = given.coordinator and (given.fence_ok or reason is RecoverReason.SELF_FENCE_PROVEN)
    writes: dict[str, WrittenFields] = {}
    skipped: dict[str, str] = {}
    dead, books = given.node, Books(given.nodes, given.config)
    working = {node.name for node in given.nodes if node.daemon_state == RUN and node.name != dead}
    for vm in given.vms if reason in RECOVERING else ():
        if vm.node == dead and vm.state in MOVING and vm.running_on not in (None, dead):
            skipped[vm.uuid] = "source_keeps"  # on its way to the dead host, but running elsewhere: nothing is lost
        elif _is_affected(vm, dead):
            written = _settle(vm, dead, working, books)
            if written is None:
                continue
            writes[vm.uuid] = written
            if isinstance(written.failed_reason, str):
                skipped[vm.uuid] = written.failed_reason
    return RecoverResult(
        recover=reason in RECOVERING,
        reason=reason,
        daemon_state="fenced" if given.fence_ok else "dead",
        router_state="secondary" if deposed else None,
        primary_key="none" if deposed and given.primary == given.node else None,
        domain_state="flushed" if reason in RECOVERING else None,
        vms=writes,
        skipped=skipped,
    )


def recover_reason(given: RecoverInput) -> RecoverReason:
    """Whether what the operator wants and the proof at hand allow virtual machines to restart elsewhere."""
    config = given.config
    if given.fence_ok:
        migrate = config.successful_fence == "migrate"
        return RecoverReason.FENCED_MIGRATE if migrate else RecoverReason.FENCED_NO_ACTION
    if config.failed_fence != "migrate":
        return RecoverReason.UNFENCED_NO_ACTION
    if config.self_fence_intervals == 0:
        return RecoverReason.UNFENCED_NO_SELF_FENCE
    if not given.self_fence_proof:
        return RecoverReason.UNFENCED_PROOF_PENDING
    return RecoverReason.SELF_FENCE_PROVEN


def _is_affected(vm: LostVm, dead: str) -> bool:
    if vm.running_on is not None:
        return vm.running_on == dead
    return vm.node == dead and vm.state in RESTARTED


def _settle(vm: LostVm, dead: str, working: set[str], books: Books) -> WrittenFields | None:
    if vm.state == "shutdown":
        return WrittenFields(state="stop")
    if vm.state in MOVING and vm.node in working:
        return WrittenFields(state="start")
    if vm.state not in RESTARTED:
        return None
    if vm.volumes and vm.lock_release == "fail":
        return WrittenFields(state="fail", failed_reason="lock_release_failed")
    target = books.place(vm, dead)
    if target is None:
        return WrittenFields(state="stop", autostart=True)
    return WrittenFields(state="start", node=target, last_node=home_after(vm.last_node, target=target, source=dead))


FENCE_RECOVER: Final = Decision(
    "fence.recover", recover, RecoverInput, RecoverResult, "Where virtual machines without a slot restart"
)
