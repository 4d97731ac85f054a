"""What requests of clients write, to virtual machines and to hosts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide, node

NODES = [
    node("hv1", free=500),
    node("hv2", free=900),
    node("hv3", free=100),
    node("down", free=999, daemon_state="dead"),
    node("drained", free=999, domain_state="flushed"),
]


def asked(request: str, args: dict[str, Any] | None = None, **vm: Any) -> tuple[str, dict[str, Any]]:
    usual = {
        "state": "start",
        "node": "hv1",
        "last_node": "",
        "node_limit": None,
        "selector": None,
        "method": "none",
        "memory": 50,
        "vcpus": 1,
        "migration_active": False,
    }
    given = {"request": request, "vm": usual | vm, "nodes": NODES, "default_selector": None, "require_fit": False}
    answer = decide("vm.request", **given, args=args or {})
    assert answer["ok"] is (answer["code"] in ("accepted", "made_permanent"))
    assert answer["ok"] or answer["writes"] == {}
    return answer["code"], answer["writes"]


def code(request: str, args: dict[str, Any] | None = None, **vm: Any) -> str:
    return asked(request, args, **vm)[0]


class TestStates:
    def test_start_and_stop_write_what_they_say(self) -> None:
        assert asked("start", state="stop") == ("accepted", {"state": "start"})
        assert asked("start") == ("accepted", {"state": "start"})
        assert asked("stop") == ("accepted", {"state": "stop"})

    @pytest.mark.parametrize("request_", ["start", "stop", "disable"])
    def test_a_mirror_is_touched_only_by_force(self, request_: str) -> None:
        assert code(request_, state="mirror") == "mirror_protected"
        assert code(request_, {"force": True}, state="mirror") == "accepted"

    def test_locks_are_removed_of_what_is_stopped_and_held_by_nobody(self) -> None:
        for state in ("stop", "disable", "fail", "mirror"):
            assert asked("flush-locks", state=state) == ("accepted", {})
            assert code("flush-locks", {"force": True}, state=state, held=True) == "not_stopped"
        assert code("flush-locks", {"force": True}) == "not_stopped"
        assert code("flush-locks", state="stop", migration_active=True) == "busy"

    @pytest.mark.parametrize("request_", ["attach", "detach"])
    def test_devices_are_given_to_and_taken_from_what_runs_and_does_not_move(self, request_: str) -> None:
        assert asked(request_, held=True) == ("accepted", {})
        assert code(request_, migration_active=True) == "busy"
        for state in ("stop", "migrate", "fail", "shutdown"):
            assert code(request_, {"force": True}, state=state) == "not_running"

    @pytest.mark.parametrize("request_", ["shutdown", "restart"])
    def test_only_what_runs_is_shut_down_or_restarted(self, request_: str) -> None:
        assert asked(request_) == ("accepted", {"state": request_})
        for state in ("stop", "migrate", "mirror", "shutdown"):
            assert code(request_, {"force": True}, state=state) == "not_running"

    def test_disable_goes_through_a_shutdown_or_by_force_through_a_stop(self) -> None:
        assert asked("disable") == ("accepted", {"via": "shutdown", "state": "disable"})
        assert asked("disable", {"force": True}) == ("accepted", {"via": "stop", "state": "disable"})
        assert asked("disable", state="stop") == ("accepted", {"state": "disable"})
        assert asked("disable", {"force": True}, state="mirror") == ("accepted", {"state": "disable"})

    def test_missing_arguments_are_none_and_no(self) -> None:
        given = {"request": "disable", "vm": {"state": "start", "node": "hv1"}}
        assert decide("vm.request", **given)["writes"]["via"] == "shutdown"
        assert decide("vm.request", **given, args=None)["ok"] is True
        assert decide("vm.request", **given, args={"force": None, "target": None, "force_live": None})["ok"] is True


class TestMoving:
    @pytest.mark.parametrize("request_", ["migrate", "unmigrate", "move"])
    def test_a_move_under_way_comes_first_and_a_forbidden_live_move_second(self, request_: str) -> None:
        live = {"force_live": True, "target": "nowhere"}
        assert code(request_, live, migration_active=True, method="shutdown") == "busy"
        assert code(request_, live, method="shutdown") == "live_forbidden"
        assert code(request_, {"target": "hv2"}, method="shutdown", last_node="hv2") != "live_forbidden"

    def test_migrate_goes_where_it_is_asked_to_and_remembers_home(self) -> None:
        assert asked("migrate", {"target": "hv3"}) == (
            "accepted",
            {"state": "migrate", "node": "hv3", "last_node": "hv1"},
        )
        assert asked("migrate")[1]["node"] == "hv2"

    def test_migrating_again_needs_force_and_keeps_the_first_home(self) -> None:
        assert code("migrate", {"target": "nowhere"}, last_node="hv3") == "already_migrated"
        forced = {"target": "hv2", "force": True}
        assert asked("migrate", forced, last_node="hv3")[1]["last_node"] == "hv3"
        assert asked("migrate", forced, last_node="hv2")[1] == {"state": "migrate", "node": "hv2", "last_node": ""}

    @pytest.mark.parametrize("request_", ["migrate", "move"])
    def test_the_target_must_be_known_allowed_another_and_ready_in_this_order(self, request_: str) -> None:
        assert code(request_, {"target": "nowhere"}, node_limit=["hv2"]) == "node_invalid"
        assert code(request_, {"target": "down"}, node_limit=["hv2"]) == "node_not_allowed"
        assert code(request_, {"target": "hv1"}, node_limit=["hv2"]) == "node_not_allowed"
        assert code(request_, {"target": "hv1"}) == "same_node"
        assert code(request_, {"target": "down"}, node="down") == "same_node"
        assert code(request_, {"target": "down"}) == "node_not_ready"
        assert code(request_, {"target": "drained"}) == "node_not_ready"
        assert code(request_, {"target": "hv2"}, node_limit=[]) == "accepted"
        assert code(request_, node_limit=["hv1", "down"]) == "no_target"

    def test_unmigrate_goes_home(self) -> None:
        assert asked("unmigrate", last_node="hv3") == ("accepted", {"state": "migrate", "node": "hv3", "last_node": ""})
        assert code("unmigrate") == code("unmigrate", last_node=None) == "not_migrated"
        assert code("unmigrate", last_node="nowhere") == "node_invalid"
        assert code("unmigrate", last_node="down") == "node_not_ready"
        assert code("unmigrate", last_node="hv1") == "same_node"

    def test_move_forgets_home(self) -> None:
        moved = {"state": "migrate", "node": "hv2", "last_node": ""}
        assert asked("move", {"target": "hv2"}, last_node="hv3") == ("accepted", moved)
        assert asked("move") == ("accepted", moved)

    def test_moving_to_where_it_already_is_makes_that_its_home(self) -> None:
        assert asked("move", {"target": "hv1"}, last_node="hv2") == ("made_permanent", {"last_node": ""})
        assert code("move", {"target": "hv1"}) == "same_node"
        assert code("migrate", {"target": "hv1", "force": True}, last_node="hv2") == "same_node"
        assert code("move", {"target": "hv1"}, last_node="hv2", node_limit=["hv2"]) == "node_not_allowed"

    def test_only_what_runs_changes_its_state(self) -> None:
        live = {"target": "hv2", "force_live": True}
        assert asked("migrate", live)[1]["state"] == "migrate-live"
        for request in ("migrate", "move"):
            for state in ("stop", "disable", "fail"):
                assert asked(request, live, state=state)[1]["state"] == state
        assert asked("unmigrate", {"force_live": True}, last_node="hv2")[1]["state"] == "migrate-live"

    @given(
        request=st.sampled_from(["migrate", "unmigrate", "move"]),
        target=st.sampled_from([None, "hv1", "hv2", "hv3", "down", "drained", "nowhere"]),
        home=st.sampled_from(["", "hv1", "hv2", "down"]),
        limit=st.sampled_from([None, ["hv1"], ["hv2", "down"]]),
        force=st.booleans(),
    )
    def test_it_is_never_sent_to_itself_nor_to_a_host_that_does_not_work(
        self, request: str, target: str | None, home: str, limit: list[str] | None, force: bool
    ) -> None:
        answer, writes = asked(request, {"target": target, "force": force}, last_node=home, node_limit=limit)
        if answer == "accepted":
            assert writes["node"] in ("hv2", "hv3")
            assert writes["node"] != writes["last_node"]
            assert request == "unmigrate" or limit is None or writes["node"] in limit


def host(request: str, **more: Any) -> tuple[bool, str, dict[str, str]]:
    usual = {
        "name": "hv1",
        "mode": "coordinator",
        "daemon_state": "run",
        "router_state": "secondary",
        "domain_state": "ready",
    }
    answer = decide("node.request", request=request, node=usual | more)
    return answer["ok"], answer["code"], answer["writes"]


KEY = "base.config.primary_node"


class TestHosts:
    def test_an_unknown_host_is_refused(self) -> None:
        for request in ("primary", "secondary", "flush", "ready"):
            answer = decide("node.request", request=request, node=None)
            assert answer == {"ok": False, "code": "unknown_node", "writes": {}}

    def test_only_a_working_coordinator_takes_or_gives_the_role(self) -> None:
        for request in ("primary", "secondary"):
            assert host(request, mode="hypervisor", daemon_state="stop") == (False, "not_coordinator", {})
            for state in ("init", "shutdown", "stop", "dead", "fenced"):
                assert host(request, daemon_state=state, router_state=request) == (False, "not_active", {})

    def test_asking_to_be_primary(self) -> None:
        assert host("primary") == (True, "accepted", {KEY: "hv1"})
        assert host("primary", router_state="primary") == (True, "already", {})
        assert host("primary", router_state="relinquish") == (True, "accepted", {KEY: "hv1"})

    def test_nobody_but_the_primary_can_be_deposed(self) -> None:
        assert host("secondary", router_state="primary") == (True, "accepted", {KEY: "none"})
        assert host("secondary", router_state="takeover") == (True, "accepted", {KEY: "none"})
        for state in ("secondary", "relinquish", "client"):
            assert host("secondary", router_state=state) == (True, "already", {})

    def test_emptying_and_taking_back(self) -> None:
        assert host("flush") == (True, "accepted", {"node.state.domain": "flush"})
        assert host("flush", domain_state="unflush") == (True, "accepted", {"node.state.domain": "flush"})
        assert host("flush", domain_state="flushed") == (True, "already", {})
        assert host("ready", domain_state="flushed") == (True, "accepted", {"node.state.domain": "unflush"})
        assert host("ready") == (True, "already", {})
        assert host("flush", mode="hypervisor") == (True, "accepted", {"node.state.domain": "flush"})

    def test_a_host_that_does_not_work_takes_no_request_that_would_wait_for_it(self) -> None:
        assert host("flush", daemon_state="stop") == (False, "not_active", {})
        assert host("ready", daemon_state="dead", domain_state="flushed") == (False, "not_active", {})
        assert host("flush", daemon_state="dead", domain_state="flushed") == (True, "already", {})

    def test_a_request_that_says_nothing_about_a_host_is_refused(self) -> None:
        assert decide("node.request", request="flush") == {"error": "invalid"}
        assert decide("node.request", request="reboot", node=None) == {"error": "invalid"}
