"""What is being checked: the product's steps, perhaps without one precondition, and the rules that live in shells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from outlive.node.fencing import attestation, proofs, states
from outlive.node.membership import holders
from outlive.node.membership import steps as memberships
from outlive.recovery import states as recovering
from outlive.runtime import ProtocolStep

_MODULES = (memberships, holders, states, proofs, attestation, recovering)
_OUTSIDE = ("safety.trust-again", "fence.switch-on", "fence.switched-on")
"""Steps on which no proof and no start rests."""
STEPS: dict[str, ProtocolStep[Any, Any]] = {
    step.name: step
    for module in _MODULES
    for step in vars(module).values()
    if isinstance(step, ProtocolStep) and step.name not in _OUTSIDE
}
"""All steps of the protocol, by name."""

SHELL_RULES: dict[str, str] = {
    "cas-on-the-version-seen": "a write is a compare-and-swap on exactly the version that was looked at",
    "beat-counts-from-sending": "the guard gets the time at which a renewal was sent, not at which it was answered",
    "entry-before-create": "a domain is created only after the store acknowledged its entry",
    "create-announced-to-the-guard": "the guard knows of every create under way, and asks for the gate again",
    "creates-count-as-domains": "a create under way counts as a domain wherever absence is judged",
    "creates-of-earlier-daemons-count": "so does one that an earlier daemon of the host asked for, before it died",
    "guard-counts-the-larger": "of the times that passed by its two clocks the guard counts the larger",
    "fencer-counts-the-smaller": "of the times that passed by its two clocks a fencer counts the smaller",
    "wait-for-a-dying-guard": "a fencer waits for W twice: a guard that dies feeds the watchdog once more",
    "wait-for-crystals": "a fencer waits longer by twice the error of a crystal",
    "wait-for-a-reset": "a fencer waits for the time that a reset takes",
    "own-first-sight-after-take-over": "who takes a fence over counts from its own first sight of it",
    "sight-of-exactly-that-version": "a fencer counts from when it first saw the very version that it condemns",
    "remember-before-use": "an epoch is on the host's own disk before it is used",
    "ports-count-in-a-cut": "a cut counts only if the VM's ports are shut out as well as its disks",
    "isolation-announced-before-it-is-ordered": "the Membership says that an order to isolate the host follows",
    "lift-names-its-epoch": "an order to lift a cut is about one epoch and touches no later cut",
    "run-ids-are-new": "every attempt to run a VM has an id of its own",
    "destroy-verified-before-rejoin": "all domains are seen to be gone before the write by which a dead host returns",
    "no-hold-after-leave": "a daemon that has sent Released starts nothing any more, whatever became of that write",
    "unknown-run-reported-before-registered": "a host says that its VMs are registered in a restored store only once "
    "that has its report of those that it does not know",
    "fresh-read-before-send": "the source of a move reads the VM afresh before it starts the transfer",
}
"""What daemon, fencer and recovery do around the steps, each by name."""


@dataclass(frozen=True)
class Rules:
    """Steps as they are used, and shell rules that are left out."""

    steps: dict[str, ProtocolStep[Any, Any]] = field(default_factory=lambda: dict(STEPS))
    left_out: frozenset[str] = frozenset()
    removed: str = ""

    def keeps(self, rule: str) -> bool:
        assert rule in SHELL_RULES, rule
        return rule not in self.left_out

    def attempt(self, name: str, view: Any) -> Any:
        return self.steps[name].attempt(view)

    def join(self, view: memberships.JoinView) -> memberships.JoinOutcome:
        """As ``memberships.join``, over these rows; equal to it wherever nothing is left out."""
        refusals = []
        for row in ("j0", "j1", "j2", "j3", "j4"):
            outcome = self.steps[f"safety.join.{row}"].attempt(view)
            if outcome.refused is None:
                return outcome
            if outcome.refused.precondition == "nothing-runs" and row in ("j1", "j4"):
                return msgspec.structs.replace(outcome, destroy_first=True)
            refusals.append(outcome.refused)
        if not self.removed:
            return memberships.join(view)
        return memberships.JoinOutcome(refused=refusals[-1])


def without(target: str) -> Rules:
    """The rules without ``step/precondition`` or without ``shell/rule``."""
    step, name = target.split("/")
    if step == "shell":
        assert name in SHELL_RULES, name
        return Rules(left_out=frozenset({name}), removed=target)
    steps = dict(STEPS)
    steps[step] = steps[step].drop_precondition(name)
    return Rules(steps=steps, removed=target)


def targets() -> tuple[str, ...]:
    """Everything that can be left out."""
    of_steps = (f"{step.name}/{each.name}" for step in STEPS.values() for each in step.preconditions)
    return (*of_steps, *(f"shell/{name}" for name in SHELL_RULES))
