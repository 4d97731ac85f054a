"""Which functions of cards a host registers, and who has them after operations of virtual machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.node import DECISIONS
from outlive.runtime import DecisionTable

TABLE = DecisionTable(DECISIONS)


def decide(name: str, **given: Any) -> Any:
    return json.loads(TABLE.decide_json(name, json.dumps(given).encode()))


def sync(
    config: list[dict[str, Any]], hardware: dict[str, list[dict[str, Any]]] | None = None, **store: dict[str, Any]
) -> dict[str, Any]:
    answer: dict[str, Any] = decide("sriov.sync", config=config, store=store, hardware=hardware or {})
    return answer


def vf(index: int, pci: str | None = "0000:01:10.0") -> dict[str, Any]:
    return {"vf": index, "pci": pci, "address": "52:54:00:00:00:01"}


class TestRegistration:
    def test_configured_card_is_written_with_its_count_and_mtu(self) -> None:
        answer = sync([{"phy": "eth1", "vfcount": 4}, {"phy": "eth0", "vfcount": 8, "mtu": 9000}])
        assert answer["write_pf"] == {"eth0": {"mtu": 9000, "vfcount": 8}, "eth1": {"mtu": 1500, "vfcount": 4}}

    def test_null_mtu_is_the_usual_one(self) -> None:
        assert sync([{"phy": "eth0", "vfcount": 1, "mtu": None}])["write_pf"]["eth0"]["mtu"] == 1500

    def test_new_functions_are_added_in_natural_order(self) -> None:
        answer = sync([{"phy": "eth0", "vfcount": 12}], {"eth0": [vf(index) for index in (10, 2, 0)]})
        assert answer["add_vf"] == ["eth0v0", "eth0v2", "eth0v10"]
        assert (answer["keep_vf"], answer["skip_vf"]) == ([], [])

    def test_known_functions_stay_as_they_are_also_in_guests(self) -> None:
        answer = sync(
            [{"phy": "eth0", "vfcount": 2}],
            {"eth0": [vf(0, None), vf(1)]},
            pf={"eth0": {}},
            vf={"eth0v0": {"pf": "eth0"}, "eth0v1": {"pf": "eth0"}},
        )
        assert answer["keep_vf"] == ["eth0v0", "eth0v1"]
        assert (answer["add_vf"], answer["skip_vf"], answer["remove_vf"]) == ([], [], [])

    def test_new_function_whose_address_cannot_be_read_is_skipped(self) -> None:
        answer = sync([{"phy": "eth0", "vfcount": 2}], {"eth0": [vf(0, None), vf(1)]})
        assert (answer["add_vf"], answer["skip_vf"]) == (["eth0v1"], ["eth0v0"])

    def test_card_that_is_not_configured_leaves_with_its_functions(self) -> None:
        answer = sync(
            [{"phy": "eth1", "vfcount": 1}],
            {"eth0": [vf(0)], "eth1": [vf(0)]},
            pf={"eth0": {}, "eth10": {}, "eth9": {}},
            vf={"eth0v10": {"pf": "eth0"}, "eth0v9": {"pf": "eth0"}},
        )
        assert answer["remove_pf"] == ["eth0", "eth9", "eth10"]
        assert answer["remove_vf"] == ["eth0v9", "eth0v10"]
        assert answer["add_vf"] == ["eth1v0"]

    def test_known_function_that_the_hardware_does_not_show_is_neither_kept_nor_removed(self) -> None:
        answer = sync([{"phy": "eth0", "vfcount": 2}], {}, pf={"eth0": {}}, vf={"eth0v0": {"pf": "eth0"}})
        assert (answer["keep_vf"], answer["remove_vf"], answer["skip_vf"]) == ([], [], [])

    def test_bad_input_is_an_error(self) -> None:
        assert decide("sriov.sync", config=[{"vfcount": 2}]) == {"error": "invalid"}
        assert decide("sriov.sync", config=[{"phy": "eth0", "vfcount": -1}]) == {"error": "invalid"}

    @given(
        configured=st.sets(st.sampled_from("abc")),
        known=st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 3))),
        shown=st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans())),
    )
    def test_each_function_is_in_one_list_at_most_and_in_one_if_it_is_shown(
        self, configured: set[str], known: set[tuple[str, int]], shown: set[tuple[str, int, bool]]
    ) -> None:
        by_place = {(card, index): readable for card, index, readable in shown}
        hardware: dict[str, list[dict[str, Any]]] = {}
        for (card, index), readable in by_place.items():
            hardware.setdefault(card, []).append(vf(index, "0000:01:10.0" if readable else None))
        answer = sync(
            [{"phy": card, "vfcount": 4} for card in configured],
            hardware,
            pf={card: {} for card, _ in known},
            vf={f"{card}v{index}": {"pf": card} for card, index in known},
        )
        lists = [answer[name] for name in ("add_vf", "keep_vf", "skip_vf", "remove_vf")]
        flat = [name for one in lists for name in one]
        assert len(flat) == len(set(flat))
        assert {name for one in lists[:3] for name in one} == {
            f"{card}v{index}" for card, index in by_place if card in configured
        }
        assert set(lists[3]) == {f"{card}v{index}" for card, index in known if card not in configured}


FREE = {"used": False, "used_by": "", "reserved_by": "", "mac": "own", "phy_mac": "own"}


def used(vm: str, mac: str = "vm") -> dict[str, Any]:
    return {**FREE, "used": True, "used_by": vm, "mac": mac}


def reserved(vm: str) -> dict[str, Any]:
    return {**FREE, "reserved_by": vm}


def vm(node: str | None, *vfs: str, kind: str = "direct", method: str = "none") -> dict[str, Any]:
    return {"node": node, "method": method, "nics": [{"vf": one, "mac": "vm", "type": kind} for one in vfs]}


def account(vfs: dict[str, Any], vms: dict[str, Any], *ops: list[str]) -> tuple[list[str], Any]:
    answer = decide("sriov.account", vfs=vfs, vms=vms, ops=list(ops))
    return answer["results"], answer["vfs"]


class TestBooks:
    def test_assignment_books_all_interfaces(self) -> None:
        results, vfs = account({"a": {"p": FREE, "q": FREE}}, {"x": vm("a", "p", "q")}, ["assign", "x"])
        assert (results, vfs) == (["ok"], {"a": {"p": used("x"), "q": used("x")}})

    @pytest.mark.parametrize(
        ("books", "code"),
        [
            ({}, "vf_missing"),
            ({"p": used("y")}, "vf_in_use"),
            ({"p": {**FREE, "used": True}}, "vf_in_use"),
            ({"p": reserved("y")}, "vf_in_use"),
            ({"p": used("x", "old")}, "ok"),
            ({"p": reserved("x")}, "ok"),
        ],
    )
    def test_assignment_to_what_is_missing_or_anothers_is_refused(self, books: dict[str, Any], code: str) -> None:
        results, vfs = account({"a": books}, {"x": vm("a", "p")}, ["assign", "x"])
        assert results == [code]
        if code == "ok":
            assert (vfs["a"]["p"]["used_by"], vfs["a"]["p"]["mac"]) == ("x", "vm")
        else:
            assert vfs == {"a": books}

    def test_interfaces_are_looked_at_in_their_order_and_nothing_changes_if_one_is_refused(self) -> None:
        books = {"a": {"p": FREE, "q": used("y")}}
        assert account(books, {"x": vm("a", "p", "q", "gone")}, ["assign", "x"]) == (["vf_in_use"], books)
        assert account(books, {"x": vm("a", "gone", "q")}, ["assign", "x"]) == (["vf_missing"], books)

    def test_function_that_is_passed_through_has_the_vm_shut_down_for_its_moves(self) -> None:
        answer = decide(
            "sriov.account",
            vfs={"a": {"p": FREE, "q": FREE}},
            vms={
                "x": vm("a", "p", kind="hostdev"),
                "y": vm("a", "q", method="live"),
                "z": vm("a", "q", kind="hostdev"),
            },
            ops=[["assign", "x"], ["assign", "y"], ["assign", "z"]],
        )
        assert answer["results"] == ["ok", "ok", "vf_in_use"]
        assert answer["methods"] == {"x": "shutdown", "y": "live", "z": "none"}

    @pytest.mark.parametrize(
        ("books", "code"),
        [({"p": used("x")}, "ok"), ({"p": used("y")}, "not_owner"), ({"p": FREE}, "not_owner"), ({}, "vf_missing")],
    )
    def test_release_gives_back_what_is_the_vms_own(self, books: dict[str, Any], code: str) -> None:
        results, vfs = account({"a": books}, {"x": vm("a", "p")}, ["release", "x"])
        assert results == [code]
        assert vfs == {"a": {"p": FREE} if code == "ok" else books}

    @pytest.mark.parametrize(
        ("books", "code"),
        [
            ({"p": FREE}, "ok"),
            ({"p": reserved("x")}, "ok"),
            ({"p": reserved("y")}, "vf_in_use"),
            ({"p": used("y")}, "vf_in_use"),
            ({"p": used("x")}, "vf_in_use"),
            ({}, "vf_missing"),
        ],
    )
    def test_move_reserves_on_its_target(self, books: dict[str, Any], code: str) -> None:
        source = {"p": used("x")}
        results, vfs = account({"a": source, "b": books}, {"x": vm("a", "p")}, ["begin", "x", "b"])
        assert results == [code]
        assert vfs == {"a": source, "b": {"p": reserved("x")} if code == "ok" else books}

    def test_move_to_where_it_is_is_refused(self) -> None:
        assert account({"a": {}}, {"x": vm("a", "p")}, ["begin", "x", "a"])[0] == ["same_node"]

    def test_arrival_turns_the_reservation_into_use_and_frees_the_source(self) -> None:
        before = {"a": {"p": used("x"), "q": used("y")}, "b": {"p": reserved("x")}}
        results, vfs = account(before, {"x": vm("a", "p")}, ["commit", "x", "b"], ["release", "x"])
        assert (results, vfs) == (["ok", "ok"], {"a": {"p": FREE, "q": used("y")}, "b": {"p": FREE}})

    def test_arrival_leaves_alone_what_is_not_its_own_at_the_source(self) -> None:
        before = {"a": {"p": used("y")}, "b": {"p": reserved("x")}}
        assert account(before, {"x": vm("a", "p")}, ["commit", "x", "b"])[1]["a"] == {"p": used("y")}

    @pytest.mark.parametrize(
        ("books", "code"),
        [({"p": FREE}, "not_reserved"), ({"p": reserved("y")}, "not_reserved"), ({}, "vf_missing")],
    )
    def test_arrival_without_a_reservation_is_refused(self, books: dict[str, Any], code: str) -> None:
        before = {"a": {"p": used("x")}, "b": books}
        assert account(before, {"x": vm("a", "p")}, ["commit", "x", "b"]) == ([code], before)

    def test_abort_drops_its_own_reservations_and_nothing_else(self) -> None:
        before = {"a": {}, "b": {"p": reserved("x"), "q": reserved("y")}}
        results, vfs = account(before, {"x": vm("a", "p", "q", "gone")}, ["abort", "x", "b"], ["abort", "x", "b"])
        assert (results, vfs["b"]) == (["ok", "ok"], {"p": FREE, "q": reserved("y")})

    def test_fence_drops_reservations_on_that_host_and_keeps_uses(self) -> None:
        before = {"a": {"p": reserved("x"), "q": used("y")}, "b": {"p": reserved("x")}}
        results, vfs = account(before, {}, ["fenced", "a"])
        assert (results, vfs) == (["ok"], {"a": {"p": FREE, "q": used("y")}, "b": {"p": reserved("x")}})

    def test_host_that_is_back_frees_what_is_assigned_elsewhere(self) -> None:
        before = {"a": {"p": used("x"), "q": used("y"), "r": used("gone"), "s": reserved("x"), "t": used("nowhere")}}
        vms = {"x": vm("b", "p"), "y": vm("a", "q"), "nowhere": vm(None, "t")}
        results, vfs = account(before, vms, ["rejoin", "a"])
        assert results == ["ok"]
        assert vfs["a"] == {"p": FREE, "q": used("y"), "r": FREE, "s": reserved("x"), "t": FREE}

    @pytest.mark.parametrize(
        ("op", "code"),
        [
            (["assign", "gone"], "unknown"),
            (["assign", "lost"], "unknown"),
            (["release", "gone"], "unknown"),
            (["begin", "x", "gone"], "unknown"),
            (["begin", "gone", "a"], "unknown"),
            (["begin", "x"], "unknown"),
            (["commit", "x", "gone"], "unknown"),
            (["abort", "gone", "a"], "unknown"),
            (["fenced", "gone"], "unknown"),
            (["rejoin", "gone"], "unknown"),
            (["steal", "x"], "unknown_op"),
            ([], "unknown_op"),
        ],
    )
    def test_unknown_names_are_told_apart(self, op: list[str], code: str) -> None:
        assert account({"a": {}}, {"x": vm("a"), "lost": vm("gone", "p")}, op)[0] == [code]

    def test_bad_input_is_an_error(self) -> None:
        assert decide("sriov.account", ops="assign") == {"error": "invalid"}

    @given(
        ops=st.lists(
            st.one_of(
                st.tuples(st.sampled_from(["assign", "release"]), st.sampled_from("xyz")),
                st.tuples(st.sampled_from(["begin", "commit", "abort"]), st.sampled_from("xyz"), st.sampled_from("ab")),
                st.tuples(st.sampled_from(["fenced", "rejoin"]), st.sampled_from("ab")),
            ),
            max_size=12,
        )
    )
    def test_no_sequence_gives_a_function_to_two_or_changes_anything_when_refused(
        self, ops: list[tuple[str, ...]]
    ) -> None:
        vfs = {host: {"p": FREE, "q": FREE} for host in "ab"}
        vms = {"x": vm("a", "p"), "y": vm("b", "p", "q"), "z": vm("a", "q", kind="hostdev")}
        results, after = account(vfs, vms, *(list(op) for op in ops))
        for functions in after.values():
            for one in functions.values():
                assert one["used"] is bool(one["used_by"])
                assert one["mac"] == ("vm" if one["used"] else "own")
                assert not (one["used"] and one["reserved_by"] not in ("", one["used_by"]))
        accepted = [list(op) for op, code in zip(ops, results, strict=True) if code == "ok"]
        assert account(vfs, vms, *accepted) == (["ok"] * len(accepted), after)
