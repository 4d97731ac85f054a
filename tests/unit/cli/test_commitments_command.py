"""``outlive commitments``: what it prints, and what it answers by exit code. Everything here is offline."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from tests.support.command import outlive
from tests.support.sales import FLAVORS, Market, asked, batch, host, in_market, later, project, vm

from outlive.commitments import Charged, begin_month, month_begin, record_charges
from outlive.resources import DUMPED, Assigned, Resource, State, encode_state
from outlive.store import list_all

SOLD = {
    "commitments": {
        "flavorGroupResources": {
            "*": {
                "ram": {"handlesCommitments": True, "handlesDryRun": True},
                "cores": {"handlesCommitments": True, "handlesDryRun": True},
            }
        }
    },
    "failover": {"flavorFailoverRequirements": {"*": 0}},
}
NOVEMBER = month_begin("2026-11")
RUNS = vm("vm-1", "h1", project="p1")
ABROAD = replace(vm("vm-2", "h3", project="p3"), status=replace(RUNS.status, assigned=Assigned(hypervisor="h3")))
"""A VM of zone-a that runs on a host of another zone."""
HOSTS = [host("h1", gib=64, vms=[RUNS]), host("h2", gib=64), host("h3", gib=8, vms=[ABROAD], zone="zone-b")]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts of 64 GiB with a VM; ``p1`` has 8 GiB, ``p2`` all but 24 GiB until the day after."""
    folder = tmp_path_factory.mktemp("sold")
    found: list[Resource] = []
    taken: list[datetime] = []

    async def story(market: Market) -> None:
        ends = later(2 * 86_400)
        assert await market.change(batch(project("p1", asked("small-1", 1)))) == ""
        assert await market.change(batch(project("p2", asked("large-1", 12, expires=ends)))) == ""
        await asyncio.sleep(5)  # until both are applied
        taken.append(later(0))
        found.extend([one for kind in DUMPED async for one in list_all(market.store, kind)])

    in_market([*HOSTS, RUNS, ABROAD], story)
    (folder / "state.json").write_bytes(encode_state(State(taken_at=taken[0], objects=tuple(found))))
    (folder / "outlive.yaml").write_text(yaml.safe_dump(SOLD))
    return folder


def said(cloud: Path, *words: str, settings: bool = True) -> tuple[int, str]:
    config = ("--config", cloud / "outlive.yaml") if settings else ()
    result = outlive("commitments", *words, "--state", cloud / "state.json", *config)
    return result.code, result.out + result.err


def document(cloud: Path, *words: str, settings: bool = True) -> Any:
    return json.loads(said(cloud, *words, "-o", "json", settings=settings)[1])


def test_commitments_are_listed_by_project_group_and_zone(cloud: Path) -> None:
    assert [one["uuid"] for one in document(cloud, "list", settings=False)] == ["large-1", "small-1"]
    assert [one["uuid"] for one in document(cloud, "list", "--project", "p1", settings=False)] == ["small-1"]
    assert document(cloud, "list", "--zone", "zone-b", settings=False) == []
    code, text = said(cloud, "list", settings=False)
    assert code == 0
    assert "large-1" in text
    assert "Accepted" in text


def test_one_commitment_is_shown_with_its_slots(cloud: Path) -> None:
    shown = document(cloud, "show", "large-1", settings=False)
    assert sum(int(one["size"]["memory"].removesuffix("Gi")) for one in shown["slots"]) == 96
    assert said(cloud, "show", "large-1", settings=False)[0] == 0
    code, text = said(cloud, "show", "nobody-1", settings=False)
    assert code == 4
    assert "outlive commitments list" in text


def test_what_can_be_had_is_a_yes_and_what_cannot_a_no_with_what_would_help(cloud: Path) -> None:
    ask = ("explain", "--project", "p3", "--group", "g", "--zone", "zone-a", "--amount")
    assert said(cloud, *ask, "2")[0] == 0
    code, text = said(cloud, *ask, "64Gi")
    assert code == 1
    assert text.startswith("Insufficient capacity: ")
    assert "What would help:" in text
    assert "filter_has_enough_capacity" in text
    answer = document(cloud, *ask, "64Gi")
    assert answer["possible"] is False
    assert answer["slots"][0]["nearest"]["host"] in ("h1", "h2")


def test_a_commitment_that_is_there_is_explained_by_its_uuid(cloud: Path) -> None:
    assert said(cloud, "explain", "small-1")[0] == 0
    assert said(cloud, "explain", "nobody-1")[0] == 4
    assert said(cloud, "explain")[0] == 2


@pytest.mark.parametrize(
    ("amount", "code", "words"),
    [("3", 0, ""), ("7Gi", 3, "no multiple of 8 GiB"), ("many", 3, "write 8, 64Gi or 16cores"), ("2cores", 0, "")],
)
def test_amounts_are_units_memory_or_cores(cloud: Path, amount: str, code: int, words: str) -> None:
    ask = ("explain", "--project", "p3", "--group", "g", "--zone", "zone-a", "--amount", amount)
    got, text = said(cloud, *ask)
    assert (got, words in text) == (code, True)


def test_an_unknown_group_names_those_that_there_are(cloud: Path) -> None:
    code, text = said(cloud, "explain", "--project", "p", "--group", "x", "--zone", "zone-a", "--amount", "1")
    assert code == 4
    assert "known are: g" in text


def test_usage_and_capacity_are_told_for_each_zone(cloud: Path) -> None:
    usage = {(one["project"], one["kind"]): one for one in document(cloud, "usage")}
    assert (usage["p1", "ram"]["used"], usage["p1", "ram"]["covered"], usage["p1", "ram"]["payg"]) == (8, 8, 0)
    assert usage["p2", "ram"]["committed"] == 96
    assert {one["zone"] for one in document(cloud, "usage", "--project", "p3")} == {"zone-a"}, (
        "the VM's own zone counts"
    )
    group, other = document(cloud, "capacity")
    assert (group["group"], group["usedBytes"], group["committedBytes"]) == ("g", 16 * 2**30, 96 * 2**30)
    assert (other["zone"], other.get("usedBytes", 0)) == ("zone-b", 0)
    abroad = 8 * 2**30
    assert group["usedBytes"] - abroad + group["committedBytes"] + group["freeBytes"] <= 128 * 2**30


def test_the_history_of_a_month_says_how_long_vms_were_charged(cloud: Path, tmp_path: Path) -> None:
    history = record_charges(
        begin_month("p1", "2026-11", None), {"small-1": Charged(type="memory", vms=("vm-1",))}, NOVEMBER
    )
    history = record_charges(history, {}, NOVEMBER + 5400)
    taken = datetime.fromtimestamp(NOVEMBER + 7200, UTC)
    (tmp_path / "state.json").write_bytes(encode_state(State(taken_at=taken, objects=(history,))))
    (tmp_path / "outlive.yaml").write_text((cloud / "outlive.yaml").read_text())
    (share,) = document(tmp_path, "usage", "--history", "2026-11")
    assert (share["commitment"], share["coveredSeconds"]) == ("small-1", 5400)
    assert share["vms"] == {"vm-1": [["2026-11-01T00:00:00Z", "2026-11-01T01:30:00Z"]]}
    code, text = said(tmp_path, "usage", "--history", "2026-11", "--project", "p1")
    assert (code, "1.50" in text) == (0, True)
    assert "no VM was charged" in said(tmp_path, "usage", "--history", "2026-10")[1]
    code, text = said(tmp_path, "usage", "--history", "last month")
    assert (code, "such as 2026-11" in text) == (3, True)
    assert said(tmp_path, "usage", "--history", "2026-11", "--zone", "zone-a")[0] == 2


@pytest.mark.slow
def test_those_who_agree_are_a_yes(cloud: Path) -> None:
    assert said(cloud, "check") == (0, "commitments, slots, hosts and VMs agree\n")


def test_disagreements_are_a_no_and_are_not_repaired_in_a_file(cloud: Path, tmp_path: Path) -> None:
    lines = (cloud / "state.json").read_text().splitlines()
    slot = '"metadata":{"name":"commitment-small-1-0"'
    kept = [line for line in lines if not (line.startswith('{"kind":"Reservation"') and slot in line)]
    assert len(kept) == len(lines) - 1
    (tmp_path / "state.json").write_text("\n".join(kept))
    (tmp_path / "outlive.yaml").write_text((cloud / "outlive.yaml").read_text())
    code, text = said(tmp_path, "check")
    assert code == 1
    assert "slots-short" in text
    assert said(tmp_path, "check", "--apply")[0] == 2


@pytest.mark.parametrize("amount", ["0", "0Gi", "0cores"])
def test_nothing_is_no_amount_to_commit_to(cloud: Path, amount: str) -> None:
    code, text = said(cloud, "explain", "--project", "p1", "--group", "g", "--zone", "zone-a", "--amount", amount)
    assert (code, "commits to nothing" in text) == (3, True), text


def test_a_zone_that_no_host_is_in_is_named_with_the_nearest(cloud: Path) -> None:
    for words in (
        ("explain", "--project", "p1", "--group", "g", "--zone", "zone-aa", "--amount", "2"),
        ("whatif", "--add", "p3:g:zone-aa:2"),
    ):
        code, text = said(cloud, *words)
        assert code == 4, text
        assert "there is no zone 'zone-aa'" in text
        assert "did you mean zone-a?" in text


def test_what_if_a_host_dies_those_who_lose_slots_are_named(cloud: Path) -> None:
    code, text = said(cloud, "whatif", "--lose", "h2")
    assert code == 1
    assert "Cannot be had:" in text
    answer = document(cloud, "whatif", "--lose", "h2")
    assert [one["uuid"] for one in answer["refused"]] == ["large-1"]
    assert [one["uuid"] for one in answer["accepted"]] == ["small-1"]


def test_what_if_any_host_dies_those_who_could_not_be_filled_are_named(cloud: Path) -> None:
    code, text = said(cloud, "whatif", "--any-host")
    assert (code, "2 commitments could not be filled" in text) == (1, True)
    found = {(one["host"], one["commitment"]) for one in document(cloud, "whatif", "--any-host")}
    assert found == {("h1", "large-1"), ("h1", "small-1"), ("h2", "large-1")}
    code, text = said(cloud, "whatif", "--any-host", "--without", "large-1")
    assert (code, "every confirmed commitment can be filled" in text) == (0, True)
    assert said(cloud, "whatif", "--any-host", "--add", "p3:g:zone-a:2")[0] == 2


def test_what_if_takes_further_commitments_in_their_order(cloud: Path) -> None:
    answer = document(cloud, "whatif", "--add", "p3:g:zone-a:2", "--add", "p3:g:zone-a:2")
    assert [one["uuid"] for one in answer["accepted"] if one["hypothetical"]] == ["what-if-1"]
    assert [one["uuid"] for one in answer["refused"]] == ["what-if-2"]
    freed = document(cloud, "whatif", "--without", "large-1", "--add", "p3:g:zone-a:2", "--add", "p3:g:zone-a:2")
    assert freed["refused"] == []


def test_what_if_flavors_are_others(cloud: Path) -> None:
    ask = ("whatif", "--add", "p3:x:zone-a:12Gi", "--flavor", "x12=2,12Gi,x")
    assert said(cloud, *ask)[0] == 0
    gone = [word for one in FLAVORS for word in ("--flavor", f"{one.name}=")]
    code, text = said(cloud, "whatif", *gone)
    assert code == 1
    assert "flavor group not found: g" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("--add", "p3:g"), 3),
        (("--lose", "h9"), 4),
        (("--without", "nobody-1"), 4),
        (("--flavor", "m8"), 3),
        (("--flavor", "nobody="), 4),
        (("--flavor", "new=2,4Gi"), 3),
    ],
)
def test_what_if_says_what_it_does_not_understand(cloud: Path, words: tuple[str, ...], code: int) -> None:
    assert said(cloud, "whatif", *words)[0] == code


def test_commitments_are_only_made_by_a_server(cloud: Path) -> None:
    for words in (
        ("request", "--project", "p", "--group", "g", "--zone", "z", "--amount", "1"),
        ("delete", "small-1"),
        ("e2e",),
    ):
        result = outlive("commitments", *words, "--state-dir", cloud / "nothing")
        assert result.code == 2, result.err
        assert "start outlive up" in result.err
