"""Pipelines as objects: admission, building, conditions, the shipped ones, and the controllers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by

from outlive.base import LoopClock, Random, SeededIds
from outlive.placement import (
    ALL_GROUPS,
    FlavorGroupController,
    PipelineController,
    PipelineTable,
    PlacementSettings,
    admit,
    build,
    install_shipped,
    shipped_pipelines,
)
from outlive.resources import (
    Amounts,
    Flavor,
    FlavorGroup,
    FlavorSpec,
    ObjectMeta,
    Parameter,
    Pipeline,
    PipelineSpec,
    StepSpec,
    find_condition,
)  # fmt: skip
from outlive.runtime import Informer, OrderedTaskGroup
from outlive.store import MemoryStore


def pipeline(name: str = "p", **spec: Any) -> Pipeline:
    return Pipeline(metadata=ObjectMeta(name=name), spec=PipelineSpec(**spec))


def step(name: str, *params: Parameter, **fields: Any) -> StepSpec:
    return StepSpec(name=name, params=params, **fields)


def test_every_shipped_pipeline_is_admitted_and_built() -> None:
    shipped = shipped_pipelines()
    assert len(shipped) == 11
    for one in shipped:
        assert admit(one).errors == ()
        assert build(one).pipeline is not None
        assert build(one).unknown == build(one).dropped == ()
    dropped = {name for one in shipped for name in build(one, ()).dropped}
    assert {name.split(":")[0] for name in dropped} == {
        "step avoid_high_steal_pct", "step vmware_binpack", "step vmware_avoid_long_term_contended_hosts",
        "step vmware_avoid_short_term_contended_hosts",
    }  # fmt: skip


def test_only_pipelines_that_rank_are_in_the_table() -> None:
    table = PipelineTable.with_shipped()
    assert len(table) == 10
    assert "kvm-descheduler" not in table
    assert [one.name for one in table.detector_pipelines()] == ["kvm-descheduler"]
    assert [bound.step.name for bound in table["kvm-report-capacity"].filters] == [
        "filter_status_conditions", "filter_correct_az", "filter_has_enough_capacity", "filter_has_requested_traits",
        "filter_capabilities",
    ]  # fmt: skip
    assert len(table["kvm-general-purpose-load-balancing"].filters) == 16
    assert len(table["kvm-general-purpose-load-balancing"].weighers) == 5
    assert not table["kvm-valid-host-reuse-failover-reservation"].gathers_hosts


@pytest.mark.parametrize(
    ("words", "filters"),
    [
        (
            "given twice",
            [step("filter_exclude_hosts", *[Parameter(key="excludedHosts", string_list_value=("a",))] * 2)],
        ),
        ("0 values", [step("filter_exclude_hosts", Parameter(key="excludedHosts"))]),
        ("2 values", [step("filter_exclude_hosts", Parameter(key="excludedHosts", int_value=1, bool_value=True))]),
        ("speed is not known", [step("filter_correct_az", Parameter(key="speed", int_value=1))]),
        ("Expected `array`", [step("filter_exclude_hosts", Parameter(key="excludedHosts", string_value="a"))]),
        ("missing required field", [step("filter_external_customer")]),
        ("is empty", [step("filter_external_customer", Parameter(key="domainNamePrefixes", string_list_value=()))]),
        ("Expected `bool`", [step("filter_has_enough_capacity", Parameter(key="lockReserved", int_value=1))]),
    ],
)
def test_bad_parameters_are_errors_that_name_the_step(words: str, filters: list[StepSpec]) -> None:
    (error,) = admit(pipeline(filters=tuple(filters))).errors
    assert words.lower() in error.lower()
    assert filters[0].name in error


@pytest.mark.parametrize(
    ("name", "params", "fine"),
    [
        ("kvm_prefer_smaller_hosts", {"resourceWeights": {"cpu": 0.0}}, True),
        ("kvm_prefer_smaller_hosts", {"resourceWeights": {"cpu": -1.0}}, False),
        ("kvm_prefer_smaller_hosts", {"resourceWeights": {}}, False),
        ("kvm_prefer_smaller_hosts", {"resourceWeights": {"gpu": 1.0}}, False),
        ("kvm_binpack", {"resourceWeights": {"cpu": 0.0}}, False),
        ("kvm_failover_reservation_consolidation", {}, True),
        ("kvm_failover_reservation_consolidation", {"totalCountWeight": 0.0}, False),
        ("kvm_failover_reservation_consolidation", {"totalCountWeight": 0.0, "sameSpecPenalty": 0.0}, True),
        ("kvm_failover_reservation_consolidation", {"totalCountWeight": 1.0, "sameSpecPenalty": 1.0}, False),
        ("kvm_failover_evacuation", {"failoverHostWeight": 2.0}, True),
    ],
)
def test_weighers_check_their_parameters(name: str, params: dict[str, Any], fine: bool) -> None:
    given = [
        Parameter(key=key, **({"float_map_value": value} if isinstance(value, dict) else {"float_value": value}))
        for key, value in params.items()
    ]
    assert (admit(pipeline(weighers=(step(name, *given),))).errors == ()) is fine


def test_all_errors_of_a_step_are_reported_together() -> None:
    given = (Parameter(key="speed", int_value=1), Parameter(key="lockReserved", int_value=1), Parameter(key="empty"))
    (error,) = admit(pipeline(filters=(step("filter_has_enough_capacity", *given),))).errors
    for words in ("speed is not known", "lockReserved: expected `bool`", "empty has 0 values"):
        assert words.lower() in error.lower()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e10])
def test_numbers_that_would_spoil_sums_are_refused(number: float) -> None:
    packed = Parameter(key="resourceWeights", float_map_value={"memory": 1.0})
    for bad in (
        step("kvm_binpack", packed, multiplier=number),
        step("kvm_binpack", Parameter(key="resourceWeights", float_map_value={"memory": number})),
    ):
        assert "kvm_binpack" in admit(pipeline(weighers=(bad,))).errors[0]
    assert build(pipeline(filters=(step("filter_correct_az", multiplier=number),))).pipeline is not None


def test_all_errors_are_reported_together_and_unknown_steps_only_warned_about() -> None:
    verdict = admit(
        pipeline(
            filters=(step("filter_external_customer"), step("filter_of_tomorrow"), step("filter_correct_az")),
            weighers=(step("kvm_binpack"),),
            detectors=(step("d"),),
        )
    )
    assert len(verdict.errors) == 3
    assert len(verdict.warnings) == 2


def test_other_domains_pass_unseen_and_an_empty_pipeline_is_valid() -> None:
    assert admit(pipeline(scheduling_domain="cinder", filters=(step("filter_external_customer"),))).errors == ()
    assert admit(pipeline()).errors == ()
    assert admit(pipeline(type="detector", filters=(step("filter_correct_az"),))).errors


def test_the_products_defaults_fail_closed() -> None:
    closed = build(pipeline(filters=(step("filter_has_enough_capacity"), step("filter_live_migratable"))))
    assert closed.pipeline is not None
    assert [bound.on_error for bound in closed.pipeline.filters] == ["reject", "skip"]


def test_a_swap_leaves_calls_in_progress_their_pipeline() -> None:
    table = PipelineTable()
    table.put(pipeline(filters=(step("filter_correct_az"),)))
    held = table["p"]
    table.put(pipeline())
    assert len(held.filters) == 1
    assert table["p"].filters == ()


class World:
    """A memory store with informers that run while a story is told."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.random = Random(1)
        self.store = MemoryStore(self.clock, SeededIds(self.random))
        self.pipelines = Informer(self.store, Pipeline, clock=self.clock, random=self.random)
        self.flavors = Informer(self.store, Flavor, clock=self.clock, random=self.random)
        self.groups = Informer(self.store, FlavorGroup, clock=self.clock, random=self.random)


def reported(story: Any) -> None:
    async def telling() -> None:
        world = World()
        informers = (world.pipelines, world.flavors, world.groups)
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(one.run(), name=one.name) for one in informers]
            for one in informers:
                await one.wait_synced()
            await story(world)
            for task in tasks:
                task.cancel()

    run(telling())


@run_by(reported)
async def test_shipped_pipelines_are_created_once_and_never_overwritten(world: World) -> None:
    assert len(await install_shipped(world.store)) == 11
    mine = await world.store.get(Pipeline, "kvm-report-capacity")
    await world.store.replace(replace(mine, spec=replace(mine.spec, description="mine")))
    assert await install_shipped(world.store) == ()
    assert (await world.store.get(Pipeline, "kvm-report-capacity")).spec.description == "mine"


@pytest.mark.parametrize(
    ("spec", "ready", "steps", "indexed"),
    [
        ({}, "PipelineReady", "AllStepsReady", "AllStepsIndexed"),
        ({"filters": (step("new"),)}, "PipelineReady", "AllStepsReady", "PipelineContainsUnknownSteps"),
        ({"weighers": (step("kvm_binpack"),)}, "PipelineReady", "SomeStepsNotReady", "AllStepsIndexed"),
        (
            {"filters": (step("filter_external_customer"),)},
            "PipelineInitFailed",
            "PipelineInitFailed",
            "AllStepsIndexed",
        ),
    ],
)
@run_by(reported)
async def test_the_controller_writes_what_became_of_a_pipeline(
    world: World, *, spec: dict[str, Any], ready: str, steps: str, indexed: str
) -> None:
    table = PipelineTable()
    controller = PipelineController(world.store, world.pipelines, table, clock=world.clock)
    await world.store.create(pipeline(**spec))
    await world.clock.sleep(1)
    assert await controller.reconcile("p") is None
    found = await world.store.get(Pipeline, "p")
    reasons = [find_condition(found.status.conditions, kind) for kind in ("Ready", "AllStepsReady", "AllStepsIndexed")]
    assert [one.reason for one in reasons if one] == [ready, steps, indexed]
    assert ("p" in table) is (ready == "PipelineReady")
    version = found.metadata.resource_version
    assert await controller.reconcile("p") is None
    assert (await world.store.get(Pipeline, "p")).metadata.resource_version == version
    await world.store.delete(found.ref)
    await world.clock.sleep(1)
    await controller.reconcile("p")
    assert "p" not in table


def flavor(name: str, memory_gib: int, group: str = "s4") -> Flavor:
    specs = {"capabilities:hypervisor_type": "QEMU", "quota:hw_version": group}
    amounts = Amounts(cpu=1000, memory=memory_gib * 2**30)
    return Flavor(
        metadata=ObjectMeta(name=name), spec=FlavorSpec(flavor_name=name, resources=amounts, extra_specs=specs)
    )


def groups_controller(world: World) -> FlavorGroupController:
    settings = PlacementSettings()
    writes = WriterStore(world.store, writer="placement")
    return FlavorGroupController(writes, world.flavors, world.groups, settings=settings, clock=world.clock)


@run_by(reported)
async def test_flavor_groups_follow_the_flavors(world: World) -> None:
    controller = groups_controller(world)
    foreign = FlavorGroup(metadata=ObjectMeta(name="theirs"), spec=_theirs())
    await world.store.create(foreign)
    for name, size in (("small", 2), ("large", 8)):
        await world.store.create(flavor(name, size))
    await world.clock.sleep(1)
    assert await controller.reconcile(ALL_GROUPS) is None
    made = await world.store.get(FlavorGroup, "s4")
    assert (made.spec.largest_flavor.name, made.spec.smallest_flavor.name) == ("large", "small")
    assert (made.spec.ram_core_ratio_min, made.spec.ram_core_ratio_max) == (2048, 8192)
    await world.store.delete((await world.store.get(Flavor, "large")).ref)
    await world.clock.sleep(1)
    await controller.reconcile(ALL_GROUPS)
    assert (await world.store.get(FlavorGroup, "s4")).spec.ram_core_ratio == 2048
    await world.store.delete((await world.store.get(Flavor, "small")).ref)
    await world.clock.sleep(1)
    await controller.reconcile(ALL_GROUPS)
    page = await world.store.list(FlavorGroup)
    assert [one.name for one in page.items] == ["theirs"]


def _theirs() -> Any:
    from outlive.placement.flavor_groups import flavor_groups

    return flavor_groups([flavor("x", 4, "theirs")])[0]
