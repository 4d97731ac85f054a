"""What is asked for a VM beyond its size: groups, preferred hosts, and what happens when its host dies.

The policies that operators know (docs/how-to/policies.md); who may set them says the kind that has them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, get_args

from msgspec import Meta

from outlive.resources.meta import Part

AFFINITY_LIMIT: Final = 16
"""Groups that one VM may be in."""
WEIGHT_LIMIT: Final = 1000
"""The largest weight of a preferred host."""
NOWHERE: Final = ("-",)
"""Hosts of a VM that may run on none: no host can have this name."""

AffinityPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


POLICIES: Final[dict[str, AffinityPolicy]] = {policy: policy for policy in get_args(AffinityPolicy)}
"""Policy, as it is written → the same."""


class AffinityRule(Part, frozen=True, kw_only=True):
    """A group that a VM is in. VMs that name the same group with the same policy are its members."""

    group: str
    """Name of the group that the VM is in."""
    policy: AffinityPolicy
    """Whether members share hosts or avoid each other."""


def with_rule(rules: tuple[AffinityRule, ...], group: str, policy: AffinityPolicy | None) -> tuple[AffinityRule, ...]:
    """The rules with this one instead of those of its group; ``None``: with none of that group."""
    others = tuple(one for one in rules if one.group != group)
    return (*others, AffinityRule(group=group, policy=policy)) if policy is not None else others


def every_rule(
    server_group: str, server_group_policy: str, further: tuple[AffinityRule, ...]
) -> tuple[AffinityRule, ...]:
    """The rule of a server group and the further ones, each once; a group without a known policy is no rule."""
    first = POLICIES.get(server_group_policy) if server_group else None
    if first is None:
        return tuple(dict.fromkeys(further)) if further else ()
    return tuple(dict.fromkeys((AffinityRule(group=server_group, policy=first), *further)))


class PreferredHosts(Part, frozen=True, kw_only=True):
    """Hosts that a VM prefers."""

    weights: dict[str, int] = {}
    """Host → weight, 1 to 1000, the heaviest is the best; others weigh 0."""
    strict: bool = False
    """Whether it may run nowhere else."""


Failback = Literal["", "never", "planned", "auto"]


StorageLost = Literal["report", "restart", "fence"]
"""What is done about a VM whose disks do not serve it any more (docs/how-to/degrading.md#storage)."""


class RecoveryLimits(Part, frozen=True, kw_only=True):
    """How often a VM is tried; absent: as the cluster says, else 1 restart, 3 relocations, 600 s."""

    max_restarts: Annotated[int, Meta(ge=0, le=100)] | None = None
    """How often its host tries again to start it before it goes to its slots."""
    max_relocations: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Hosts that placement tries after all its slots, before it waits; 0: only where it was sent first."""
    reset_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """Seconds of running after which earlier failures are forgotten."""
    max_host_failures: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Hosts that may die within ``startWindowS`` of its start before it waits; 0: no limit."""
    start_window_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """How soon after its start a host must die to count."""
    storage_lost: Literal["", StorageLost] = ""
    """If its disks do not serve it, ``report``: only a fault; ``restart``: it starts elsewhere; ``fence``: the same,
    and a host that cannot end it is fenced."""
    storage_resume: Literal["", "auto", "never"] = ""
    """Whether it resumes after a disk error once its disks serve it again."""


class RecoveryPolicy(RecoveryLimits, frozen=True, kw_only=True):
    """What happens to a VM whose host died or does not start it."""

    mode: Literal["", "restart", "hold", "ignore"] = ""
    """``restart`` or empty: it starts elsewhere. ``hold``: it stays down until a user asks for its start, and keeps its
    slots. ``ignore``: it has no slots and is not recovered."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """The author's reason; shown by ``outlive why`` and in the VM's coverage."""


class Limits(NamedTuple):
    """``RecoveryLimits``, all of them known."""

    max_restarts: int
    max_relocations: int
    reset_s: float
    max_host_failures: int = 2
    start_window_s: float = 600.0
    storage_lost: StorageLost = "report"
    storage_resume: Literal["auto", "never"] = "auto"


DEFAULT_LIMITS: Final = Limits(max_restarts=1, max_relocations=3, reset_s=600.0)


def limits_of(policy: RecoveryLimits, cluster: RecoveryLimits) -> Limits:
    """Each as the VM says, else as the cluster says, else by default."""

    def choose_first(own: float | None, of_cluster: float | None, otherwise: float) -> float:
        return own if own is not None else of_cluster if of_cluster is not None else otherwise

    return Limits(
        max_restarts=int(choose_first(policy.max_restarts, cluster.max_restarts, DEFAULT_LIMITS.max_restarts)),
        max_relocations=int(
            choose_first(policy.max_relocations, cluster.max_relocations, DEFAULT_LIMITS.max_relocations)
        ),
        reset_s=choose_first(policy.reset_s, cluster.reset_s, DEFAULT_LIMITS.reset_s),
        max_host_failures=int(
            choose_first(policy.max_host_failures, cluster.max_host_failures, DEFAULT_LIMITS.max_host_failures)
        ),
        start_window_s=choose_first(policy.start_window_s, cluster.start_window_s, DEFAULT_LIMITS.start_window_s),
        storage_lost=policy.storage_lost or cluster.storage_lost or DEFAULT_LIMITS.storage_lost,
        storage_resume=policy.storage_resume or cluster.storage_resume or DEFAULT_LIMITS.storage_resume,
    )
