"""``outlive failover certify`` and ``verify``: from a state to a certificate, and to a verdict on both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.certified import documents, fleet, planned, resources, settings, state_file
from tests.support.command import outlive

from outlive.base import Random

REQUIRED = {"*": 2}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "state.json"
    path.write_bytes(state_file(planned(fleet(Random(1), 12, 24), settings(REQUIRED))))
    return path


@pytest.fixture(scope="module")
def certificate(state: Path) -> Path:
    path = state.with_name("certificate.json")
    done = outlive("failover", "certify", "--state", state, "--out", path)
    assert done.code == 0, done.err
    return path


@pytest.fixture
def broken(state: Path) -> Path:
    """The same state without one slot."""
    plain = documents(resources(json.loads(state.read_bytes())["objects"]))
    plain.remove(next(one for one in plain if one["kind"] == "Reservation"))
    path = state.with_name("broken.json")
    path.write_bytes(state_file(resources(plain)))
    return path


@pytest.mark.slow
def test_a_certificate_is_accepted(state: Path, certificate: Path) -> None:
    done = outlive("failover", "verify", certificate, "--state", state)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("accepted: ")


def test_the_certificate_goes_to_standard_output_unless_a_file_is_named(state: Path, certificate: Path) -> None:
    assert outlive("failover", "certify", "--state", state).out == certificate.read_text()


def test_a_summary_for_programs(state: Path, certificate: Path) -> None:
    done = outlive("failover", "verify", certificate, "--state", state, "-o", "json")
    verdict = json.loads(done.out)
    assert verdict["accepted"] is True
    assert verdict["violation"] is None
    made = json.loads(outlive("failover", "certify", "--state", state, "--out", certificate, "-o", "json").out)
    assert made["certified"] is True
    assert made["k"] == verdict["k"] == 2


def test_another_state_is_not_accepted(certificate: Path, broken: Path) -> None:
    done = outlive("failover", "verify", certificate, "--state", broken)
    assert done.code == 1
    assert done.out.startswith("not accepted: digest: ")
    assert "slot-unknown" in done.out
    verdict = json.loads(outlive("failover", "verify", certificate, "--state", broken, "-o", "json").out)
    assert verdict["violation"]["code"] == "digest"


@pytest.mark.slow
def test_every_answer_knows_that_a_host_is_not_ready(state: Path, certificate: Path, tmp_path: Path) -> None:
    plain = documents(resources(json.loads(state.read_bytes())["objects"]))
    held = next(one["status"]["host"] for one in plain if one["kind"] == "Reservation")
    host = next(one for one in plain if one["kind"] == "Hypervisor" and one["metadata"]["name"] == held)
    host["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    path = tmp_path / "state.json"
    path.write_bytes(state_file(resources(plain)))
    answered = outlive("failover", "coverage", "--state", path, "-o", "json")
    assert answered.code == 1
    uncovered = json.loads(answered.out)["uncovered"]
    assert {one["reason"] for one in uncovered} == {"slot-not-ready"}
    certified = json.loads(outlive("failover", "certify", "--state", path, "-o", "json").out)["uncertified"]
    assert [one["vm"] for one in certified] == [one["vm"] for one in uncovered]
    assert f"{held} has condition Ready=False" in certified[0]["message"]
    lost = json.loads(outlive("survive", "--failures", "2", "--state", path, "-o", "json").out)
    assert lost["lostVms"] == len(uncovered)
    assert json.loads(outlive("failover", "tolerance", "--state", path, "-o", "json").out)["fleet"] < 2
    verdict = json.loads(outlive("failover", "verify", certificate, "--state", path, "-o", "json").out)
    assert "slot-not-ready" in verdict["counts"]
    planned = outlive("failover", "plan", "--state", path, "-o", "json")
    assert planned.code == 0, planned.out
    assert json.loads(planned.out)["after"]["covered"] == json.loads(answered.out)["required"]


@pytest.mark.slow
@pytest.mark.parametrize(("doubt", "code"), [("unreported", "vm-not-reported"), ("disputed", "location-disputed")])
def test_every_answer_counts_a_vm_of_which_nobody_can_say_where_it_is(
    state: Path, tmp_path: Path, doubt: str, code: str
) -> None:
    plain = documents(resources(json.loads(state.read_bytes())["objects"]))
    before = json.loads(outlive("failover", "coverage", "--state", state, "-o", "json").out)
    hosts = [one for one in plain if one["kind"] == "Hypervisor" and one["status"].get("instances")]
    vm = next(one["id"] for one in hosts[0]["status"]["instances"] if one.get("active", True))
    hosts[0]["status"]["instances"] = [one for one in hosts[0]["status"]["instances"] if one["id"] != vm]
    if doubt == "disputed":
        hosts[1]["status"]["instances"].append({"id": vm, "active": True})
    path = tmp_path / "state.json"
    path.write_bytes(state_file(resources(plain)))
    answered = json.loads(outlive("failover", "coverage", "--state", path, "-o", "json").out)
    assert (answered["vms"], answered["required"]) == (before["vms"], before["required"])
    assert [(one["vm"], one["reason"]) for one in answered["uncovered"]] == [(vm, code)]
    lost = json.loads(outlive("survive", "--failures", "1", "--state", path, "-o", "json").out)
    assert [one["vm"] for one in lost["lost"]] == [vm]
    assert json.loads(outlive("failover", "tolerance", "--state", path, "-o", "json").out)["vms"][vm] == 0
    refused = json.loads(outlive("failover", "certify", "--state", path, "-o", "json").out)
    assert [(one["vm"], one["reason"]) for one in refused["uncertified"]] == [(vm, code)]
    partial = tmp_path / "partial.json"
    assert outlive("failover", "certify", "--partial", "--state", path, "--out", partial).code == 0
    verdict = json.loads(outlive("failover", "verify", partial, "--state", path, "-o", "json").out)
    assert verdict["counts"] == {"vm-unplaced": 1}
    assert outlive("failover", "verify", partial, "--state", path, "--allow-partial").code == 0


def test_what_is_not_covered_is_not_certified(broken: Path) -> None:
    done = outlive("failover", "certify", "--state", broken)
    assert done.code == 1
    assert done.out.startswith("no certificate: ")
    assert "too-few-slots" in done.out
    refusal = json.loads(outlive("failover", "certify", "--state", broken, "-o", "json").out)
    assert refusal["certified"] is False
    assert refusal["uncertified"][0]["required"] == 2


def test_what_holds_of_it_is_certified_on_request(broken: Path, tmp_path: Path) -> None:
    path = tmp_path / "partial.json"
    done = outlive("failover", "certify", "--state", broken, "--partial", "--out", path)
    assert done.code == 0
    assert "certified for less than they need" in done.out
    refused = outlive("failover", "verify", path, "--state", broken)
    assert refused.code == 1
    assert refused.out.startswith("not accepted: partial: ")
    short = json.loads(outlive("failover", "verify", path, "--state", broken, "-o", "json").out)["shortfall"]
    assert f"{short['short']} of {short['required']} VMs that need slots have fewer than they need" in refused.out
    allowed = outlive("failover", "verify", path, "--state", broken, "--allow-partial")
    assert allowed.code == 0
    assert "\npartial: " in allowed.out
    asked = outlive("failover", "verify", path, "--state", broken, "--require", "*=2")
    assert asked.code == 1
    assert "need-below-required" in asked.out


def test_a_certificate_for_another_need(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    assert outlive("failover", "certify", "--state", state, "-k", "1", "--out", path).code == 0
    assert json.loads(path.read_text())["k"] == 1
    assert outlive("failover", "verify", path, "--state", state).code == 0
    assert outlive("failover", "certify", "--state", state, "-k", "3").code == 1


def test_every_set_of_failures_on_request(state: Path, certificate: Path, tmp_path: Path) -> None:
    seen = json.loads(outlive("failover", "verify", certificate, "--state", state, "--enumerate", "-o", "json").out)
    assert seen["enumeration"]["cases"] == 12 + 12 * 11 // 2
    assert (seen["enumeration"]["lost"], seen["enumeration"]["failures"]) == (0, 2)
    path = tmp_path / "landings.jsonl"
    done = outlive("failover", "verify", certificate, "--state", state, "--failures", "1", "--landings", path)
    assert done.code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == seen["needing"]
    assert set(lines[0]) == {"failed", "vm", "slot", "host"}


@pytest.mark.slow
def test_a_dump_of_the_same_state_directory_is_the_same_state(state: Path, tmp_path: Path) -> None:
    directory = tmp_path / "live"
    assert outlive("apply", "-f", state, "--status", "--state-dir", directory).code == 0
    path, dumped = tmp_path / "c.json", tmp_path / "dump.json"
    assert outlive("failover", "certify", "--state-dir", directory, "--out", path).code == 0
    dumped.write_text(outlive("dump", "--state-dir", directory).out)
    assert outlive("failover", "verify", path, "--state", dumped).code == 0
    assert outlive("failover", "verify", path, "--state-dir", directory).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--require", "many"), 3, "--require: 'many' is not PATTERN=N"),
        (("--require", "[=2"), 3, "malformed"),
        (("--failures", "3"), 2, "3 failures"),
        (("--state", "nowhere.json"), 4, "nowhere.json: no such file"),
    ],
)
def test_what_cannot_be_asked(
    state: Path, certificate: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = outlive("failover", "verify", certificate, "--state", state, *arguments)
    assert done.code == code
    assert words in done.line


def test_files_that_cannot_be_read_are_named_with_the_line(state: Path, certificate: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(certificate.read_text()[:-20])
    done = outlive("failover", "verify", bad, "--state", state)
    assert done.code == 3
    assert f"{bad}:" in done.line
    assert "write it again" in done.line
    assert outlive("failover", "verify", certificate, "--state", certificate).code == 3


def test_a_file_that_is_there_stays_as_it_was_unless_all_is_written(broken: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("before")
    assert outlive("failover", "certify", "--state", broken, "--out", path).code == 1
    sets = ("failover", "verify", path, "--state", broken, "--landings", path)
    assert outlive(*sets).code == 3
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["kept.json"]


def test_a_place_that_is_no_file_is_refused_in_one_line(state: Path, certificate: Path, tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "none" / "file"):
        for asked in (("certify", "--out"), ("verify", certificate, "--landings")):
            done = outlive("failover", *asked, bad, "--state", state)
            assert done.code == 3
            assert str(bad) in done.line


def test_a_domain_that_no_host_is_in_is_not_certified(state: Path, tmp_path: Path) -> None:
    config = tmp_path / "outlive.yaml"
    config.write_text("failoverUpkeep: {failureUnit: power}\n")
    done = outlive("failover", "certify", "--state", state, "--config", config)
    assert done.code == 4
    assert "there is no failure domain 'power'" in done.line


def test_names_in_a_certificate_cannot_steer_a_terminal(state: Path, certificate: Path, tmp_path: Path) -> None:
    stated = json.loads(certificate.read_text())
    stated["hosts"].append("\x1b[2J\naccepted: everything\u202e")
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(stated))
    done = outlive("failover", "verify", path, "--state", state)
    assert done.code == 1
    assert "the state has no host \\x1b[2J\\naccepted: everything\\u202e" in done.out
    assert all(line.isprintable() for line in done.out.splitlines())
