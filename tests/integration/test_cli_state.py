"""Commands on a state: from nothing to covered, on a state directory and on a state file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.command import Result, imported, outlive, spawned, up

from outlive.resources import KINDS

HOSTS = "name,cpu,memory,zone\n" + "".join(f"h{n},32,128Gi,z1\n" for n in range(8))
VMS = "id,cpu,memory,host,flavor\n" + "".join(f"v{n:02},4,8Gi,h{n % 8},m{n % 2}\n" for n in range(16))
MANIFEST = """
apiVersion: outlive.dev/v1alpha1
kind: Hypervisor
metadata: {name: extra, labels: {team: blue}}
spec: {maintenance: manual}
---
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: v99}
spec: {resources: {cpu: 2, memory: 4Gi}}
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with an imported inventory."""
    return imported(tmp_path, HOSTS, VMS)


@pytest.fixture
def file(state: Path) -> Path:
    """The same as a state file."""
    path = state.parent / "state.json"
    path.write_text(outlive("dump", "--state-dir", state).out)
    return path


def read(result: Result) -> dict[str, object]:
    document: dict[str, object] = json.loads(result.out)
    return document


def test_an_import_reports_what_it_did_and_repeats_as_nothing(state: Path) -> None:
    folder = state.parent
    arguments = ["import", "csv", "--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv", "--state-dir", state]
    document = read(outlive(*arguments, "-o", "json"))
    assert document["hosts"] == {"created": 0, "updated": 0, "unchanged": 8, "deleted": 0}
    assert document["vms"] == {"created": 0, "updated": 0, "unchanged": 16, "deleted": 0}


def test_a_dry_run_writes_nothing(state: Path) -> None:
    (state.parent / "more.csv").write_text(HOSTS + "h9,32,128Gi,z1\n")
    arguments = ["import", "csv", "--hosts", state.parent / "more.csv", "--state-dir", state, "--dry-run", "-o", "json"]
    document = read(outlive(*arguments))
    assert document["dryRun"] is True
    assert document["hosts"] == {"created": 1, "updated": 0, "unchanged": 8, "deleted": 0}
    assert outlive("get", "host", "h9", "--state-dir", state).code == 4


APART = """
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: one}
spec:
  resources: {cpu: 1, memory: 1Gi}
  affinity: [{group: near, policy: affinity}, {group: far, policy: anti-affinity}]
---
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: two}
spec:
  resources: {cpu: 1, memory: 1Gi}
  affinity: [{group: near, policy: affinity}, {group: far, policy: anti-affinity}]
"""
CIRCLE = """
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: one}
spec: {resources: {cpu: 1, memory: 1Gi}, startAfter: [two]}
---
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: two}
spec: {resources: {cpu: 1, memory: 1Gi}, startAfter: [one]}
"""


@pytest.mark.parametrize(("documents", "says"), [(APART, "far"), (CIRCLE, "start after each other")])
def test_documents_that_contradict_each_other_are_refused_before_the_first_write(
    state: Path, documents: str, says: str
) -> None:
    path = state.parent / "both.yaml"
    path.write_text(documents)
    for how in (["--dry-run"], []):
        refused = outlive("apply", "-f", path, "--state-dir", state, *how)
        assert refused.code == 3, refused
        assert "both.yaml" in refused.err
        assert says in refused.err
        assert outlive("get", "vm", "one", "--state-dir", state).code == 4


def test_a_document_that_contradicts_what_is_there_is_refused_before_the_first_write(state: Path) -> None:
    first, second = (f"{part}" for part in APART.split("---"))
    (state.parent / "first.yaml").write_text(first)
    (state.parent / "second.yaml").write_text(MANIFEST + "---" + second)
    assert outlive("apply", "-f", state.parent / "first.yaml", "--state-dir", state).code == 0
    assert outlive("apply", "-f", state.parent / "first.yaml", "--state-dir", state).code == 0
    refused = outlive("apply", "-f", state.parent / "second.yaml", "--state-dir", state)
    assert refused.code == 3, refused
    assert "two" in refused.err
    assert outlive("get", "vm", "v99", "--state-dir", state).code == 4


def test_the_rule_of_some_vms_is_softened_and_lifted_and_of_others_stays(state: Path) -> None:
    def rules(vm: str) -> object:
        spec = read(outlive("get", "vm", vm, "--state-dir", state, "-o", "json"))["spec"]
        return spec.get("affinity", [])  # type: ignore[attr-defined]

    at = ("--state-dir", state)
    assert outlive("group", "list", *at).out == "no VM is in a group: see outlive group set --help\n"
    assert outlive("group", "set", "db", "anti-affinity", "v00,v01", "v02", *at).out.splitlines() == [
        f"{vm}: anti-affinity in group db" for vm in ("v00", "v01", "v02")
    ]
    assert outlive("group", "set", "web", "affinity", "v00", *at).code == 0
    assert (
        outlive("group", "set", "db", "soft-anti-affinity", "v00", *at).out == "v00: soft-anti-affinity in group db\n"
    )
    assert rules("v00") == [{"group": "web", "policy": "affinity"}, {"group": "db", "policy": "soft-anti-affinity"}]
    assert outlive("group", "set", "db", "soft-anti-affinity", "v00", *at).out == "v00: unchanged\n"
    assert outlive("group", "set", "db", "none", "v01", *at).out == "v01: not in group db\n"
    assert (rules("v01"), rules("v02")) == ([], [{"group": "db", "policy": "anti-affinity"}])
    refused = outlive("group", "set", "db", "apart", "v02", *at)
    assert (refused.code, "soft-anti-affinity" in refused.err) == (2, True), refused
    assert outlive("group", "set", "db", "none", "v02", "nobody", *at).code == 4
    assert rules("v02") == [{"group": "db", "policy": "anti-affinity"}], "nothing is written where a VM is not there"


def test_get_prints_tables_documents_and_lists(file: Path) -> None:
    assert outlive("get", "hosts", "--state", file).out.splitlines()[0].split()[:3] == ["Name", "Zone", "State"]
    assert len(outlive("get", "vms", "--state", file).out.splitlines()) == 17
    assert read(outlive("get", "vm", "v00", "--state", file, "-o", "json"))["kind"] == "VirtualMachine"
    assert len(read(outlive("get", "vms", "--state", file, "-o", "json"))["items"]) == 16  # type: ignore[arg-type]
    assert "kind: Hypervisor" in outlive("get", "ohv", "h0", "--state", file, "-o", "yaml").out
    assert "Used CPU" in outlive("get", "ohv", "--state", file, "-o", "wide").out


def test_get_selects_by_label(file: Path) -> None:
    result = outlive("get", "vms", "-l", "outlive.dev/host=h3", "--state", file)
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == ["v03", "v11"]
    assert outlive("get", "vms", "-l", "a in (", "--state", file).code == 3


def test_what_is_not_there_is_exit_code_4(file: Path) -> None:
    assert outlive("get", "vm", "nobody", "--state", file).code == 4
    assert outlive("describe", "vm", "nobody", "--state", file).code == 4
    result = outlive("get", "vms", "--state-dir", file.parent / "nowhere")
    assert result.code == 4
    assert "outlive up" in result.line


def test_coverage_has_exactly_the_promised_members_and_says_no(file: Path) -> None:
    result = outlive("failover", "coverage", "--state", file, "-o", "json")
    document = read(result)
    assert result.code == 1
    assert set(document) == {
        "vms", "required", "covered", "uncovered", "slots", "reserved", "bound", "tolerance", "by",
        "notHeard", "levels",
    }  # fmt: skip
    assert (document["vms"], document["required"], document["covered"]) == (16, 16, 0)
    uncovered = document["uncovered"]
    assert isinstance(uncovered, list)
    assert set(uncovered[0]) == {"vm", "reason", "remedy"}
    assert set(document["reserved"]) == {"cpuMilli", "memoryBytes"}  # type: ignore[call-overload]
    assert set(document["bound"]) == {  # type: ignore[call-overload]
        "slots", "gap", "cpuMilli", "cpuGapMilli", "memoryBytes", "memoryGapBytes",
    }  # fmt: skip


def test_a_plan_says_what_it_would_do_and_changes_nothing(file: Path) -> None:
    result = outlive("failover", "plan", "--state", file, "-o", "json")
    document = read(result)
    assert result.code == 0
    assert document["applied"] is False
    assert document["missing"] == 16
    assert document["after"]["covered"] == 16  # type: ignore[index]
    assert outlive("failover", "coverage", "--state", file).code == 1


def test_an_applied_plan_covers_everybody_and_holds(state: Path) -> None:
    assert outlive("failover", "plan", "--apply", "--state-dir", state).code == 0
    covered = outlive("failover", "coverage", "--state-dir", state, "-o", "json")
    assert covered.code == 0
    assert read(covered)["tolerance"] == 2
    checked = outlive("failover", "check", "--state-dir", state, "-o", "json")
    assert checked.code == 0
    assert read(checked)["allocations"] == 32
    again = read(outlive("failover", "plan", "--state-dir", state, "-o", "json"))
    assert (again["missing"], again["actions"]) == (0, [])


def test_more_slots_than_hosts_can_hold_is_no(file: Path) -> None:
    result = outlive("failover", "plan", "-k", "9", "--state", file, "-o", "json")
    assert result.code == 1
    uncovered = read(result)["after"]["uncovered"]  # type: ignore[index]
    assert len(uncovered) == 16
    assert all(one["reason"] and one["remedy"] for one in uncovered)


def test_check_names_a_broken_rule(state: Path) -> None:
    outlive("failover", "plan", "--apply", "--state-dir", state)
    dumped = state.parent / "broken.json"
    document = read(outlive("dump", "--state-dir", state))
    slot = next(one for one in document["objects"] if one["kind"] == "Reservation")  # type: ignore[union-attr,attr-defined]
    slot["status"]["host"] = next(iter(slot["status"]["failoverReservation"]["allocations"].values()))
    dumped.write_text(json.dumps(document))
    result = outlive("failover", "check", "--state", dumped, "-o", "json")
    assert result.code == 1
    assert "rule-1" in {one["fault"] for one in read(result)["violations"]}  # type: ignore[attr-defined]


def test_the_same_state_gives_the_same_plan(file: Path) -> None:
    first = outlive("failover", "plan", "--state", file, "-o", "json").out
    assert spawned("failover", "plan", "--state", file, "-o", "json", env={"PYTHONHASHSEED": "7"}).out == first


def test_settings_of_the_environment_and_of_a_file_count(file: Path) -> None:
    env = {"OUTLIVE_FAILOVER__FLAVOR_FAILOVER_REQUIREMENTS": '{"m0": 1}'}
    result = spawned("failover", "coverage", "--state", file, "-o", "json", env=env)
    assert json.loads(result.out)["required"] == 8
    settings = file.parent / "outlive.yaml"
    settings.write_text("failover:\n  flavorFailoverRequirements: {}\n")
    assert outlive("failover", "coverage", "--state", file, "--config", settings).code == 0


def test_a_host_is_ranked_and_refused_with_reasons(file: Path) -> None:
    result = outlive("placement", "rank", "--vm", "v00", "--explain", "--state", file, "-o", "json")
    document = read(result)
    assert result.code == 0
    assert len(document["orderedHosts"]) == 7  # type: ignore[arg-type]
    assert list(document["rejected"]) == ["h0"]  # type: ignore[call-overload]
    none = outlive("placement", "rank", "--cpu", "64", "--memory", "8Gi", "--explain", "--state", file)
    assert none.code == 1
    assert "needs 64 cores" in none.out


def test_views_are_tables_and_documents(file: Path) -> None:
    assert "h0" in outlive("failover", "views", "hypervisors", "--state", file).out
    views = json.loads(outlive("failover", "views", "--state", file, "-o", "json").out)
    assert len(views) == 14
    options = file.parent / "views.json"
    options.write_text('{"views": "by-host,summary", "filter_name": "h1"}')
    chosen = json.loads(outlive("failover", "views", "--options", options, "--state", file, "-o", "json").out)
    assert [view["view"] for view in chosen] == ["by-host", "summary"]
    assert outlive("failover", "views", "nothing", "--state", file).code == 3
    assert outlive("failover", "views", "--sort", "size", "--state", file).code == 2


def test_apply_creates_changes_and_leaves_alone(state: Path) -> None:
    manifest = state.parent / "m.yaml"
    manifest.write_text(MANIFEST)
    assert outlive("apply", "-f", manifest, "--state-dir", state).out.splitlines() == [
        "hypervisor/extra created",
        "virtualmachine/v99 created",
    ]
    manifest.write_text(MANIFEST.replace("manual", "ha"))
    assert outlive("apply", "-f", manifest, "--state-dir", state).out.splitlines() == [
        "hypervisor/extra configured",
        "virtualmachine/v99 unchanged",
    ]
    assert read(outlive("get", "host", "extra", "--state-dir", state, "-o", "json"))["spec"] == {"maintenance": "ha"}
    assert outlive("delete", "host", "extra", "--yes", "--state-dir", state).out == "hypervisor/extra deleted\n"
    assert outlive("delete", "host", "extra", "--yes", "--state-dir", state).code == 4
    assert outlive("delete", "host", "extra", "--ignore-not-found", "--yes", "--state-dir", state).code == 0


def test_apply_restores_a_state_file_whole(state: Path) -> None:
    outlive("failover", "plan", "--apply", "--state-dir", state)
    dumped = state.parent / "all.json"
    dumped.write_text(outlive("dump", "--state-dir", state).out)
    other = state.parent / "other"
    assert outlive("apply", "-f", dumped, "--state-dir", other).code == 0
    assert outlive("failover", "coverage", "--state-dir", other).code == 0
    again = outlive("apply", "-f", dumped, "--state-dir", other)
    assert all(line.endswith(" unchanged") for line in again.out.splitlines())


def test_the_status_half_of_a_manifest_counts_only_when_asked_for(state: Path) -> None:
    document = read(outlive("get", "host", "h0", "--state-dir", state, "-o", "json"))
    document["metadata"].pop("resourceVersion")  # type: ignore[attr-defined]
    document["status"]["evicted"] = True  # type: ignore[index]
    manifest = state.parent / "host.json"
    manifest.write_text(json.dumps(document))
    assert outlive("apply", "-f", manifest, "--state-dir", state).out == "hypervisor/h0 unchanged\n"
    assert outlive("apply", "-f", manifest, "--status", "--state-dir", state).out == "hypervisor/h0 configured\n"


def test_a_stale_version_in_a_document_is_a_conflict(state: Path) -> None:
    manifest = state.parent / "m.yaml"
    manifest.write_text(MANIFEST.replace("{name: extra,", "{name: h1, resourceVersion: '1',"))
    assert outlive("apply", "-f", manifest, "--state-dir", state).code == 5


def test_a_dump_is_what_the_state_is(state: Path, file: Path) -> None:
    from outlive.resources import decode_state, state_digest

    first = decode_state(file.read_bytes())
    second = decode_state(outlive("dump", "--state-dir", state).out.encode())
    assert state_digest(first.objects) == state_digest(second.objects)
    assert len(first.objects) == 8 + 16 + 2


def test_a_dump_holds_no_password_and_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    from outlive.resources import ObjectMeta, State, VirtualMachine, VirtualMachineSpec, decode_state, encode_state

    spec = VirtualMachineSpec(definition="<domain><graphics type='vnc' passwd='hunter2'/></domain>")
    vm = VirtualMachine(metadata=ObjectMeta(name="vm-1", annotations={"was": spec.definition}), spec=spec)
    older, dumped = tmp_path / "older.json", tmp_path / "dumped.json"
    older.write_bytes(encode_state(State(taken_at=datetime(2026, 1, 1, tzinfo=UTC), objects=(vm,))))
    dumped.touch(mode=0o644)
    with dumped.open("wb") as stream:
        subprocess.run([sys.executable, "-m", "outlive", "dump", "--state", older], stdout=stream, check=True)
    assert dumped.stat().st_mode & 0o777 == 0o600
    (found,) = decode_state(dumped.read_bytes()).objects
    assert isinstance(found, VirtualMachine)
    assert found.spec.definition == "<domain><graphics type='vnc' /></domain>"
    assert b"hunter2" not in dumped.read_bytes()


def test_a_state_file_is_never_written(file: Path) -> None:
    assert outlive("delete", "vm", "v00", "--yes", "--state", file).code == 2
    assert outlive("failover", "plan", "--apply", "--state", file).code == 2


def test_describe_and_status_show_what_belongs_together(state: Path) -> None:
    outlive("failover", "plan", "--apply", "--state-dir", state)
    assert "Slots: 2" in outlive("describe", "vm", "v00", "--state-dir", state).out
    assert "VMs: 2" in outlive("describe", "host", "h0", "--state-dir", state).out
    status = read(outlive("status", "--state-dir", state, "-o", "json"))
    assert (status["hosts"], status["vms"], status["unplacedVms"]) == (8, 16, 0)
    assert "hosts" in outlive("status", "--state-dir", state).out


def test_status_claims_no_coverage_that_nobody_has_worked_out(state: Path) -> None:
    before = outlive("status", "--state-dir", state).out
    assert "of 0 VMs" not in before
    assert "has not been worked out yet" in before


def test_crds_are_printed_for_all_kinds_or_one() -> None:
    assert outlive("crds").out.count("kind: CustomResourceDefinition") == len(KINDS)
    assert "plural: reservations" in outlive("crds", "slots").out


def test_a_decision_is_replayed_from_standard_input() -> None:
    asked = b'{"flavor": "m1.large", "patterns": {"m1.*": 2}}'
    answered = spawned("decide", "failover.required", stdin=asked)
    assert (answered.code, answered.out) == (0, '{"required":2}\n')
    refused = spawned("decide", "failover.required", stdin=b"{")
    assert (refused.code, json.loads(refused.out)) == (3, {"error": "invalid"})
    assert "failover.plan" in outlive("decide", "--list").out.splitlines()
    assert read(outlive("decide", "--schema", "failover.plan"))["name"] == "failover.plan"
    assert outlive("decide", "failover.plam").code == 4
    assert outlive("decide").code == 2


def test_config_show_hides_tokens_and_the_passwords_of_every_data_source(tmp_path: Path) -> None:
    settings = tmp_path / "outlive.yaml"
    settings.write_text(
        "failover:\n  datasourceName: other\n"
        "failoverUpkeep:\n  vmSource: database\n  schedulerToken: geheim\n"
        "  dataSources:\n    other: postgresql://nova:geheim@db/nova\n    more: postgresql://db/n?user=a&password=geheim\n"
    )
    refused = outlive("config", "show", "--config", settings)
    assert (refused.code, f"chmod 600 {settings}" in refused.line) == (7, True)
    settings.chmod(0o600)
    for form in ("json", "table"):
        result = outlive("config", "show", "--config", settings, "-o", form)
        assert result.code == 0, result.err
        assert "geheim" not in result.out
        assert result.out.count("(hidden)") == 3


def test_a_data_source_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    settings = tmp_path / "outlive.yaml"
    settings.write_text(
        "failover:\n  datasourceName: other\nfailoverUpkeep:\n  vmSource: database\n  databaseUrl: sqlite:///x\n"
    )
    result = outlive("config", "show", "--config", settings)
    assert result.code == 3
    assert "failover.datasourceName" in result.line
    assert "'other'" in result.line
    assert "known: nova-servers" in result.line


def test_a_null_in_the_settings_counts_as_absent(tmp_path: Path) -> None:
    settings = tmp_path / "outlive.yaml"
    settings.write_text("failover:\n  maxVMsToProcess: null\n  creator:\n  reconcileInterval: null\n")
    shown = read(outlive("config", "show", "--config", settings, "-o", "json"))["failover"]
    assert isinstance(shown, dict)
    assert (shown["maxVMsToProcess"], shown["reconcileInterval"]) == (30, "30s")
    assert shown["creator"] == "cortex-failover-controller"


def test_a_token_of_the_wrong_type_is_not_shown_in_the_error(tmp_path: Path) -> None:
    settings = tmp_path / "outlive.yaml"
    settings.write_text("failoverUpkeep:\n  schedulerToken: 987654\n")
    result = outlive("config", "show", "--config", settings)
    assert result.code == 3
    assert "failoverUpkeep.schedulerToken is (hidden)" in result.line
    assert "987654" not in result.err + result.out


def test_describe_prints_the_document_line_by_line(state: Path) -> None:
    lines = outlive("describe", "vm", "v00", "--state-dir", state).out.splitlines()
    assert lines[:4] == ["kind: VirtualMachine", "apiVersion: outlive.dev/v1alpha1", "metadata:", "  name: v00"]
    assert not any("\\n" in line for line in lines)


def test_a_state_directory_whose_store_is_gone_is_refused_with_the_remedy(state: Path) -> None:
    (state / "token").write_text("secret")
    for left in state.glob("store.db*"):
        left.unlink()
    for command in (["status"], ["apply", "-f", "-"], ["up", "--listen", "127.0.0.1:0"]):
        done = spawned(*command, "--state-dir", state, stdin=MANIFEST.encode())
        assert done.code == 1
        assert "store.db is missing" in done.line
        assert "from a backup" in done.line
    assert not (state / "store.db").exists()


def test_a_host_that_has_vms_is_deleted_only_by_force(state: Path) -> None:
    done = outlive("delete", "host", "h1", "--yes", "--state-dir", state)
    assert done.code == 1
    assert "host h1 has 2 VMs: v01 and v09" in done.line
    assert "--force" in done.line
    assert outlive("delete", "host", "h1", "--force", "--yes", "--state-dir", state).code == 0
    assert outlive("get", "host", "h1", "--state-dir", state).code == 4


def coverage(state: Path) -> dict[str, object]:
    return read(outlive("failover", "coverage", "--state-dir", state, "-o", "json"))


def test_the_slots_of_an_applied_plan_are_a_setting_of_the_cluster_from_then_on(state: Path) -> None:
    assert outlive("failover", "plan", "-k", "1", "--apply", "--state-dir", state).code == 0
    stated = coverage(state)
    assert (stated["covered"], stated["required"], stated["uncovered"]) == (16, 16, [])
    assert stated["tolerance"] == 1
    with up(state) as server:
        server.until("16 of 16 VMs that need slots are covered")
        refused = outlive("failover", "plan", "-k", "2", "--apply", "--state-dir", state)
        assert refused.code == 1
        assert "the running server does not ask for 2 slots" in refused.line
    assert coverage(state)["slots"] == stated["slots"]


def test_slots_that_the_settings_contradict_are_not_applied(state: Path) -> None:
    (state / "outlive.yaml").write_text('failover: {flavorFailoverRequirements: {"m0": 1, "*": 2}}\n')
    refused = outlive("failover", "plan", "-k", "1", "--apply", "--state-dir", state)
    assert refused.code == 1
    assert "the settings do not ask for 1 slots of every VM" in refused.line
    assert not read(outlive("get", "reservations", "--state-dir", state, "-o", "json"))["items"]


def test_status_counts_who_is_known_who_is_protected_and_who_is_covered(state: Path) -> None:
    assert "16 known\n" in outlive("status", "--state-dir", state).out
    reported = [
        {
            "apiVersion": "outlive.dev/v1alpha1",
            "kind": "Coverage",
            "metadata": {"name": name},
            "status": {"required": required, "covered": covered, "reason": "" if covered else "no-capacity"},
        }
        for name, required, covered in (("v00", 2, True), ("v01", 2, False), ("v02", 0, True))
    ]
    (state / "coverage.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": reported}))
    assert outlive("apply", "-f", state / "coverage.json", "--status", "--state-dir", state).code == 0
    document = read(outlive("status", "--state-dir", state, "-o", "json"))
    assert (document["known"], document["protected"], document["covered"], document["unreportedVms"]) == (16, 2, 1, 13)
    assert "16 known, 2 protected, 1 covered" in outlive("status", "--state-dir", state).out


def test_a_plan_and_an_import_show_what_each_level_costs(state: Path) -> None:
    folder = state.parent
    files = ("--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv")
    planned = read(outlive("failover", "plan", "--state-dir", state, "-o", "json"))
    imported = read(outlive("import", "csv", *files, "--dry-run", "--state-dir", folder / "none", "-o", "json"))
    assert planned["levels"] == imported["levels"]
    costs = planned["levels"]
    assert isinstance(costs, list)
    assert [(one["slotsEach"], one["vms"]) for one in costs] == [(1, 16), (2, 16), (3, 16)]
    assert [one["covered"] for one in costs[:2]] == [16, 16]
    assert 0 < costs[0]["slots"] < costs[1]["slots"]
    assert costs[1]["slots"] == planned["after"]["slots"]  # type: ignore[index]
    assert "What each level costs" in outlive("import", "csv", *files, "--state-dir", state).out
    assert "Slots of every VM" in outlive("failover", "plan", "--state-dir", state).out


def test_settings_that_an_older_version_kept_and_this_one_does_not_know_are_left_out(state: Path) -> None:
    kept = json.dumps({"failover": {"compat": "reference", "flavorFailoverRequirements": {"*": 1}}, "gone": {"a": 1}})
    cluster = {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "default", "annotations": {"outlive.dev/settings": kept}},
    }
    (state / "cluster.json").write_text(json.dumps(cluster))
    assert outlive("apply", "-f", state / "cluster.json", "--state-dir", state).code == 0
    assert outlive("failover", "plan", "--apply", "--state-dir", state).code == 0
    assert coverage(state)["tolerance"] == 1


def test_a_copy_of_the_state_is_restored_by_a_command_and_never_under_a_server(state: Path) -> None:
    copy = state.parent / "copy"
    shutil.copytree(state, copy)
    outlive("delete", "vm", "v00", "--yes", "--state-dir", state)
    with up(state):
        assert outlive("restore", copy, "--yes", "--state-dir", state).code == 5
    assert spawned("restore", copy, "--state-dir", state).code == 2, "it asks"
    done = outlive("restore", copy, "--yes", "--state-dir", state)
    assert done.code == 0, done.err
    assert outlive("get", "vm", "v00", "--state-dir", state).code == 0
    cluster = read(outlive("get", "cluster", "default", "--state-dir", state, "-o", "json"))
    assert "since" in cluster["status"]["pause"]  # type: ignore[index]


def test_rebalancing_shows_its_moves_with_figures_and_writes_nothing(state: Path) -> None:
    folder = state.parent
    (folder / "new.csv").write_text(HOSTS + "h9,32,128Gi,z1\n")
    outlive("import", "csv", "--hosts", folder / "new.csv", "--state-dir", state)
    file = folder / "uneven.json"
    file.write_text(outlive("dump", "--state-dir", state).out)
    result = outlive("rebalance", "--state", file, "--threshold", "10", "--moves", "2", "-o", "json")
    found = read(result)
    assert result.code == 0
    assert found["before"] > found["after"] or len(found["moves"]) == 2  # type: ignore[operator, arg-type]
    assert {move["host"] for move in found["moves"]} == {"h9"}  # type: ignore[attr-defined]
    shown = outlive("rebalance", "--state", file, "--threshold", "10").out
    assert "imbalance" in shown
    assert "--apply carries these moves out" in shown
    assert outlive("rebalance", "--state", file, "--apply").code != 0


GROUPED = """
apiVersion: outlive.dev/v1alpha1
kind: Hypervisor
metadata: {name: ours}
spec: {management: node}
---
apiVersion: outlive.dev/v1alpha1
kind: VirtualMachine
metadata: {name: v98}
spec: {resources: {cpu: 2, memory: 4Gi}, affinity: [{group: web, policy: affinity}, {group: db, policy: anti-affinity}]}
"""


def test_groups_are_listed_and_a_move_that_cannot_be_names_what_is_wrong(state: Path, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(GROUPED)
    assert outlive("apply", "-f", tmp_path / "more.yaml", "--state-dir", state).code == 0
    listed = outlive("group", "list", "--state-dir", state, "-o", "json")
    assert [(one["group"], one["policy"], one.get("together")) for one in json.loads(listed.out)] == [
        ("db", "anti-affinity", None),
        ("web", "affinity", True),
    ]
    for group, host, code, words in (
        ("db", "ours", 1, "no affinity group: anti-affinity"),
        ("nobody", "ours", 4, "no VM is in a group 'nobody'"),
        ("web", "nowhere", 4, "Hypervisor/nowhere is not there"),
        ("web", "h1", 1, "h1"),
    ):
        refused = outlive("group", "move", group, host, "--state-dir", state)
        assert (refused.code, words in refused.err) == (code, True), refused.err
    assert "nothing of group web is to be moved" in outlive("group", "move", "web", "ours", "--state-dir", state).out
