"""Seeds of storage: random clusters under random faults, judged all along, healed, and judged at rest.

A run settles, has faults for ten virtual minutes, and is healed then. Every pod must write again within a quarter of
an hour after that, with no taint and no attachment left behind.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec

from outlive.base import Random, gather_defects, silence_logging
from outlive.runtime import run_virtual
from outlive.simulation import HistoryEvent, collect_rarely
from outlive.simulation.kubernetes import NodeSpecification, StorageSpec, WorkloadSpec, nodes_of, storage_world
from tests.swarm.seeds import TRACE_LINES, Result

SETTLES_S: Final = 60.0
"""Before the first fault."""
FAULTS_UNTIL_S: Final = 660.0
"""After the last fault."""
BUDGET_S: Final = 900.0
"""After everything is healed, for every pod to write again."""
REST_S: Final = 30.0
"""So long it must stay so."""
LIMIT_S: Final = 7200.0
"""Virtual seconds of one run at most."""
LASTS_S: Final = (5.0, 20.0, 60.0, 150.0, 400.0)
"""Of a fault, up to so long."""
NONSENSE: Final = ("", "null", "[", '[{"name": 7}]', "[NaN]", '[{"name": "pvc-data-w1-0", "devices": [{"quorum": 1}]}]')
"""What a ``drbdsetup`` that is out of order prints."""


class StorageFault(msgspec.Struct, frozen=True, kw_only=True):
    """One verb at one time."""

    at_s: float
    verb: str
    arguments: dict[str, Any] = {}


def storage_replay_of(seed: int) -> str:
    """The command that runs a seed again."""
    return f"scripts/storage-swarm {seed} {seed} --story"


def storage_spec_of(seed: int) -> StorageSpec:
    """The cluster of a seed."""
    random = Random(seed).fork("world")
    count = random.randint(3, 6)
    racks = random.choice((0, 2, 3))
    nodes = tuple(
        NodeSpecification(
            name=f"node-{number}",
            domain=f"rack-{(number - 1) % racks + 1}" if racks else "",
            boot_s=random.uniform(10.0, 60.0),
        )
        for number in range(1, count + 1)
    )
    names = [node.name for node in nodes]
    return StorageSpec(
        nodes=nodes,
        workloads=tuple(_workload(random, f"w{number}", names) for number in range(1, random.randint(2, 4))),
        agent=_options(random.fork("agent")),
        not_ready_after=random.choice((40.0, 40.0, 50.0)),
        attachments_checked_every=random.choice((60.0, 60.0, 10.0)),
    )


def _workload(random: Random, name: str, nodes: list[str]) -> WorkloadSpec:
    """Three replicas, two and a tie-breaker, or either with a client; in some few seeds without quorum."""
    some = random.sample(nodes, len(nodes))
    disks, diskless = random.choice(((3, 0), (3, 0), (2, 1), (2, 1), (3, 1), (2, 2)))
    kind = random.choice(("statefulset", "statefulset", "deployment"))
    return WorkloadSpec(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        replicas=random.choice((1, 1, 2, 3)) if kind == "statefulset" else 1,
        parallel=random.random() < 0.5,
        disks=tuple(some[:disks]),
        diskless=tuple(some[disks : disks + diskless]),
        quorum="off" if random.random() < 0.1 else "majority",
        grace_s=random.choice((5, 30, 30)),
        min_available=random.choice((None, None, None, 0, 1)),
        refuses_eviction=random.random() < 0.1,
        ignore=random.random() < 0.1,
    )


def _options(random: Random) -> dict[str, Any]:
    """In most seeds as the product has them."""
    options: dict[str, Any] = {}
    if random.random() < 0.3:
        options["promotion-source"] = "events2"
    if random.random() < 0.2:
        options["fail-over-timeout"] = random.choice(("0s", "1s", "30s"))
    if random.random() < 0.1:
        options["disable-node-taints"] = True
    return options


def storage_faults_of(seed: int) -> tuple[StorageFault, ...]:
    """What happens in a seed, in order of time."""
    random = Random(seed).fork("faults")
    spec = storage_spec_of(seed)
    kinds = random.sample(_KINDS, random.randint(1, len(_KINDS)))
    found = []
    for _ in range(random.choice((1, 2, 4, 8, 12))):
        at_s = random.uniform(SETTLES_S, FAULTS_UNTIL_S)
        lasts_s = min(random.uniform(1.0, random.choice(LASTS_S)), FAULTS_UNTIL_S - at_s)
        verb, arguments = random.choice(kinds)(random, spec)
        if verb not in _LASTING:
            arguments["for"] = lasts_s
        found.append(StorageFault(at_s=at_s, verb=verb, arguments=arguments))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


_LASTING: Final = ("crash", "jump-clock", "delete-pod")
"""Verbs that do not end by themselves, as there is nothing to end."""
_Drawn = tuple[str, dict[str, Any]]


def _some(random: Random, spec: StorageSpec) -> dict[str, Any]:
    """A node, some nodes, or a failure domain."""
    nodes = nodes_of(spec)
    domains = sorted({node.domain for node in nodes if node.domain})
    if domains and random.random() < 0.2:
        return {"domain": random.choice(domains)}
    count = random.choice((1, 1, 1, 2, len(nodes)))
    return {"nodes": tuple(sorted(random.sample([node.name for node in nodes], count)))}


def _power(random: Random, spec: StorageSpec) -> _Drawn:
    return random.choice(("power-off", "crash")), _some(random, spec)


def _links(random: Random, spec: StorageSpec) -> _Drawn:
    """Any shape: single links, a node, a split of the cluster."""
    nodes = [node.name for node in nodes_of(spec)]
    pairs = [(a, b) for number, a in enumerate(nodes) for b in nodes[number + 1 :]]
    shape = random.random()
    if shape < 0.5:
        between = tuple(random.sample(pairs, random.randint(1, min(4, len(pairs)))))
        return "cut-links", {"between": between, "oneWay": random.random() < 0.2}
    return "cut-links", {"nodes": tuple(sorted(random.sample(nodes, random.randint(1, len(nodes) - 1))))}


def _network(random: Random, spec: StorageSpec) -> _Drawn:
    return random.choice(("cut-off", "cut-api")), _some(random, spec)


def _api(random: Random, spec: StorageSpec) -> _Drawn:
    if random.random() < 0.4:
        return "api-away", {}
    return "disturb-api", {
        "refuse": random.choice((0.0, 0.2)),
        "loseApplied": random.choice((0.0, 0.2)),
        "loseDropped": random.choice((0.0, 0.2)),
        "drop": random.choice((0.0, 0.1)),
        "latencyS": random.choice((0.005, 0.2, 2.0)),
    }


def _agent(random: Random, spec: StorageSpec) -> _Drawn:
    return "kill-agent", _some(random, spec)


def _drbdsetup(random: Random, spec: StorageSpec) -> _Drawn:
    if random.random() < 0.5:
        return "hang-drbdsetup", _some(random, spec)
    return "garble-drbdsetup", {**_some(random, spec), "output": random.choice(NONSENSE)}


def _clock(random: Random, spec: StorageSpec) -> _Drawn:
    return "jump-clock", {**_some(random, spec), "by": random.choice((-3600.0, -30.0, 30.0, 3600.0))}


def _people(random: Random, spec: StorageSpec) -> _Drawn:
    return "cordon", _some(random, spec)


_KINDS: Final[tuple[Callable[[Random, StorageSpec], _Drawn], ...]] = (
    _power,
    _links,
    _links,
    _network,
    _api,
    _agent,
    _drbdsetup,
    _clock,
    _people,
)


def run_storage_seed(seed: int, *, on_event: Callable[[HistoryEvent], None] | None = None) -> Result:
    """Run one seed; ``on_event`` is called with every event as it happens."""
    try:
        with collect_rarely(), silence_logging(), gather_defects() as defects:
            result = run_virtual(_run(seed, on_event), limit_s=LIMIT_S)
    except Exception as error:
        return Result(seed=seed, error="".join(traceback.format_exception(error)[-TRACE_LINES:]))
    if defects and not result.violations:
        return msgspec.structs.replace(result, error=f"{defects[0].event}: {defects[0].error}\n{defects[0].trace}")
    return result


async def _run(seed: int, on_event: Callable[[HistoryEvent], None] | None) -> Result:
    world = storage_world(storage_spec_of(seed), seed=seed, replay=storage_replay_of(seed))
    if on_event is not None:
        world.history.listen(on_event)
    await world.build()
    await world.start()
    for fault in storage_faults_of(seed):
        await world.clock.sleep(fault.at_s - world.clock.monotonic())
        await world.do(fault.verb, fault.arguments)
    await world.clock.sleep(FAULTS_UNTIL_S - world.clock.monotonic())
    await world.do("heal", {})
    for text in await world.wait_recovered(BUDGET_S, REST_S):
        world.judge.violate("recovered", text.partition(" ")[0], f"{text}, long after everything was healed")
    world.judge.judge_lost_writes()
    result = Result(
        seed=seed,
        violations=tuple(world.violations),
        trace=world.history.trace_hash(),
        virtual_s=world.clock.monotonic(),
    )
    await world.stop()
    return result
