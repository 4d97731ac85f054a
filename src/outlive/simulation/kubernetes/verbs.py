"""What can happen to a storage world, each by the word that a timeline has for it.

A verb that has ``for`` ends by itself after so long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from outlive.base import BadInput
from outlive.resources.foreign import KubernetesNode, KubernetesPod
from outlive.runtime import Duration
from outlive.simulation.kubernetes.documents import NO_EXECUTE, OUT_OF_SERVICE, make_taint, taints_of
from outlive.simulation.spec import Jump, Seconds
from outlive.simulation.verbs.table import Name, Names, Share, Verb, call_after, register_verb
from outlive.store import FaultRates

if TYPE_CHECKING:
    from outlive.simulation.kubernetes.world import StorageNode, StorageWorld

STORAGE_VERBS: Final[dict[str, Verb]] = {}
"""All verbs of storage worlds by their words."""
Pair = Annotated[tuple[Name, ...], Meta(min_length=2, max_length=2)]


@register_verb("power-off", "{who} lose{s} power", STORAGE_VERBS)
def _power_off(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    for node in chosen:
        world.power_off(node)
    call_after(for_, lambda: _power_on(world, tuple(node.name for node in chosen)))


@register_verb("power-on", "{who} get{s} power again", STORAGE_VERBS)
def _power_on(world: StorageWorld, nodes: Names | None = None, domain: Name | None = None) -> None:
    for node in world.find_nodes(nodes, domain):
        world.power_on(node)


@register_verb("crash", "{who} reboot{s}", STORAGE_VERBS)
def _crash(world: StorageWorld, nodes: Names | None = None, domain: Name | None = None) -> None:
    for node in world.find_nodes(nodes, domain):
        world.power_off(node)
        world.power_on(node)


@register_verb("cut-links", "DRBD links of {who} are cut{for}", STORAGE_VERBS)
def _cut_links(
    world: StorageWorld,
    between: tuple[Pair, ...] = (),
    nodes: Names | None = None,
    domain: Name | None = None,
    one_way: bool = False,
    for_: Duration | None = None,
) -> None:
    """The links ``between`` pairs, or all from ``nodes`` or a ``domain`` to the others."""
    _cut_pairs(world, list(_find_links(world, between, nodes, domain)), for_, one_way=one_way)


def _cut_pairs(
    world: StorageWorld, pairs: list[tuple[str, str]], for_: Duration | None, *, one_way: bool = False
) -> None:
    for a, b in pairs:
        world.cut_link(a, b, one_way=one_way)
    call_after(for_, lambda: _heal_pairs(world, pairs))


def _heal_pairs(world: StorageWorld, pairs: Iterable[tuple[str, str]]) -> None:
    for a, b in pairs:
        world.heal_link(a, b)


@register_verb("heal-links", "DRBD links of {who} work again", STORAGE_VERBS)
def _heal_links(
    world: StorageWorld, between: tuple[Pair, ...] = (), nodes: Names | None = None, domain: Name | None = None
) -> None:
    _heal_pairs(world, _find_links(world, between, nodes, domain))


def _find_links(
    world: StorageWorld, between: Iterable[tuple[str, ...]], nodes: Names | None, domain: str | None
) -> Iterable[tuple[str, str]]:
    for a, b in between:
        world.find_nodes((a, b))
        yield a, b
    inside = [node.name for node in world.find_nodes(nodes, domain)]
    if not inside and not between:
        raise BadInput("names no link", remedy="write between: [[node-1, node-2]], nodes, or domain")
    yield from itertools.product(inside, (name for name in world.nodes if name not in inside))


@register_verb("cut-api", "{who} cannot reach the API server{for}", STORAGE_VERBS)
def _cut_api(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    _set_api(world, chosen, cut=True)
    call_after(for_, lambda: _set_api(world, chosen, cut=False))


@register_verb("heal-api", "the API server is reached again by {who}", STORAGE_VERBS)
def _heal_api(world: StorageWorld, nodes: Names | None = None, domain: Name | None = None) -> None:
    _set_api(world, world.find_nodes(nodes, domain), cut=False)


def _set_api(world: StorageWorld, nodes: Iterable[StorageNode], *, cut: bool) -> None:
    for node in nodes:
        node.api_cut = cut
    world.reach_api()


@register_verb("cut-off", "{who} lose{s} all networks{for}", STORAGE_VERBS)
def _cut_off(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    """Each of them from everybody, the others that are named as well."""
    chosen = [node.name for node in world.find_nodes(nodes, domain)]
    _cut_pairs(world, [(a, b) for a in chosen for b in world.nodes if a != b], for_)
    _cut_api(world, nodes=nodes, domain=domain, for_=for_)


@register_verb("api-away", "the API server is away{for}", STORAGE_VERBS)
def _stop_api(world: StorageWorld, for_: Duration | None = None) -> None:
    _set_api_away(world, away=True)
    call_after(for_, lambda: _set_api_away(world, away=False))


@register_verb("api-back", "the API server is back", STORAGE_VERBS)
def _restore_api(world: StorageWorld) -> None:
    _set_api_away(world, away=False)


def _set_api_away(world: StorageWorld, *, away: bool) -> None:
    world.api_away = away
    world.reach_api()


@register_verb("disturb-api", "calls to the API server go wrong{for}: {details}", STORAGE_VERBS)
def _disturb_api(
    world: StorageWorld,
    refuse: Share = 0.0,
    lose_applied: Share = 0.0,
    lose_dropped: Share = 0.0,
    drop: Share = 0.0,
    latency_s: Seconds = 0.005,
    for_: Duration | None = None,
) -> None:
    """Refused, done without an answer, lost on the way; streams that are dropped; one way takes ``latencyS``."""
    before = world.api_latency_s
    world.api_rates = FaultRates(refuse=refuse, lose_applied=lose_applied, lose_dropped=lose_dropped, drop=drop)
    world.api_latency_s = latency_s
    world.reach_api()

    def end() -> None:
        world.api_rates, world.api_latency_s = FaultRates(), before
        world.reach_api()

    call_after(for_, end)


@register_verb("kill-agent", "the agent of {who} is killed{for}", STORAGE_VERBS)
def _kill_agent(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    for node in chosen:
        world.stop_agent(node)
    call_after(for_, lambda: _start_agent(world, tuple(node.name for node in chosen)))


@register_verb("start-agent", "the agent of {who} is started", STORAGE_VERBS)
def _start_agent(world: StorageWorld, nodes: Names | None = None, domain: Name | None = None) -> None:
    for node in world.find_nodes(nodes, domain):
        world.start_agent(node)


@register_verb("hang-drbdsetup", "drbdsetup hangs on {who}{for}", STORAGE_VERBS)
def _hang_drbdsetup(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    _set_drbdsetup(chosen, hangs=True)
    call_after(for_, lambda: _set_drbdsetup(chosen))


def _set_drbdsetup(nodes: Iterable[StorageNode], *, hangs: bool = False, garbled: str | None = None) -> None:
    for node in nodes:
        node.set_drbdsetup(hangs=hangs, garbled=garbled)


@register_verb("garble-drbdsetup", "drbdsetup prints nonsense on {who}{for}", STORAGE_VERBS)
def _garble_drbdsetup(
    world: StorageWorld,
    nodes: Names | None = None,
    domain: Name | None = None,
    output: str = '[{"name": 7',
    for_: Duration | None = None,
) -> None:
    chosen = world.find_nodes(nodes, domain)
    _set_drbdsetup(chosen, garbled=output)
    call_after(for_, lambda: _set_drbdsetup(chosen))


@register_verb("jump-clock", "the clock of {who} jumps: {details}", STORAGE_VERBS)
def _jump_clock(world: StorageWorld, by: Jump, nodes: Names | None = None, domain: Name | None = None) -> None:
    for node in world.find_nodes(nodes, domain):
        node.clock.jump(by)


@register_verb("delete-pod", "somebody deletes pods: {details}", STORAGE_VERBS)
def _delete_pod(world: StorageWorld, pods: Names) -> None:
    for name in pods:
        world.server.remove(KubernetesPod, f"default/{name}")


@register_verb("cordon", "somebody cordons {who}{for}", STORAGE_VERBS)
def _cordon(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    _edit_nodes(world, chosen, lambda node: node["spec"].update(unschedulable=True))
    call_after(for_, lambda: _edit_nodes(world, chosen, lambda node: node["spec"].pop("unschedulable", None)))


@register_verb("out-of-service", "somebody gives {who} the out-of-service taint{for}", STORAGE_VERBS)
def _mark_out_of_service(
    world: StorageWorld, nodes: Names | None = None, domain: Name | None = None, for_: Duration | None = None
) -> None:
    chosen = world.find_nodes(nodes, domain)
    mark = make_taint(OUT_OF_SERVICE, NO_EXECUTE, world.server.format_now())
    _edit_nodes(world, chosen, lambda node: node["spec"].update(taints=[*taints_of(node), mark]))
    call_after(
        for_,
        lambda: _edit_nodes(
            world,
            chosen,
            lambda node: node["spec"].update(taints=[one for one in taints_of(node) if one["key"] != OUT_OF_SERVICE]),
        ),
    )


def _edit_nodes(world: StorageWorld, nodes: Iterable[StorageNode], change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    for node in nodes:
        world.server.edit(KubernetesNode, node.name, change)


@register_verb("heal", "everything is healed", STORAGE_VERBS)
def _heal(world: StorageWorld) -> None:
    world.heal()
