"""``outlive whatif``: every answer is compared with what the planner says of a state that was altered by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import outlive, planned

from outlive.cli.example import example_files
from outlive.failover.analysis.whatif import questions as whatif

HOSTS = "name,cpu,memory,zone,domain-rack\n" + "".join(f"h{n},24,64Gi,z1,r{n % 4}\n" for n in range(8))
VMS = "id,cpu,memory,host,flavor,zone\n" + "".join(f"v{n:02},2,4Gi,h{n % 8},m{n % 2},z1\n" for n in range(24))
MEMBERS = (
    "question,possible,proven,coverage,tolerance,moves,unplaced,order,closed,displaced,obstacles,weaker,uncovered,"
    "keep,keepPossible,shortHosts,shortBy,most,limit"
)

Document = dict[str, Any]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned state of eight hosts and 24 VMs."""
    return planned(tmp_path_factory.mktemp("whatif"), HOSTS, VMS)


def ask(file: Path, *question: str, code: int = 0) -> Document:
    """The answer as JSON; the state file is as it was."""
    before = file.read_bytes()
    done = outlive("whatif", *question, "--state", file, "-o", "json")
    assert done.code == code, done.err + done.out
    assert file.read_bytes() == before
    document: Document = json.loads(done.out)
    assert ",".join(document) == MEMBERS
    return document


class Altered:
    """A state file, altered as text would be."""

    def __init__(self, file: Path) -> None:
        self.document = json.loads(file.read_text())
        self.objects: list[Document] = self.document["objects"]
        self.path = file.parent / "altered.json"

    def get(self, kind: str, name: str) -> Document:
        return next(one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name)

    def drop(self, kind: str, name: str) -> None:
        self.objects.remove(self.get(kind, name))

    def slots(self) -> list[Document]:
        return [one for one in self.objects if one["kind"] == "Reservation"]

    def put_vm(self, vm: Document, host: str) -> None:
        """The VM runs on the host and is counted there."""
        there = self.get("Hypervisor", host)["status"]
        vm["status"]["assigned"] = {"hypervisor": host}
        there.setdefault("instances", []).append({"id": vm["metadata"]["name"], "active": True})
        self.count(there, vm, 1)

    def take_vm(self, vm: Document) -> None:
        name, host = vm["metadata"]["name"], vm["status"]["assigned"]["hypervisor"]
        here = self.get("Hypervisor", host)["status"]
        here["instances"] = [one for one in here["instances"] if one["id"] != name]
        self.count(here, vm, -1)

    @staticmethod
    def count(status: Document, vm: Document, sign: int) -> None:
        """All amounts of these fleets are whole cores and GiB."""
        need, used = vm["spec"]["resources"], status["allocation"]
        status["allocation"] = {
            "cpu": str(int(used["cpu"]) + sign * int(need["cpu"])),
            "memory": f"{gib(used['memory']) + sign * gib(need['memory'])}Gi",
        }

    def plan(self, *options: str | Path) -> Document:
        """What the planner makes of it."""
        self.path.write_text(json.dumps(self.document))
        document: Document = json.loads(outlive("failover", "plan", "--state", self.path, "-o", "json", *options).out)[
            "after"
        ]
        return document


def gib(text: str) -> int:
    return int(text.removesuffix("Gi")) if text != "0" else 0


def agrees(answer: Document, plan: Document) -> None:
    after = answer["coverage"]["after"]
    assert {name: after[name] for name in ("vms", "required", "covered", "slots", "reserved")} == {
        name: plan[name] for name in ("vms", "required", "covered", "slots", "reserved")
    }
    assert answer["tolerance"]["after"]["fleet"] == plan["tolerance"]
    assert len(answer["uncovered"]) == len(plan["uncovered"])


def test_the_order_of_a_drain_leads_to_the_state_that_is_forecast(file: Path) -> None:
    answer = ask(file, "drain", "h1,h2")
    assert answer["tolerance"]["before"] == answer["tolerance"]["after"] == {"fleet": 2, "zones": {"z1": 2}}
    altered = Altered(file)
    for step in answer["order"]:
        carry_out(altered, step)
    altered.path.write_text(json.dumps(altered.document))
    where = ("--state", altered.path, "-o", "json")
    assert outlive("failover", "check", *where).code == 0
    survived = json.loads(outlive("failover", "tolerance", *where).out)
    assert survived["fleet"] == 2
    assert len(altered.slots()) == answer["coverage"]["after"]["slots"]
    on = {one["status"]["host"] for one in altered.slots()}
    on |= {one["status"]["assigned"]["hypervisor"] for one in altered.objects if one["kind"] == "VirtualMachine"}
    assert not on & {"h1", "h2"}


def carry_out(altered: Altered, step: Document) -> None:
    match step["action"]:
        case "open":
            like = altered.slots()[0]
            made = json.loads(json.dumps(like))
            made["metadata"]["name"] = step["slotKey"]
            made["spec"]["targetHost"] = made["status"]["host"] = step["host"]
            made["spec"]["resources"] = {"cpu": "2", "memory": "4Gi"}
            made["status"]["failoverReservation"]["allocations"] = {step["vm"]: step["vmHost"]}
            altered.objects.append(made)
        case "close":
            altered.drop("Reservation", step["slot"])
        case "move":
            vm = altered.get("VirtualMachine", step["vm"])
            altered.take_vm(vm)
            altered.put_vm(vm, step["host"])
            for slot in altered.slots():
                members = slot["status"]["failoverReservation"]["allocations"]
                if step["vm"] in members:
                    members[step["vm"]] = step["host"]
        case "join":
            slot = altered.get("Reservation", step["slot"])
            slot["status"]["failoverReservation"]["allocations"][step["vm"]] = step["vmHost"]
        case "leave":
            slot = altered.get("Reservation", step["slot"])
            del slot["status"]["failoverReservation"]["allocations"][step["vm"]]


def test_removing_hosts_agrees_with_the_planner(file: Path) -> None:
    answer = ask(file, "remove-host", "h0")
    altered = Altered(file)
    moved = {move["vm"]: move for move in answer["moves"]}
    assert {move["source"] for move in moved.values()} == {"h0"}
    assert all(move["slot"] for move in moved.values())
    assert len({move["slot"] for move in moved.values()}) == len(moved)
    used = {move["slot"] for move in moved.values()}
    for slot in altered.slots():
        members = slot["status"]["failoverReservation"]["allocations"]
        left = {vm: host for vm, host in members.items() if vm not in moved}
        slot["status"]["failoverReservation"]["allocations"] = left
        if slot["metadata"]["name"] in used:
            assert slot["status"]["host"] == next(
                m["host"] for m in moved.values() if m["slot"] == slot["metadata"]["name"]
            )
        if slot["metadata"]["name"] in used or slot["status"]["host"] == "h0" or not left:
            altered.objects.remove(slot)
    for name, move in moved.items():
        altered.put_vm(altered.get("VirtualMachine", name), move["host"])
    altered.drop("Hypervisor", "h0")
    agrees(answer, altered.plan())


def test_losing_too_many_hosts_says_how_many_are_short(file: Path) -> None:
    answer = ask(file, "remove-host", "h0,h1,h2,h3,h4,h5", code=1)
    assert not answer["possible"]
    assert answer["uncovered"] or answer["unplaced"]
    assert answer["shortHosts"] == sum(one["hosts"] for one in answer["shortBy"])
    assert answer["shortHosts"] >= 1


def test_a_search_for_hosts_that_are_short_has_an_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "ACTIONS_PLANNED", 1)
    answer = ask(file, "remove-host", "h0,h1,h2,h3,h4,h5", code=1)
    assert (answer["shortHosts"], answer["shortBy"]) == (None, [])
    assert "the limits of the search" in outlive("whatif", "remove-host", "h0,h1,h2,h3,h4,h5", "--state", file).out


def test_as_many_as_possible_and_so_many_are_two_questions(file: Path) -> None:
    done = outlive("whatif", "add-vms", "--flavor", "m0", "--most", "--count", "5", "--state", file)
    assert done.code == 2
    assert "--most and --count" in done.line


def test_further_hosts_agree_with_the_planner(file: Path) -> None:
    answer = ask(file, "add-host", "--like", "h3", "--count", "2", "--domain", "rack=r9")
    altered = Altered(file)
    for number in (1, 2):
        made = json.loads(json.dumps(altered.get("Hypervisor", "h3")))
        made["metadata"]["name"] = f"new-host-{number}"
        made["metadata"]["labels"]["outlive.dev/domain-rack"] = "r9"
        made["status"].update(instances=[], numInstances=0, allocation={"cpu": "0", "memory": "0"})
        altered.objects.append(made)
    agrees(answer, altered.plan())


def test_more_slots_for_a_pattern_agree_with_the_planner_and_say_how_many_hosts_are_short(file: Path) -> None:
    for count, code in ((3, 0), (7, 1)):
        answer = ask(file, "require", f"m1={count}", code=code)
        config = file.parent / "outlive.yaml"
        config.write_text(json.dumps({"failover": {"flavorFailoverRequirements": {"*": 2, "m1": count}}}))
        agrees(answer, Altered(file).plan("--config", config))
    short = answer["shortHosts"]
    assert short >= 1
    (by,) = answer["shortBy"]
    assert by["zone"] == "z1"
    for hosts, full in ((short, True), (short - 1, False)):
        altered = Altered(file)
        for number in range(hosts):
            made = json.loads(json.dumps(altered.get("Hypervisor", by["like"])))
            made["metadata"]["name"] = f"what-if-host-{8 + number:03d}"
            made["status"].update(instances=[], numInstances=0, allocation={"cpu": "0", "memory": "0"})
            altered.objects.append(made)
        plan = altered.plan("--config", config)
        assert (plan["covered"] == plan["required"]) is full


def test_the_largest_number_of_vms_is_possible_and_one_more_is_not(file: Path) -> None:
    most = ask(file, "add-vms", "--flavor", "m0", "--zone", "z1", "--most")["most"]
    assert most >= 1
    possible = ask(file, "add-vms", "--flavor", "m0", "--zone", "z1", "--count", str(most))
    assert possible["possible"]
    assert len(possible["moves"]) == most
    assert not ask(file, "add-vms", "--flavor", "m0", "--zone", "z1", "--count", str(most + 1), code=1)["possible"]


def test_further_vms_agree_with_the_planner(file: Path) -> None:
    answer = ask(file, "add-vms", "--flavor", "m1", "--zone", "z1", "--count", "5")
    altered = Altered(file)
    for move in answer["moves"]:
        made = json.loads(json.dumps(altered.get("VirtualMachine", "v01")))
        made["metadata"]["name"] = move["vm"]
        altered.objects.append(made)
        altered.put_vm(made, move["host"])
    agrees(answer, altered.plan())


def test_a_vm_that_placement_takes_nowhere_else_is_named_with_its_reason(file: Path) -> None:
    altered = Altered(file)
    altered.get("VirtualMachine", "v03")["spec"]["extraSpecs"] = {"trait:CUSTOM_ONLY": "required"}
    altered.get("Hypervisor", "h3")["status"]["traits"] = ["CUSTOM_ONLY"]
    altered.path.write_text(json.dumps(altered.document))
    answer = ask(altered.path, "drain", "h3", code=1)
    assert answer["proven"]
    (obstacle,) = [one for one in answer["obstacles"] if one["reason"] == "no-host"]
    assert obstacle["vm"] == "v03"
    assert "filter_has_requested_traits" in obstacle["detail"]
    assert answer["shortHosts"] is None


def test_less_is_kept_where_less_is_asked_for(file: Path) -> None:
    gone = "h0,h1,h2,h3,h4"
    refused = ask(file, "drain", gone, code=1)
    assert refused["obstacles"]
    lower = refused["keepPossible"]
    assert lower is not None
    assert lower < 2
    assert ask(file, "drain", gone, "--keep", str(lower))["possible"]


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (("drain", "nowhere"), 4),
        (("remove-host", "h0,nowhere"), 4),
        (("add-host", "--like", "nowhere"), 4),
        (("add-vms", "--flavor", "nowhere"), 4),
        (("add-vms", "--flavor", "m0", "--cpu", "many"), 3),
        (("require", "m1"), 3),
        (("require", "m[=2"), 3),
        (("require", "m1=17"), 3),
        (("add-host", "--like", "h0", "--domain", "r9"), 3),
        (("add-host",), 2),
        (("add-vms",), 2),
        (("drain",), 2),
    ],
)
def test_bad_questions_are_refused_on_one_line(file: Path, question: tuple[str, ...], code: int) -> None:
    done = outlive("whatif", *question, "--state", file)
    assert done.code == code
    assert done.line
    assert not done.out


@pytest.mark.slow
def test_hosts_of_the_example_can_be_emptied_and_people_can_read_it(tmp_path: Path) -> None:
    with example_files() as files:
        file = planned(tmp_path, files.hosts, files.vms)
    done = outlive("whatif", "drain", "kvm-r1-01", "--state", file)
    assert done.code == 0
    first, *_ = done.out.splitlines()
    assert first.startswith("drain kvm-r1-01: yes, in ")
    assert "Where VMs come to:" in done.out
    assert "The steps, one after the other:" in done.out


def test_how_many_more_fit_is_answered_on_a_state_file_and_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    done = outlive("capacity", "--flavor", "m0", "-k", "1", "--state", file, "-o", "json")
    found = json.loads(done.out)
    assert done.code == 0, done.err
    assert (found["flavor"], found["slotsEach"], found["toppedUp"]) == ("m0", 1, 0)
    assert file.read_bytes() == before
    planned = ask(file, "add-vms", "--flavor", "m0", "--most", "--zone", "z1", "-k", "1")
    assert found["vms"] <= planned["most"] <= found["atMost"]
    text = outlive("capacity", "--flavor", "m0", "-k", "1", "--state", file).out
    assert text.startswith(f"At least {found['vms']} and at most {found['atMost']} more VMs of m0 fit, with every")
    assert "whatif add-vms --most" in text
    none = outlive("capacity", "--flavor", "m0", "-k", "0", "--state", file).out
    assert none.splitlines()[0].endswith("more VMs of m0 fit, with every promise kept.")


def test_how_many_more_of_what_is_said(file: Path) -> None:
    assert outlive("capacity", "--flavor", "nope", "--state", file).code == 4
    assert outlive("capacity", "--flavor", "m0", "--zone", "moon", "--state", file).code == 4
    assert outlive("capacity", "--state", file).code == 2
