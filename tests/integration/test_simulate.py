"""``outlive simulate`` as a command: scenarios, inventories, what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import imported, outlive

SCENARIOS = Path(__file__).parent.parent / "scenarios"
GOOD = {
    "README": "A host loses power.\n",
    "cluster.yaml": "hosts: {count: 4}\nvms: {perHost: 1}\n"
    'settings: {failover: {flavorFailoverRequirements: {"*": 1}}}\n',
    "timeline.yaml": "- {at: 20s, power-off: {hosts: [kvm-4]}}\n",
    "expect.yaml": "recovered: 1\nheld: none\nuntil: 50s\n",
}


def folder(path: Path, **changed: str) -> Path:
    for name, text in {**GOOD, **{key.replace("_", "."): value for key, value in changed.items()}}.items():
        (path / name).write_text(text)
    return path


def test_a_story_reads_from_the_loss_to_the_running_vm(tmp_path: Path) -> None:
    result = outlive("simulate", folder(tmp_path))
    assert result.code == 0, result.err
    reported = result.out
    order = ["kvm-4 loses power", "kvm-4 is condemned by", "kvm-4 is proven dead by power", "promised slot", "runs on"]
    places = [reported.rindex(part) if part == "runs on" else reported.index(part) for part in order]
    assert places == sorted(places)
    assert "lost       1 of 4 VMs" in reported


def test_programs_get_the_members_that_they_rely_on(tmp_path: Path) -> None:
    result = outlive("simulate", folder(tmp_path), "-o", "json", "--seed", "5")
    document = json.loads(result.out)
    assert (document["seed"], document["virtualSeconds"], document["violations"]) == (5, 50.0, [])
    assert (document["recovered"], document["held"], document["inPromisedSlot"]) == (1, 0, 1)
    assert 5 < document["times"]["p50"] <= document["times"]["p99"] <= document["times"]["max"] < 15


def test_the_same_seed_tells_the_same_story(tmp_path: Path) -> None:
    arguments = ("simulate", folder(tmp_path), "--all", "--seed", "9")
    assert outlive(*arguments).out == outlive(*arguments).out


def test_a_story_that_ends_otherwise_is_a_no(tmp_path: Path) -> None:
    result = outlive("simulate", folder(tmp_path, expect_yaml="recovered: 3\nuntil: 50s\n"))
    assert result.code == 1
    assert "NOT AS EXPECTED  1 VMs were recovered, not 3" in result.out


def test_an_expectation_is_proposed_for_review_and_holds(tmp_path: Path) -> None:
    made = folder(tmp_path)
    result = outlive("simulate", made, "--write-expect")
    assert result.code == 0, result.err
    proposed = made / "expect.proposed.yaml"
    assert "promised: true" in proposed.read_text()
    proposed.rename(made / "expect.yaml")
    assert outlive("simulate", made).code == 0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("README", "two\nlines\n", "is not one line"),
        ("cluster.yaml", "hosts: {count: many}\nvms: {perHost: 1}\n", "hosts"),
        ("cluster.yaml", "hosts: {count: 4, colour: red}\nvms: {perHost: 1}\n", "colour"),
        ("cluster.yaml", "hosts: {count: 1}\nvms: [{name: a, host: kvm-9}]\n", "its host 'kvm-9' is not there"),
        ("timeline.yaml", "- {at: 20s, power-of: {hosts: [kvm-4]}}\n", "do you mean power-off?"),
        ("timeline.yaml", "- {at: 20s, power-off: {hosts: [kvm-7]}}\n", "there is no host 'kvm-7'"),
        ("timeline.yaml", "- {at: 20, power-off: {hosts: [kvm-4]}}\n", "entry 1: at"),
        ("timeline.yaml", "- {at: 20s, power-off: {}}\n", "needs one of host, hosts, domain"),
        ("timeline.yaml", "- {at: 20s, power-off: {hosts: [kvm-4], slowly: true}}\n", "field `slowly` (there are"),
        ("timeline.yaml", "- {at: 20s, cut: {network: stor, hosts: [kvm-4]}}\n", "network (store, storage, bmc, vm)"),
        ("timeline.yaml", "- {power-off: {hosts: [kvm-4]}}\n", "has no time"),
        ("expect.yaml", "recoverd: 1\n", "do you mean recovered? there are at, events, recoveredWithin"),
        ("expect.yaml", "at: [{at: 9s, vm: {vm-1-9: {on: kvm-1}}}]\n", "there is no VM 'vm-1-9'"),
        ("expect.yaml", "at: [{at: 9s, vm: {vm-1-1: {where: kvm-1}}}]\n", "'where' is no fact of it"),
        ("expect.yaml", "recoveredWithin: {12s: most}\n", "recoveredWithin.12s: Expected `str` matching regex '^(all|"),
        ("expect.yaml", "a: [\n", "not YAML"),
    ],
)
def test_every_mistake_is_named_with_its_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    made = folder(tmp_path)
    (made / name).write_text(text)
    result = outlive("simulate", made)
    assert result.code == 3, result.err
    assert str(made / name) in result.line
    assert says in result.line


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    made = folder(tmp_path, timeline_yaml="- {at: 1s, power-of: {}}\n- {at: x, release: {}}\n", expect_yaml="a: 1\n")
    assert len(outlive("simulate", made).lines) == 3


def test_a_folder_or_an_inventory_is_named_and_not_both(tmp_path: Path) -> None:
    assert outlive("simulate").code == 2
    assert outlive("simulate", tmp_path, "--inventory", "example").code == 2
    assert outlive("simulate", folder(tmp_path), "--fail", "rack=r1").code == 2
    assert outlive("simulate", tmp_path / "missing").code == 4


@pytest.mark.parametrize("fail", ["rack=r9", "host=kvm-none", "row=1"])
def test_what_is_to_fail_must_be_there(fail: str) -> None:
    result = outlive("simulate", "--inventory", "example", "--fail", fail)
    assert result.code == 3
    assert fail.partition("=")[2] in result.line


def test_an_end_before_the_failure_is_refused() -> None:
    assert outlive("simulate", "--inventory", "example", "--fail", "rack=r1", "--for", "5s").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("failed", [("kvm-r1-01",), ("kvm-r1-01", "kvm-r3-05")], ids=["k=1", "k=2"])
def test_as_many_hosts_of_the_example_fail_as_are_planned_for_and_every_vm_lands_in_its_slot(
    failed: tuple[str, ...],
) -> None:
    options = [word for host in failed for word in ("--fail", f"host={host}")]
    result = outlive("simulate", "--inventory", "example", *options, "--for", "40s", "-o", "json")
    document = json.loads(result.out)
    assert document["violations"] == []
    assert document["recovered"] == document["lost"] == document["inPromisedSlot"] >= len(failed)
    assert document["times"]["max"] <= 12.0
    assert any("without our daemon" in note for note in document["assumed"])


def test_the_scenarios_of_the_project_are_found_by_path() -> None:
    assert outlive("simulate", SCENARIOS / "host-loses-power").code == 0


def test_a_zone_of_an_imported_inventory_fails(tmp_path: Path) -> None:
    hosts = "name,cpu,memory,zone\n" + "".join(f"h{n},16,64Gi,z{n % 2}\n" for n in range(4))
    vms = "id,cpu,memory,host\n" + "".join(f"v{n},2,4Gi,h{n}\n" for n in range(4))
    state = tmp_path / "state.json"
    state.write_text(outlive("dump", "--state-dir", imported(tmp_path, hosts, vms)).out)
    result = outlive("simulate", "--inventory", state, "--fail", "zone=z1")
    assert result.code == 0, result.err
    assert "2 of 4 hosts lose power" in result.out
    assert [f"{host} is proven dead" in result.out for host in ("h0", "h1", "h2", "h3")] == [False, True, False, True]
    assert "there are z0, z1" in outlive("simulate", "--inventory", state, "--fail", "zone=z9").line
