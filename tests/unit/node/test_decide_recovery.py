"""What becomes of the virtual machines of a fenced host that have no slot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide, node

from outlive.node.vm import Books, NodeFigures, VmToPlace
from outlive.recovery import RecoverConfig
from outlive.resources import convert

CONFIG = {
    "successful_fence": "migrate",
    "failed_fence": "migrate",
    "self_fence_intervals": 4,
    "default_selector": None,
    "require_fit": False,
}
NODES = [node("hv1", free=900), node("hv2", free=64000), node("hv3", free=32000), node("dead", daemon_state="dead")]


def vm(uuid: str, **more: Any) -> dict[str, Any]:
    usual = {
        "state": "start",
        "node": "dead",
        "last_node": "",
        "running_on": "dead",
        "memory": 1000,
        "vcpus": 2,
        "node_limit": None,
        "selector": None,
        "volumes": ["pool/a"],
        "lock_release": "ok",
    }
    return {"uuid": uuid} | usual | more


def recover(*vms: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual = {"node": "dead", "fence_ok": True, "self_fence_proof": False, "coordinator": False, "primary": None}
    return decide("fence.recover", **(usual | {"config": CONFIG, "vms": vms, "nodes": NODES} | more))


def written(**more: Any) -> dict[str, Any]:
    answer = recover(vm("a", **more))
    assert set(answer["skipped"]) <= {"a"}
    found: dict[str, Any] = answer["vms"].get("a", {})
    return found


class TestWhetherAnythingIsRecovered:
    @pytest.mark.parametrize(
        ("fence_ok", "proof", "config", "reason"),
        [
            (True, False, {}, "fenced_migrate"),
            (True, True, {"successful_fence": "none"}, "fenced_no_action"),
            (False, True, {"failed_fence": "none"}, "unfenced_no_action"),
            (False, True, {"self_fence_intervals": 0}, "unfenced_no_self_fence"),
            (False, False, {}, "unfenced_proof_pending"),
            (False, True, {}, "self_fence_proven"),
        ],
    )
    def test_only_a_fence_or_a_proof_and_the_request_recover(
        self, fence_ok: bool, proof: bool, config: dict[str, Any], reason: str
    ) -> None:
        answer = recover(vm("a"), fence_ok=fence_ok, self_fence_proof=proof, config=CONFIG | config)
        recovers = reason in ("fenced_migrate", "self_fence_proven")
        assert (answer["reason"], answer["recover"]) == (reason, recovers)
        assert answer["daemon_state"] == ("fenced" if fence_ok else "dead")
        assert answer["domain_state"] == ("flushed" if recovers else None)
        assert set(answer["vms"]) == ({"a"} if recovers else set())
        assert answer["skipped"] == {}

    def test_a_coordinator_loses_its_role_only_when_it_is_certainly_gone(self) -> None:
        def role(**more: Any) -> tuple[str | None, str | None]:
            answer = recover(**({"coordinator": True, "primary": "dead"} | more))
            return answer["router_state"], answer["primary_key"]

        assert role() == ("secondary", "none")
        assert role(primary="hv1") == ("secondary", None)
        assert role(primary=None) == ("secondary", None)
        assert role(coordinator=False) == (None, None)
        assert role(fence_ok=False) == (None, None)
        assert role(fence_ok=False, self_fence_proof=True) == ("secondary", "none")
        assert role(config=CONFIG | {"successful_fence": "none"}) == ("secondary", "none")


class TestEachVm:
    @pytest.mark.parametrize("state", ["start", "restart", "migrate", "migrate-live"])
    def test_one_that_should_run_restarts_where_there_is_most_room_and_remembers_home(self, state: str) -> None:
        assert written(state=state) == {"state": "start", "node": "hv2", "last_node": "dead"}

    def test_one_that_was_shutting_down_is_down(self) -> None:
        assert written(state="shutdown") == {"state": "stop"}

    @pytest.mark.parametrize("state", ["stop", "disable", "fail", "mirror", "provision"])
    def test_one_that_should_not_run_is_left_alone(self, state: str) -> None:
        assert written(state=state) == {}

    def test_an_existing_home_is_kept_and_forgotten_at_home(self) -> None:
        assert written(last_node="hv7")["last_node"] == "hv7"
        assert written(last_node="hv2") == {"state": "start", "node": "hv2", "last_node": ""}

    def test_one_assigned_here_that_runs_nowhere_restarts_unless_it_was_shutting_down(self) -> None:
        assert written(running_on=None)["state"] == "start"
        assert written(running_on=None, state="migrate")["node"] == "hv2"
        assert written(running_on=None, state="shutdown") == {}
        assert written(running_on=None, node="hv1") == {}

    def test_one_that_runs_elsewhere_is_left_there(self) -> None:
        assert recover(vm("a", state="migrate", running_on="hv1"))["skipped"] == {"a": "source_keeps"}
        assert recover(vm("a", state="migrate-live", running_on="hv1"))["vms"] == {}
        left = recover(vm("a", running_on="hv1"))
        assert left["vms"] == left["skipped"] == {}

    def test_one_that_was_leaving_starts_at_its_target_if_that_works(self) -> None:
        assert written(state="migrate", node="hv1") == {"state": "start"}
        assert written(state="migrate-live", node="hv1") == {"state": "start"}
        assert written(state="migrate", node="gone")["node"] == "hv2"
        down = [*NODES, node("hv9", free=10**6, daemon_state="dead")]
        assert recover(vm("a", state="migrate", node="hv9"), nodes=down)["vms"]["a"]["node"] == "hv2"

    def test_a_lock_that_stays_fails_it_with_the_reason_unless_it_has_no_volumes(self) -> None:
        answer = recover(vm("a", lock_release="fail"))
        assert answer["vms"] == {"a": {"state": "fail", "failed_reason": "lock_release_failed"}}
        assert answer["skipped"] == {"a": "lock_release_failed"}
        assert written(lock_release="fail", volumes=[])["state"] == "start"
        assert written(lock_release="fail", state="shutdown") == {"state": "stop"}

    def test_one_without_a_target_is_down_and_starts_again_later(self) -> None:
        assert written(node_limit=["dead"]) == {"state": "stop", "autostart": True}
        assert written(node_limit=["hv1"])["node"] == "hv1"
        assert written(node_limit=[])["node"] == "hv2"

    def test_each_is_booked_before_the_next_is_placed(self) -> None:
        nodes = [node("hv1", free=3000), node("hv2", free=2500)]
        answer = recover(*[vm(f"v{n}") for n in range(5)], nodes=nodes, config=CONFIG | {"require_fit": True})
        # 3000 2500 → hv1, 2000 2500 → hv2, 2000 1500 → hv1, 1000 1500 → hv2, 1000 500 → hv1
        assert [answer["vms"][f"v{n}"]["node"] for n in range(5)] == ["hv1", "hv2", "hv1", "hv2", "hv1"]
        full = recover(*[vm(f"v{n}") for n in range(6)], nodes=nodes, config=CONFIG | {"require_fit": True})
        assert full["vms"]["v5"] == {"state": "stop", "autostart": True}

    def test_missing_facts_are_refused(self) -> None:
        without = vm("a")
        del without["memory"]
        assert recover(without) == {"error": "invalid"}
        assert decide("fence.recover", node="dead", vms=[], nodes=[]) == {"error": "invalid"}


@given(
    hosts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8),
    selector=st.sampled_from(["mem", "memfree", "load", "vcpus", "vms"]),
)
def test_booking_moves_memory_from_free_to_used_and_loses_none(
    hosts: list[tuple[int, int, int]], sizes: list[tuple[int, int]], selector: str
) -> None:
    before: tuple[NodeFigures, ...] = convert(
        tuple[NodeFigures, ...],
        [node(f"hv{n}", used=used, free=free, provisioned=prov) for n, (used, free, prov) in enumerate(hosts)],
    )
    books = Books(tuple(before), RecoverConfig(default_selector=selector))
    targets = [books.place(VmToPlace(memory=memory, vcpus=vcpus)) for memory, vcpus in sizes]
    for old, new in zip(before, books.nodes, strict=True):
        placed = [size for size, target in zip(sizes, targets, strict=True) if target == old.name]
        memory = sum(size[0] for size in placed)
        assert new.memory.used + new.memory.free == old.memory.used + old.memory.free
        assert new.memory.used - old.memory.used == memory
        assert new.memory.allocated - old.memory.allocated == memory
        assert new.memory.provisioned - old.memory.provisioned == memory
        assert new.vcpu_allocated - old.vcpu_allocated == sum(size[1] for size in placed)
        assert new.domains_count - old.domains_count == len(placed)
        assert new.memory.total == old.memory.total
