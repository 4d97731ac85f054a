"""What worlds and stories are made from outside of tests: the product's storage agent, and the model of DRBD."""

from __future__ import annotations

from collections.abc import Callable

from outlive.base import Clock, Random
from outlive.runtime import ClusterVerbs
from outlive.simulation.drbd import DrbdCluster
from outlive.simulation.kubernetes.connection import ClientEvents
from outlive.simulation.kubernetes.spec import StorageSpec, agent_flags
from outlive.simulation.kubernetes.stories import StorageScenario, StorageStory
from outlive.simulation.kubernetes.world import MakeAgent, StorageWorld
from outlive.storage import AgentMetrics, DrbdTool, StorageAgent
from outlive.store import Store


def agent_of(spec: StorageSpec) -> MakeAgent:
    """Makes agents with the options of the cluster file."""

    def make(
        node: str,
        store: Store,
        verbs: ClusterVerbs,
        events: ClientEvents,
        drbd: DrbdTool,
        clock: Clock,
        random: Random,
    ) -> StorageAgent:
        metrics = AgentMetrics(lambda: agent.observer.age_s())
        agent = StorageAgent(
            agent_flags(spec, node),
            store=store,
            verbs=verbs,
            events=events,
            drbd=drbd,
            clock=clock,
            random=random,
            metrics=metrics,
        )
        return agent

    return make


def storage_world(spec: StorageSpec, *, seed: int, replay: str = "") -> StorageWorld:
    """A world of real agents on the model of DRBD."""
    return StorageWorld(spec, seed=seed, make_agent=agent_of(spec), make_volumes=DrbdCluster, replay=replay)


def storage_story(
    scenario: StorageScenario,
    *,
    seed: int,
    replay: str,
    tick: Callable[[int], None] | None = None,
    everything: bool = False,
) -> StorageStory:
    """A run of a scenario in such a world."""
    return StorageStory(
        scenario,
        seed=seed,
        replay=replay,
        make_agent=agent_of(scenario.spec),
        make_volumes=DrbdCluster,
        tick=tick,
        everything=everything,
    )
