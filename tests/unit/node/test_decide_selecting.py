"""Choosing a host, and emptying one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide, node

from outlive.base import natural_key


def select(*nodes: dict[str, Any], vm: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    wanted = {"node": None, "memory": 100, "vcpus": 1, "node_limit": None, "selector": None} | (vm or {})
    settings = {"default_selector": None, "require_fit": False}
    return decide("select.node", **({"vm": wanted, "nodes": nodes} | settings | more))


def target(*nodes: dict[str, Any], **more: Any) -> str | None:
    found: str | None = select(*nodes, **more)["target"]
    return found


class TestNaturalOrder:
    def test_digits_count_as_numbers(self) -> None:
        names = ["hv10", "hv2", "hv1-10", "hv1-9", "a", "hv", "hv02", "10", "9", ""]
        expected = ["", "9", "10", "a", "hv", "hv1-9", "hv1-10", "hv02", "hv2", "hv10"]
        assert sorted(names, key=natural_key) == expected

    @given(st.lists(st.text(alphabet="a0129-x", max_size=8)))
    def test_it_is_total_and_does_not_depend_on_the_order_given(self, names: list[str]) -> None:
        backwards = names[::-1]
        assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)

    def test_digits_may_be_more_than_python_converts(self) -> None:
        assert natural_key("9" * 9000) < natural_key("1" + "0" * 9000)


class TestSelector:
    @pytest.mark.parametrize(
        ("own", "default", "used"),
        [
            ("load", "vms", "load"),
            (None, "vms", "vms"),
            ("none", "vms", "vms"),
            ("default", "memprov", "memprov"),
            ("nonsense", None, "mem"),
            (None, "nonsense", "mem"),
            (None, "none", "mem"),
        ],
    )
    def test_its_own_then_the_default_then_memory(self, own: str | None, default: str | None, used: str) -> None:
        assert select(node("a", free=1), vm={"selector": own}, default_selector=default)["selector"] == used

    def test_each_selector_looks_at_its_own_figure(self) -> None:
        nodes = [
            node("hv1", used=0, free=90, provisioned=80, vcpu_allocated=9, load=9.0, domains_count=9),
            node("hv2", used=50, free=50, provisioned=40, vcpu_allocated=5, load=8.0, domains_count=8),
            node("hv3", used=60, free=20, provisioned=60, vcpu_allocated=9, load=0.5, domains_count=7),
            node("hv4", used=60, free=20, provisioned=60, vcpu_allocated=1, load=7.0, domains_count=6),
            node("hv5", used=60, free=20, provisioned=60, vcpu_allocated=6, load=6.0, domains_count=1),
        ]
        found = {
            word: target(*nodes, vm={"selector": word})
            for word in ("mem", "memprov", "memfree", "load", "vcpus", "vms")
        }
        assert found == {"mem": "hv2", "memprov": "hv2", "memfree": "hv1", "load": "hv3", "vcpus": "hv4", "vms": "hv5"}
        assert target(*nodes, mem_means="free") == "hv1"
        assert target(*nodes, vm={"selector": "memprov"}, mem_means="free") == "hv2"

    def test_ties_go_to_the_first_in_natural_order(self) -> None:
        assert target(node("hv10", free=9), node("hv2", free=9)) == "hv2"
        assert target(node("hv10", load=1), node("hv2", load=1), vm={"selector": "load"}) == "hv2"


class TestCandidates:
    def test_only_working_ready_allowed_hosts_other_than_its_own(self) -> None:
        nodes = [
            node("hv10", free=1),
            node("hv2", free=1),
            node("off", free=9, daemon_state="dead"),
            node("draining", free=9, domain_state="flush"),
            node("own", free=9),
        ]
        assert select(*nodes, vm={"node": "own"})["candidates"] == ["hv2", "hv10"]
        assert select(*nodes, vm={"node": "own", "node_limit": []})["candidates"] == ["hv2", "hv10"]
        assert select(*nodes, vm={"node": "own", "node_limit": ["own", "hv10", "off"]})["candidates"] == ["hv10"]
        nowhere = select(*nodes, vm={"node": "own", "node_limit": ["own"]})
        assert nowhere == {"target": None, "selector": "mem", "candidates": []}

    def test_reserved_memory_is_not_room(self) -> None:
        assert target(node("hv1", free=100, reserved=60), node("hv2", free=50)) == "hv2"
        assert target(node("hv1", free=100, reserved=100)) is None
        assert target(node("hv1", free=100, reserved=100), vm={"selector": "memfree"}) is None

    def test_without_fit_any_room_will_do_and_load_asks_for_none(self) -> None:
        crowded = node("hv1", used=100, free=1, provisioned=100)
        assert target(crowded) == "hv1"
        full = node("hv1", used=100, free=0, provisioned=100)
        assert target(full) is None
        assert target(full, vm={"selector": "memfree"}) is None
        for word in ("load", "vcpus", "vms"):
            assert target(full, vm={"selector": word}) == "hv1"

    def test_with_fit_it_must_fit_now_and_by_what_is_provisioned(self) -> None:
        fits = node("hv1", used=0, free=100, provisioned=0)
        assert target(fits, require_fit=True) == "hv1"
        assert target(fits, vm={"memory": 101}, require_fit=True) is None
        promised = node("hv1", used=0, free=100, provisioned=1)
        assert target(promised, require_fit=True) is None
        assert target(promised, vm={"selector": "memfree"}, require_fit=True) == "hv1"
        assert target(promised, require_fit=True, mem_means="free") == "hv1"
        assert target(promised, vm={"selector": "load", "memory": 101}, require_fit=True) is None
        # Shut down virtual machines free memory that is promised to nobody else.
        assert target(node("hv1", used=900, free=50, provisioned=0), require_fit=True) is None
        assert target(node("hv1", free=0), vm={"memory": 0}, require_fit=True) == "hv1"

    @given(
        rooms=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=6),
        memory=st.integers(0, 9),
        fit=st.booleans(),
        free=st.booleans(),
    )
    def test_the_target_is_a_candidate_and_nobody_has_more_room(
        self, rooms: list[tuple[int, int, int]], memory: int, fit: bool, free: bool
    ) -> None:
        nodes = [node(f"hv{n}", used=u, free=f, provisioned=p) for n, (u, f, p) in enumerate(rooms)]
        answer = select(*nodes, vm={"memory": memory}, require_fit=fit, mem_means="free" if free else "provisioned")
        room = {f"hv{n}": f if free else u + f - p for n, (u, f, p) in enumerate(rooms)}
        if answer["target"] is None:
            assert answer["candidates"] == []
        else:
            assert answer["target"] in answer["candidates"]
            assert room[answer["target"]] == max(room[name] for name in answer["candidates"])
            assert not fit or room[answer["target"]] >= memory
        assert answer["candidates"] == sorted(answer["candidates"], key=natural_key)


def vm(uuid: str, **more: Any) -> dict[str, Any]:
    usual = {"state": "start", "node": "me", "last_node": "", "memory": 100, "vcpus": 1, "autostart": False}
    return {"uuid": uuid} | usual | more


NODES = [node("hv1", free=250), node("hv2", free=200), node("me", free=999)]


def flush(*vms: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual = {"node": "me", "op": "flush", "running": [each["uuid"] for each in vms], "nodes": NODES, "timeouts": []}
    settings = {"cancel_before": None, "default_selector": None, "require_fit": False}
    return decide("flush.run", **(usual | settings | {"vms": vms} | more))


def steps(*vms: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = flush(*vms, **more)["steps"]
    return found


class TestFlush:
    def test_each_moves_where_most_room_is_left_by_then(self) -> None:
        answer = flush(*[vm(f"v{n}") for n in range(5)])
        assert [(step["do"], step.get("to")) for step in answer["steps"]] == [
            ("migrate", "hv1"),  # 250 200
            ("migrate", "hv2"),  # 150 200
            ("migrate", "hv1"),  # 150 100
            ("migrate", "hv2"),  # 50 100
            ("migrate", "hv1"),  # 50 0
        ]
        assert (answer["domain_state"], answer["cancelled"]) == ("flushed", False)
        assert answer["steps"][0] == {"vm": "v0", "do": "migrate", "to": "hv1", "last_node": "me"}

    def test_a_home_elsewhere_is_kept_and_forgotten_on_arrival(self) -> None:
        assert steps(vm("a", last_node="hv9"))[0]["last_node"] == "hv9"
        assert steps(vm("a", last_node="hv1"))[0] == {"vm": "a", "do": "migrate", "to": "hv1", "last_node": ""}

    def test_without_a_target_it_is_shut_down_and_starts_again_later(self) -> None:
        assert steps(vm("a", node_limit=["me"])) == [{"vm": "a", "do": "shutdown", "autostart": True}]

    def test_only_what_should_run_moves(self) -> None:
        for state in ("stop", "disable", "migrate", "mirror"):
            assert steps(vm("a", state=state)) == [{"vm": "a", "do": "skip"}]
        assert steps(running=["unknown"]) == [{"vm": "unknown", "do": "skip"}]

    def test_a_restart_and_a_shutdown_are_awaited(self) -> None:
        assert steps(vm("a", state="restart"))[0]["do"] == "migrate"
        assert steps(vm("a", state="restart", settles_to="stop"))[0]["do"] == "skip"
        assert steps(vm("a", state="shutdown"))[0]["do"] == "skip"
        assert steps(vm("a", state="shutdown", settles_to="start"))[0]["do"] == "migrate"

    def test_order_is_that_of_the_running_list(self) -> None:
        assert [step["vm"] for step in steps(vm("a"), vm("b"), vm("c"), running=["c", "a"])] == ["c", "a"]

    def test_one_that_takes_too_long_is_marked_booked_and_left_behind(self) -> None:
        late = steps(vm("a"), vm("b", node_limit=["me"]), vm("c", state="stop"), vm("d"), timeouts=["a", "b", "c"])
        assert [step.get("timed_out") for step in late] == [True, True, None, None]
        assert late[3]["to"] == "hv2"

    def test_a_cancellation_stops_before_the_item_and_turns_round(self) -> None:
        answer = flush(vm("a"), vm("b"), cancel_before=1)
        assert [step["vm"] for step in answer["steps"]] == ["a"]
        assert (answer["domain_state"], answer["cancelled"]) == ("unflush", True)
        assert flush(vm("a"), cancel_before=0)["steps"] == []
        assert flush(vm("a"), cancel_before=1)["domain_state"] == "flushed"
        assert flush(cancel_before=0)["cancelled"] is False
        assert flush(cancel_before=-1) == {"error": "invalid"}

    @given(st.lists(st.tuples(st.integers(0, 120), st.sampled_from(["start", "stop", "restart"])), max_size=6))
    def test_books_never_let_it_move_to_a_host_without_room(self, given_vms: list[tuple[int, str]]) -> None:
        vms = [vm(f"v{n}", memory=memory, state=state) for n, (memory, state) in enumerate(given_vms)]
        room = {"hv1": 250, "hv2": 200}
        for step in steps(*vms, require_fit=True):
            if step["do"] == "migrate":
                memory = vms[int(step["vm"][1:])]["memory"]
                assert room[step["to"]] == max(room.values())
                room[step["to"]] -= memory
                assert room[step["to"]] >= 0
            elif step["do"] == "shutdown":
                assert max(room.values()) < vms[int(step["vm"][1:])]["memory"]


def unflush(*vms: dict[str, Any], **more: Any) -> dict[str, Any]:
    return flush(*vms, op="unflush", **more)


class TestReady:
    def test_what_starts_by_itself_starts_only_from_stop(self) -> None:
        answer = unflush(
            vm("a", state="stop", autostart=True), vm("b", autostart=True), vm("c", state="fail", autostart=True)
        )
        assert [step["do"] for step in answer["steps"]] == ["start", "skip", "skip"]
        assert (answer["domain_state"], answer["cancelled"]) == ("ready", False)

    def test_what_is_at_home_here_comes_back_and_moves_only_if_it_runs(self) -> None:
        away = [
            vm("a", node="hv1", last_node="me"),
            vm("b", node="hv1", last_node="me", state="stop"),
            vm("c", node="hv1", last_node="hv9"),
            vm("d", node="hv1", last_node="me", autostart=True),
        ]
        assert unflush(*away)["steps"] == [
            {"vm": "a", "do": "migrate_home"},
            {"vm": "b", "do": "rehome"},
            {"vm": "d", "do": "migrate_home"},
        ]

    def test_moves_and_restarts_are_awaited(self) -> None:
        def done(state: str, **more: Any) -> str:
            found: str = unflush(vm("a", node="hv1", last_node="me", state=state, **more))["steps"][0]["do"]
            return found

        assert done("migrate") == done("migrate-live") == done("restart") == "migrate_home"
        assert done("shutdown") == done("migrate", settles_to="stop") == "rehome"

    def test_only_a_move_can_time_out(self) -> None:
        vms = [vm("a", node="hv1", last_node="me"), vm("b", node="hv1", last_node="me", state="stop")]
        late = unflush(*vms, timeouts=["a", "b"])["steps"]
        assert late == [{"vm": "a", "do": "migrate_home", "timed_out": True}, {"vm": "b", "do": "rehome"}]

    def test_a_cancellation_counts_all_vms_and_turns_round(self) -> None:
        vms = [vm("x", node="hv1"), vm("a", node="hv1", last_node="me")]
        answer = unflush(*vms, cancel_before=1)
        assert answer == {"steps": [], "domain_state": "flush", "cancelled": True}
        assert unflush(*vms, cancel_before=2)["domain_state"] == "ready"
