"""The daemon itself: keepalives, stopping; and what all of its decisions have in common."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import TABLE, decide, node

from outlive.cli import decision_table


def cycle(collectors: dict[str, tuple[str, float, dict[str, Any]]], **more: Any) -> dict[str, Any]:
    told = {n: {"start": start, "duration": took, "values": values} for n, (start, took, values) in collectors.items()}
    return decide("keepalive.cycle", **({"interval": 5, "collectors": told, "previous": {}} | more))


class TestKeepalive:
    def test_figures_that_come_in_time_are_written_over_the_old_ones(self) -> None:
        answer = cycle(
            {"vms": ("ok", 1.5, {"load": 2}), "ceph": ("ok", 4, {"osds": [1]})}, previous={"load": 1, "x": None}
        )
        assert answer == {
            "stamp_at": 0,
            "written": {"load": 2, "x": None, "osds": [1]},
            "stale": [],
            "warnings": [],
            "cycle_time": 4,
        }

    def test_what_is_late_or_cannot_be_asked_keeps_its_old_figures_and_is_named(self) -> None:
        answer = cycle(
            {"vms": ("ok", 4.1, {"a": 2}), "ceph": ("connect_error", 9, {"b": 2}), "b": ("ok", 99, {})},
            previous={"a": 1, "b": 1},
        )
        assert answer["written"] == {"a": 1, "b": 1}
        assert answer["stale"] == ["b", "ceph", "vms"]
        assert answer["warnings"] == ["connect:ceph", "timeout:b", "timeout:vms"]
        assert answer["cycle_time"] == 4

    @given(
        st.dictionaries(
            st.sampled_from("abc"), st.tuples(st.sampled_from(["ok", "connect_error"]), st.integers(0, 9)), max_size=3
        ),
        st.integers(1, 8),
    )
    def test_the_stamp_waits_for_nobody_and_the_cycle_ends_before_the_next(
        self, collectors: dict[str, tuple[str, int]], interval: int
    ) -> None:
        given_collectors = {n: (start, took, {n: "new"}) for n, (start, took) in collectors.items()}
        answer = cycle(given_collectors, interval=interval, previous=dict.fromkeys("abc", "old"))
        assert answer["stamp_at"] == 0
        assert answer["cycle_time"] <= interval - 1
        fresh = {n for n, value in answer["written"].items() if value == "new"}
        assert fresh == set(collectors) - set(answer["stale"])
        assert len(answer["warnings"]) == len(answer["stale"])


def stop(**more: Any) -> dict[str, Any]:
    usual = {"flush_active": False, "primary": False, "node_count": 3, "handover_seconds": None, "reason": "signal"}
    return decide("lifecycle.shutdown", **(usual | more))


class TestStopping:
    def test_keepalives_stop_nearly_last(self) -> None:
        assert stop(flush_active=True, primary=True, handover_seconds=3) == {
            "steps": [
                *("state_shutdown", "wait_flush", "stop_console", "release_primary", "stop_keepalive"),
                *("final_keepalive", "stop_netstats", "kill_dhcp", "state_stop", "disconnect", "drain_logs"),
            ],
            "exit_code": 0,
            "handover": "done",
        }

    def test_steps_that_have_nothing_to_do_are_left_out(self) -> None:
        assert "wait_flush" not in stop()["steps"]
        assert "release_primary" not in stop()["steps"]
        alone = stop(primary=True, node_count=1, handover_seconds=3)
        assert "release_primary" not in alone["steps"]
        assert alone["handover"] == stop()["handover"] == "none"

    def test_vms_leave_a_machine_that_goes_down_before_anything_else_ends(self) -> None:
        steps = stop(flush_active=True, migrate=True)["steps"]
        assert steps[:3] == ["state_shutdown", "migrate_vms", "wait_flush"]
        assert "migrate_vms" not in stop()["steps"]

    def test_a_role_that_nobody_takes_does_not_hold_it_up_for_ever(self) -> None:
        assert stop(primary=True, handover_seconds=120)["handover"] == "done"
        assert stop(primary=True, handover_seconds=120.5)["handover"] == "timeout"
        assert stop(primary=True, handover_seconds=None)["handover"] == "timeout"

    def test_a_failure_is_told_by_the_exit_code(self) -> None:
        assert stop(reason="failure")["exit_code"] == 1


VM = {"uuid": "a", "state": "start", "node": "hv1", "last_node": "", "memory": 1, "vcpus": 1}
EXAMPLES: dict[str, dict[str, Any]] = {
    "primary.handover_step": {"host": "a", "record": {"holder": "b", "handover": {"leaver": "a", "added": "upstream"}}},
    "fence.evaluate": {
        "config": {"keepalive_interval": 5, "fence_intervals": 6, "storm_fraction": 0.5, "transition_grace": 300},
        "maintenance": False,
        "observer": {"name": "hv1", "mode": "coordinator", "connected": True, "own_age": 1, "uptime": 99},
        "primary": "hv1",
        "nodes": [{"name": "hv2", "daemon_state": "run", "age": 40, "assigned_vms": 1, "fence_owner": None}],
    },
    "fence.agree": {
        "observer": "hv1",
        "switch": "s1",
        "suspect": {"uid": "u", "epoch": 1, "seq": 9, "silent_s": 7.5},
        "silence_s": 5,
        "coordinators": 3,
        "colleagues": [
            {
                "name": "hv2",
                "switch": "s2",
                "lives": True,
                "fresh": True,
                "sees": {"uid": "u", "epoch": 1, "seq": 9, "silent_s": 5.5},
            }
        ],
        "waited_s": 0.5,
        "wait_s": 2,
    },
    "fence.looks": {
        "silence_s": 30,
        "throws": 6,
        "throw_s": 5,
        "objective_s": 45,
        "guard_s": 30.5,
        "power_s": 12.25,
    },
    "fence.power": {"off": "ok", "mid": "Chassis Power is off", "on": "ok", "final": None},
    "fence.recover": {
        "node": "hv1",
        "fence_ok": True,
        "config": {"successful_fence": "migrate"},
        "vms": [VM | {"running_on": "hv1", "volumes": ["p/a"], "lock_release": "ok"}],
        "nodes": [node("hv2", free=9)],
    },
    "profile.validate": {"profile": "steady", "hosts": 40, "store_cas_per_s": 100},
    "config.validate_fencing": {
        "keepalive_interval": 5,
        "fence_intervals": 6,
        "saving_throws": 6,
        "self_fence_intervals": 0,
        "watchdog_timeout": 15,
    },
    "vm.event": {"this_node": "hv1", "state": "start", "node": "hv1", "running": False, "busy": None},
    "vm.request": {"request": "migrate", "args": {"target": None}, "vm": VM, "nodes": [node("hv2", free=9)]},
    "rbd.start_locks": {
        "vm_state": "start",
        "storage_ip": "10.0.0.1",
        "volumes": ["p/a"],
        "locks": [{"volume": "p/a", "id": "1", "locker": "c", "address": "10.0.0.1:0/7"}],
    },
    "select.node": {"vm": {"node": None, "memory": 1, "vcpus": 1}, "nodes": [node("hv2", free=9)]},
    "flush.run": {"node": "hv1", "op": "flush", "running": ["a"], "vms": [VM], "nodes": [node("hv2", free=9)]},
    "account.node": {"node": "hv1", "memory_total": 9, "vms": [VM | {"active_here": True, "live_memory": 1}]},
    "node.request": {
        "request": "flush",
        "node": {
            "name": "hv1",
            "mode": "coordinator",
            "daemon_state": "run",
            "router_state": "primary",
            "domain_state": "ready",
        },
    },
    "keepalive.cycle": {"interval": 5, "collectors": {"a": {"start": "ok", "duration": 1, "values": {"x": 1}}}},
    "host.score": {"now": 30, "window": 30, "quiet": 60, "samples": {"disk": [[10, 0.1], [20, 0.9]]}},
    "host.leave": {
        "host": "hv1",
        "degrading_for": 40,
        "causes": ["disk"],
        "scores": {"disk": 0},
        "peers": [{"name": "hv2", "scores": {"disk": 100}}],
    },
    "host.storage": {
        "host": "hv1",
        "guests": [{"vm": "db", "kind": "unreached", "lost_for": 40, "action": "restart"}],
        "peers": [{"name": "hv2"}],
    },
    "lifecycle.shutdown": {"flush_active": True, "primary": True, "node_count": 3, "reason": "signal"},
    "addr.plan": {"hostname": "hv1", "network": "10.0.0.0/24", "floating": "10.0.0.9", "selection": "by-id"},
    "net.mtu": {"type": "managed", "requested": "9000", "cluster_mtu": 1500},
    "sriov.sync": {
        "config": [{"phy": "eth1", "vfcount": 2}],
        "store": {"pf": {"eth0": {}}, "vf": {"eth0v0": {"pf": "eth0"}}},
        "hardware": {"eth1": [{"vf": 0, "pci": "0000:01:10.0", "address": "0a:00:00:00:00:01"}]},
    },
    "sriov.account": {
        "vfs": {"h1": {"eth1v0": {"phy_mac": "0a:00:00:00:00:01"}}},
        "vms": {"vm-1": {"node": "h1", "nics": [{"vf": "eth1v0", "mac": "0a:00:00:00:00:02"}]}},
        "ops": [["assign", "vm-1"]],
    },
    "links.plan": {
        "wanted": {
            "bridges": [{"bridge": "brcluster", "device": "eth0", "addresses": ["10.0.0.1/24"]}],
            "bridgeOf": {"cluster": "brcluster"},
            "networks": [{"network": "blue", "type": "managed", "vni": 7, "mtu": 1450, "lower": "brcluster"}],
        },
        "found": {"links": [{"name": "eth0", "up": True, "addresses": ["10.0.0.2/24"]}]},
    },
    "links.confirm": {"answered": False, "sinceS": 3, "limitS": 10},
    "console.tail": {"chunks_hex": ["6f6e650a", "74776f"], "lines": 1, "max_bytes": 99},
    "vm.start_order": {
        "vm": "app",
        "after": ["db"],
        "known": [{"vm": "db", "state": "coming", "why": "is to start on hv2", "after": ["disk"]}],
        "waited": 3,
    },
}
MAY_BE_EMPTY = frozenset({"sriov.sync", "sriov.account"})
"""Decisions about hosts that may have nothing: an empty input is one."""
STRANGE = [None, True, -1, 0, 1e15, 1e300, 10**30, "", "none", "\x00", [], [[]], {}, {"name": 1}]


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where anything stands in a document."""
    keys = document.keys() if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [at] * bool(at) + [found for key in keys for found in places(document[key], (*at, key))]


def changed(document: Any, at: tuple[Any, ...], value: Any, *, removed: bool) -> Any:
    copied = copy.deepcopy(document)
    inner = copied
    for key in at[:-1]:
        inner = inner[key]
    if removed:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return copied


class TestAllDecisions:
    @pytest.mark.slow
    def test_each_is_registered_and_has_an_example_and_a_schema(self) -> None:
        assert set(TABLE.list_names()) == set(EXAMPLES)
        assert set(TABLE.list_names()) <= set(decision_table().list_names())
        for name in TABLE.list_names():
            schema = TABLE.build_schema(name)
            assert schema["input"]
            assert schema["output"]
            assert schema["doc"]

    @pytest.mark.parametrize("name", sorted(EXAMPLES))
    def test_every_member_of_the_answer_is_always_there(self, name: str) -> None:
        answer = decide(name, **EXAMPLES[name])
        assert "error" not in answer
        schema = TABLE.build_schema(name)
        output = schema["$defs"][schema["output"]["$ref"].rpartition("/")[2]]
        assert set(answer) == set(output["properties"])

    @pytest.mark.parametrize("name", sorted(EXAMPLES))
    def test_members_that_it_does_not_know_are_overlooked(self, name: str) -> None:
        assert decide(name, **EXAMPLES[name], surprise=1) == decide(name, **EXAMPLES[name])

    @pytest.mark.parametrize("name", sorted(EXAMPLES))
    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"{}", b"3", b'"x"', b"\xff", b'{"a":1e999}'])
    def test_what_is_no_input_is_an_error(self, name: str, raw: bytes) -> None:
        if raw == b"{}" and name in MAY_BE_EMPTY:
            assert "error" not in json.loads(TABLE.decide_json(name, raw))
            return
        assert set(json.loads(TABLE.decide_json(name, raw))) == {"error"}

    @pytest.mark.parametrize("name", sorted(EXAMPLES))
    def test_bad_input_is_an_answer_and_never_an_exception(self, name: str) -> None:
        for at in places(EXAMPLES[name]):
            for value in STRANGE:
                raw = json.dumps(changed(EXAMPLES[name], at, value, removed=False)).encode()
                json.loads(TABLE.decide_json(name, raw))
            json.loads(TABLE.decide_json(name, json.dumps(changed(EXAMPLES[name], at, None, removed=True)).encode()))
