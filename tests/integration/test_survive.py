"""``outlive survive`` and ``outlive failover tolerance`` on a state file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Result, outlive, planned

HOSTS = "name,cpu,memory,zone,domain-rack\n" + "".join(f"h{n},64,256Gi,z{n // 6},r{n // 3}\n" for n in range(12))
VMS = "id,cpu,memory,host,flavor,zone\n" + "".join(f"v{n:02},4,8Gi,h{n % 12},m,z{n % 12 // 6}\n" for n in range(24))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve hosts in two zones and four racks, every VM with its two slots; planned for hosts, not for racks."""
    return planned(tmp_path_factory.mktemp("fleet"), HOSTS, VMS)


def read(result: Result) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.out)
    return document


def survive(state: Path, *arguments: str) -> Result:
    return outlive("survive", *arguments, "--state", state)


def test_as_many_failures_as_slots_are_survived_and_no_more(state: Path) -> None:
    two = survive(state, "--failures", "2", "-o", "json")
    document = read(two)
    assert two.code == 0
    assert {"failures", "cases", "lost", "holds"} <= set(document)
    assert (document["failures"], document["cases"], document["lost"], document["holds"]) == (2, 66, [], True)
    assert document["method"] == "tolerance"
    looked = read(survive(state, "--failures", "2", "--enumerate", "-o", "json"))
    assert (looked["holds"], looked["method"], looked["affected"]) == (True, "enumeration", 24 * 11)
    three = survive(state, "--failures", "3", "-o", "json")
    assert three.code == 1
    assert {one["vm"] for one in read(three)["lost"]} == {f"v{n:02}" for n in range(24)}


def test_named_hosts_fail_together_and_every_vm_is_told_its_slot(state: Path) -> None:
    result = survive(state, "h1,h7", "-o", "json")
    document = read(result)
    assert result.code == 0
    assert (document["failures"], document["cases"], document["holds"]) == (2, 1, True)
    assert {one["vm"]: one["from"] for one in document["landing"]} == {
        "v01": "h1",
        "v07": "h7",
        "v13": "h1",
        "v19": "h7",
    }
    assert not {one["host"] for one in document["landing"]} & {"h1", "h7"}
    assert len({one["slot"] for one in document["landing"]}) == 4


def test_racks_fail_by_name_or_whichever_it_is(state: Path) -> None:
    one = read(survive(state, "--domain", "rack=r1", "-o", "json"))
    assert one["affected"] == 6
    both = read(survive(state, "--domain", "rack=r1", "--domain", "rack=r2", "h3,h11", "-o", "json"))
    assert (both["failures"], both["affected"]) == (3, 14)
    every = read(survive(state, "--domain", "rack", "-o", "json"))
    assert (every["unit"], every["failures"], every["cases"]) == ("rack", 1, 4)
    by_rack = read(outlive("failover", "tolerance", "--by", "rack", "--state", state, "-o", "json"))
    assert every["holds"] == (by_rack["fleet"] >= 1)
    assert every["lostVms"] == by_rack["counts"].get("0", 0)
    lost = {one["vm"] for one in every["lost"] if one["case"] == ["rack=r1"]}
    assert {one["vm"] for one in one["lost"]} == lost


def test_every_case_is_a_line(state: Path) -> None:
    result = survive(state, "--failures", "2", "--cases")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, len(lines)) == (0, 66)
    assert sum(len(line["landing"]) for line in lines) == 24 * 11
    assert not any(line["lost"] for line in lines)
    assert survive(state, "--domain", "rack", "--cases").code == (
        0 if survive(state, "--domain", "rack").code == 0 else 1
    )


def test_vms_that_need_no_slots_are_a_number_and_not_lost(state: Path) -> None:
    document = read(survive(state, "--failures", "1", "-k", "0", "-o", "json"))
    assert (document["holds"], document["lost"], document["affected"], document["unprotected"]) == (True, [], 0, 24)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "nothing fails"),
        (("h1", "--failures", "2"), 2, "cannot both fail"),
        (("--domain", "rack=r1", "--failures", "2"), 2, "cannot both fail"),
        (("--domain", "rack", "--domain", "zone"), 2, "counted at once"),
        (("--failures", "1", "--cases", "-o", "yaml"), 2, "lines of JSON"),
        (("h1,h99",), 4, "no host 'h99'"),
        (("--domain", "row"), 4, "known: rack"),
        (("--domain", "rack=r9"), 4, "known: r0, r1, r2, r3"),
    ],
)
def test_what_cannot_be_asked_is_said(state: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    result = survive(state, *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.line


def test_tolerance_names_the_weakest_and_what_is_too_much_for_them(state: Path) -> None:
    document = read(outlive("failover", "tolerance", "--state", state, "-o", "json"))
    assert (document["unit"], document["fleet"], document["zones"]) == ("host", 2, {"z0": 2, "z1": 2})
    assert document["counts"] == {"2": 24}
    for weak in document["weakest"]:
        assert len(weak["case"]) == 3
        lost = read(survive(state, ",".join(weak["case"]), "-o", "json"))["lost"]
        assert weak["vm"] in {one["vm"] for one in lost}
    text = outlive("failover", "tolerance", "--state", state).out
    assert "every VM that needs slots survives the failure of 2 hosts, whichever they are" in text


def test_people_read_the_verdict_first(state: Path) -> None:
    text = survive(state, "--failures", "2").out
    assert text.startswith("The failure of any 2 hosts is survived (66 cases)")
    text = survive(state, "--failures", "99").out
    assert "There are only 12 hosts; all of them fail." in text
    assert survive(state, "h1").out.startswith("If h1 fails, 2 VMs that need slots go down")
