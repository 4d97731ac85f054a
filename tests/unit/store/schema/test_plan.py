"""``schema.plan``: each rule by a case, and all of them against plain sets of paths."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import Invalid
from outlive.resources import convert
from outlive.store.schema import PathConflict, SchemaPlanInput, UnknownVersion, plan_schema

Schemas = Mapping[str, Mapping[str, Mapping[str, str]]]


def plan(
    schemas: Schemas, tree: tuple[str, ...] = (), start: int = 0, to: int = 1, defaults: Mapping[str, str] | None = None
) -> list[list[str]]:
    raw = {"from": start, "to": to, "schemas": schemas, "tree": tree, "defaults": defaults or {}}
    return [list(op) for op in plan_schema(convert(SchemaPlanInput, raw)).ops]


def base(**paths: str) -> dict[str, dict[str, str]]:
    return {"base": {key.replace("_", "."): path for key, path in paths.items()}}


CASES = {
    "a key of base is renamed with what lies below": (
        {"0": base(a="/a"), "1": base(a="/b")},
        ("/a/x/y",),
        [["rename", "/a", "/b"]],
    ),
    "renames come before creates, and creates before deletes": (
        {"0": base(a="/a", c="/c"), "1": base(a="/z", b="/b")},
        ("/a", "/c"),
        [["rename", "/a", "/z"], ["create", "/b", ""], ["delete", "/c"]],
    ),
    "parents are created first, by depth and not by text": (
        {"0": base(), "1": base(deep="/a/b/c", z="/z", a="/a", b="/a/b")},
        (),
        [["create", "/a", ""], ["create", "/z", ""], ["create", "/a/b", ""], ["create", "/a/b/c", ""]],
    ),
    "paths of one depth sort as text, not naturally": (
        {"0": base(), "1": base(a="/k2", b="/k10")},
        (),
        [["create", "/k10", ""], ["create", "/k2", ""]],
    ),
    "children are deleted before parents": (
        {"0": base(a="/a", b="/a/b", c="/a/b/c"), "1": base()},
        ("/a/b/c",),
        [["delete", "/a/b/c"], ["delete", "/a/b"], ["delete", "/a"]],
    ),
    "a delete takes what no key names along": ({"0": base(a="/a"), "1": base()}, ("/a/left/over",), [["delete", "/a"]]),
    "a create is skipped where the path exists": ({"0": base(), "1": base(a="/a")}, ("/a",), []),
    "a create is skipped where an earlier one made the path": (
        {"0": base(), "1": base(a="/a", b="/a")},
        (),
        [["create", "/a", ""]],
    ),
    "a create is skipped where a parent of what is there is meant": ({"0": base(), "1": base(a="/a")}, ("/a/b",), []),
    "a delete is skipped where the path is absent": ({"0": base(a="/a"), "1": base()}, (), []),
    "a rename is skipped where its source is absent": ({"0": base(a="/a"), "1": base(a="/b")}, ("/b",), []),
    "a rename to a place below a new path leaves that path to be created": (
        {"0": base(a="/a"), "1": base(a="/n/a", n="/n")},
        ("/a",),
        [["rename", "/a", "/n/a"], ["create", "/n", ""]],
    ),
    "an instance section has one operation for each instance": (
        {
            "0": {**base(node="/nodes"), "node": {"tags": "/tags", "old": "/old"}},
            "1": {**base(node="/nodes"), "node": {"tags": "/labels", "new": "/new"}},
        },
        ("/nodes/hv1/tags", "/nodes/hv1/old", "/nodes/hv2"),
        [
            ["rename", "/nodes/hv1/tags", "/nodes/hv1/labels"],
            ["create", "/nodes/hv1/new", "7"],
            ["create", "/nodes/hv2/new", "7"],
            ["delete", "/nodes/hv1/old"],
        ],
    ),
    "instances are those of the tree as the operations before have left it": (
        {
            "0": {**base(node="/nodes"), "node": {"tags": "/tags"}},
            "1": {**base(node="/hosts"), "node": {"tags": "/labels"}},
        },
        ("/nodes/hv1/tags",),
        [["rename", "/nodes", "/hosts"], ["rename", "/hosts/hv1/tags", "/hosts/hv1/labels"]],
    ),
    "a volume lies two levels deep and a snapshot three": (
        {
            "0": {**base(volume="/v", snapshot="/s"), "volume": {}, "snapshot": {}},
            "1": {**base(volume="/v", snapshot="/s"), "volume": {"x": "/x"}, "snapshot": {"x": "/x"}},
        },
        ("/v/p/one/stats", "/v/q", "/s/p/one/snap", "/s/p/two"),
        [["create", "/v/p/one/x", ""], ["create", "/s/p/one/snap/x", ""]],
    ),
    "sections go in their order, and backwards for deletes": (
        {
            "0": {**base(node="/n", pool="/p"), "node": {"a": "/a"}, "pool": {"a": "/a"}},
            "1": {**base(node="/n", pool="/p"), "node": {"b": "/b"}, "pool": {"b": "/b"}},
        },
        ("/n/1/a", "/p/1/a"),
        [["create", "/n/1/b", ""], ["create", "/p/1/b", ""], ["delete", "/p/1/a"], ["delete", "/n/1/a"]],
    ),
    "sub-sections are never expanded": (
        {"0": {**base(tag="/tags"), "tag": {"a": "/a"}}, "1": {**base(tag="/tags"), "tag": {"a": "/b"}}},
        ("/tags/one/a",),
        [],
    ),
    "an instance section whose path no schema has is left out": (
        {"0": {**base(), "node": {"a": "/a"}}, "1": {**base(), "node": {"a": "/b"}}},
        ("/nodes/hv1/a",),
        [],
    ),
    "a section that is given up loses its instances' keys, then itself": (
        {"0": {**base(osd="/osds"), "osd": {"a": "/a"}}, "1": base()},
        ("/osds/1/a",),
        [["delete", "/osds/1/a"], ["delete", "/osds"]],
    ),
}


@pytest.mark.parametrize(("schemas", "tree", "ops"), CASES.values(), ids=CASES)
def test_the_plan_of_one_step(schemas: Schemas, tree: tuple[str, ...], ops: list[list[str]]) -> None:
    assert plan(schemas, tree, defaults={"node.new": "7"}) == ops


THREE: Schemas = {"1": base(a="/a"), "2": base(a="/b", n="/n"), "3": base(a="/c"), "10": base()}


def test_every_pair_on_the_way_is_planned_on_what_the_one_before_has_left() -> None:
    assert plan(THREE, ("/a/x",), 1, 3) == [
        ["rename", "/a", "/b"],
        ["create", "/n", ""],
        ["rename", "/b", "/c"],
        ["delete", "/n"],
    ]


def test_the_way_back_walks_down() -> None:
    assert plan(THREE, ("/c",), 3, 1) == [
        ["rename", "/c", "/b"],
        ["create", "/n", ""],
        ["rename", "/b", "/a"],
        ["delete", "/n"],
    ]


def test_no_way_has_no_operations() -> None:
    assert plan(THREE, ("/a",), 2, 2) == []


@pytest.mark.parametrize(("start", "to"), [(0, 1), (1, 4), (3, 10), (10, 3), (4, 4), (-1, 1)])
def test_a_version_without_a_document_is_an_error(start: int, to: int) -> None:
    with pytest.raises(UnknownVersion) as error:
        plan(THREE, ("/a",), start, to)
    assert error.value.code == "unknown_version"


def test_a_rename_between_two_paths_that_exist_is_a_conflict() -> None:
    with pytest.raises(PathConflict) as error:
        plan({"0": base(a="/a"), "1": base(a="/b")}, ("/a", "/b"))
    assert error.value.code == "conflict"


def test_two_keys_that_change_places_are_a_conflict() -> None:
    with pytest.raises(PathConflict):
        plan({"0": base(a="/a", b="/b"), "1": base(a="/b", b="/a")}, ("/a", "/b"))


def test_a_member_that_is_missing_is_invalid() -> None:
    with pytest.raises(Invalid):
        convert(SchemaPlanInput, {"from": 1, "schemas": {}})


keys = st.sampled_from(["a", "b", "c", "d"])
paths = st.lists(st.sampled_from("xyz"), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
sections = st.fixed_dictionaries(
    {
        "base": st.dictionaries(keys, paths, max_size=4).flatmap(
            lambda found: st.sampled_from(["/n", "/m/n"]).map(lambda node: {**found, "node": node})
        ),
        "node": st.dictionaries(keys, paths, max_size=3),
    }
)
trees = st.frozensets(st.one_of(paths, st.tuples(st.sampled_from(["/n/1", "/n/2"]), paths).map("".join)), max_size=8)


def closed(tree: frozenset[str]) -> set[str]:
    found: set[str] = set()
    for path in tree:
        parts = path.split("/")
        found |= {"/".join(parts[:length]) for length in range(2, len(parts) + 1)}
    return found


def carry_out(tree: set[str], ops: list[list[str]]) -> set[str]:
    """As a plain set of paths sees it; every operation is one that can be done."""
    for op in ops:
        path = op[1]
        below = {one for one in tree if one == path or one.startswith(f"{path}/")}
        match op[0]:
            case "rename":
                assert path in tree
                assert op[2] not in tree
                tree = (tree - below) | {op[2] + one[len(path) :] for one in below}
            case "create":
                assert path not in tree
                tree = tree | {path}
            case "delete":
                assert path in tree
                tree = tree - below
    return tree


@given(old=sections, new=sections, tree=trees)
def test_every_operation_can_be_done_and_the_result_is_that_of_the_new_schema(
    old: dict[str, dict[str, str]], new: dict[str, dict[str, str]], tree: frozenset[str]
) -> None:
    try:
        ops = plan({"1": old, "2": new}, tuple(tree), 1, 2)
    except PathConflict:
        return
    after = carry_out(closed(tree), ops)
    kinds = [op[0] for op in ops]
    assert kinds == sorted(kinds, key=["rename", "create", "delete"].index)
    deleted = [op[1] for op in ops if op[0] == "delete"]
    for key in new["base"].keys() - old["base"].keys():
        path = new["base"][key]
        assert path in after or any(path == one or path.startswith(f"{one}/") for one in deleted)
    for key in old["base"].keys() - new["base"].keys():
        assert old["base"][key] not in after


@given(schema=sections, tree=trees)
def test_a_schema_that_stays_has_nothing_to_do(schema: dict[str, dict[str, str]], tree: frozenset[str]) -> None:
    assert plan({"1": schema, "2": schema}, tuple(tree), 1, 2) == []
