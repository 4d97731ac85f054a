"""``outlive up`` as a process: the example becomes covered and stays so, over HTTP, across restarts and kills."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.command import Server, imported, outlive, up
from tests.support.guards import until
from tests.support.hosts import within
from tests.support.keystone import free_port

from outlive.cli.example import example_files

LIMIT_S = 60.0


def get(server: Server, path: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def covered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with the example, covered, and no server on it."""
    directory = tmp_path_factory.mktemp("up") / "state"
    with up(directory, "--example") as server:
        server.until("600 of 600 VMs that need slots are covered")
    assert server.process.returncode == 0
    return directory


def test_the_example_is_covered_and_every_allocation_holds(covered: Path) -> None:
    result = outlive("failover", "coverage", "--state-dir", covered, "-o", "json")
    document = json.loads(result.out)
    assert result.code == 0
    assert (document["vms"], document["covered"], document["tolerance"]) == (600, 600, 2)
    assert outlive("failover", "check", "--state-dir", covered).code == 0


def test_the_example_has_40_hosts_in_4_racks(covered: Path) -> None:
    hosts = json.loads(outlive("get", "hosts", "--state-dir", covered, "-o", "json").out)["items"]
    racks = [host["metadata"]["labels"]["outlive.dev/domain-rack"] for host in hosts]
    assert {rack: racks.count(rack) for rack in racks} == {"r1": 10, "r2": 10, "r3": 10, "r4": 10}


def test_commands_find_the_running_server_and_use_its_token(covered: Path) -> None:
    with up(covered) as server:
        shown = outlive("status", "--state-dir", covered).out
        assert f"server {server.url}" in shown
        assert "600 known, 600 protected, 600 covered" in shown
        assert outlive("failover", "coverage", "--state-dir", covered).code == 0
        token = (covered / "token").read_text().strip()
        assert (
            len(json.loads(outlive("get", "vms", "--server", server.url, "--token", token, "-o", "json").out)["items"])
            == 600
        )
        assert (covered / "token").stat().st_mode & 0o777 == 0o600
    assert not (covered / "server.json").exists()


def test_a_second_start_with_the_example_does_not_import_again(covered: Path) -> None:
    with up(covered, "--example") as server:
        assert any("not imported again" in line for line in server.said)


def test_probes_metrics_and_schema_are_served(covered: Path) -> None:
    with up(covered) as server:
        token = (covered / "token").read_text().strip()
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/readyz") == (200, "ok\n")
        assert '"openapi"' in get(server, "/schema")[1]
        metrics = get(server, "/metrics", token)[1]
        for name in ("outlive_failover_reconciliation_runs_total", "outlive_reservations", "outlive_election_leader"):
            assert name in metrics


def test_metrics_carry_the_configured_prefix(tmp_path: Path) -> None:
    with up(tmp_path / "state", env={"OUTLIVE_METRICS__PREFIX": "cortex_"}) as server:
        token = (tmp_path / "state" / "token").read_text().strip()
        metrics = get(server, "/metrics", token)[1]
        assert "cortex_failover_reconciliation_runs_total" in metrics
        assert "outlive_" not in metrics


def test_a_vm_that_appears_or_moves_gets_its_slots_at_once(covered: Path, tmp_path: Path) -> None:
    from outlive.resources import VirtualMachine, decode

    with up(covered):
        listed = outlive("get", "vms", "--state-dir", covered, "-o", "json").out
        some = json.loads(listed)["items"][0]
        new = {**some, "metadata": {"name": "brand-new"}}
        decode(VirtualMachine, json.dumps(new))
        manifest = tmp_path / "vm.json"
        manifest.write_text(json.dumps(new))
        host = some["status"]["assigned"]["hypervisor"]
        kept = json.loads(outlive("get", "host", host, "--state-dir", covered, "-o", "json").out)
        kept["status"]["instances"].append({"id": "brand-new"})
        kept["metadata"].pop("resourceVersion")
        (tmp_path / "host.json").write_text(json.dumps(kept))
        files = ["-f", manifest, "-f", tmp_path / "host.json"]
        assert outlive("apply", "--status", *files, "--state-dir", covered).code == 0

        def has_slots() -> bool:
            result = outlive("get", "coverage", "brand-new", "--state-dir", covered, "-o", "json")
            return result.code == 0 and bool(json.loads(result.out)["status"]["covered"])

        assert within(LIMIT_S, has_slots)
        outlive("delete", "vm", "brand-new", "--yes", "--state-dir", covered)


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    directory, settings = tmp_path / "state", tmp_path / "outlive.yaml"
    settings.write_text(
        "failover: {repack: {max_changes_per_cycle: 0}}"
    )  # so that nothing is written once all is covered
    with up(directory, "--example", "--config", settings) as server:
        server.until("600 of 600 VMs")
        before = outlive("dump", "--state-dir", directory).out
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(timeout=20)
    from outlive.resources import decode_state, state_digest

    after = outlive("dump", "--state-dir", directory)
    assert after.code == 0, after.err
    assert state_digest(decode_state(after.out.encode()).objects) == state_digest(decode_state(before.encode()).objects)
    with up(directory) as again:
        assert "600 VMs" in "".join(again.said)


def test_a_server_whose_disk_is_full_is_not_ready_and_not_healthy_until_it_can_write_again(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    manifest = tmp_path / "vm.json"

    def write(name: str) -> int:
        document = {"apiVersion": "outlive.dev/v1alpha1", "kind": "VirtualMachine", "metadata": {"name": name}}
        manifest.write_text(json.dumps(document))
        return outlive("apply", "-f", manifest, "--state-dir", directory).code

    with up(directory) as server:
        assert write("before") == 0
        health = json.loads(outlive("status", "--state-dir", directory, "-o", "json").out)["health"]
        number, unlimited = server.process.pid, resource.RLIM_INFINITY
        resource.prlimit(number, resource.RLIMIT_FSIZE, (4096, unlimited))  # no file of it may grow: a full disk
        assert write("lost") == 6
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            get(server, "/readyz")
        assert "the store cannot write" in refused.value.read().decode()
        assert get(server, "/healthz")[0] == 200
        status = json.loads(outlive("status", "--state-dir", directory, "-o", "json").out)
        assert status["health"] <= health - 50
        assert outlive("get", "vm", "before", "--state-dir", directory).code == 0
        resource.prlimit(number, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        assert within(LIMIT_S, lambda: write("after") == 0)
        assert get(server, "/readyz") == (200, "ok\n")


def test_an_interrupted_server_says_so_with_its_exit_code(covered: Path) -> None:
    with up(covered) as server:
        assert server.stop(signal.SIGINT) == 130


def test_a_server_on_an_empty_state_says_what_to_do_and_takes_an_import(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with up(directory) as server, example_files() as files:
        assert "outlive import" in server.until("nothing to protect")
        arguments = ["import", "csv", "--hosts", files.hosts, "--vms", files.vms, "--state-dir", directory]
        assert outlive(*arguments).code == 0

        def looked_after() -> bool:
            """Nearly all VMs are covered, and each other VM has a condition that says why not."""
            reported = json.loads(outlive("status", "--state-dir", directory, "-o", "json").out)["coverage"]
            waiting = reported["reasons"].get("waiting-for-a-cycle", 0)
            return reported["required"] == 600 and reported["covered"] >= 590 and not waiting

        assert within(LIMIT_S * 2, looked_after)


@pytest.mark.parametrize("with_token", [True, False])
def test_placement_over_http_works_against_its_own_server_with_its_token_only(tmp_path: Path, with_token: bool) -> None:
    port = free_port()
    state = tmp_path / "state"
    settings = tmp_path / "outlive.yaml"
    settings.write_text(
        f"failover:\n  schedulerURL: http://127.0.0.1:{port}/scheduler/nova/external\n"
        f"failoverUpkeep:\n  placement: http\n" + (f"  schedulerTokenFile: {state / 'token'}\n" if with_token else "")
    )
    log = tmp_path / "state.log"
    with up(state, "--listen", f"127.0.0.1:{port}", "--config", str(settings), "--example"):
        if with_token:
            assert within(LIMIT_S, lambda: len(items(state, "reservations")) > 10)
        else:
            assert within(LIMIT_S, lambda: "placement.failed" in log.read_text())
            assert not items(state, "reservations")
    said = log.read_text()
    assert ("placement.failed" in said) is not with_token
    assert "Unclosed" not in said


def items(state: Path, kind: str) -> list[object]:
    found: list[object] = json.loads(outlive("get", kind, "--state-dir", state, "-o", "json").out)["items"]
    return found


@pytest.mark.slow
def test_a_vm_without_a_slot_is_logged_once_and_not_in_every_cycle(tmp_path: Path) -> None:
    directory = imported(tmp_path, "name,cpu,memory\nh1,8,16Gi\n", "id,cpu,memory,host\nv1,4,8Gi,h1\n")
    log = tmp_path / "state.log"
    with up(directory, env={"OUTLIVE_FAILOVER__RECONCILE_INTERVAL": "1s", "OUTLIVE_LOG__LEVEL": "debug"}) as server:
        server.until("0 of 1 VMs that need slots are covered")
        until(lambda: log.read_text().count("cycle.done") >= 4, "there are four cycles", LIMIT_S)
    text = log.read_text()
    assert text.count("vm.without_slot") == 1


@pytest.mark.slow
def test_a_start_logs_a_few_lines_and_says_its_address_last(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with up(directory, "--example") as server:
        last = server.until(" slots; ready on ")
        time.sleep(1)
        lines = (tmp_path / "state.log").read_text().splitlines()
        assert len(lines) < 100, lines
    assert last.rstrip().endswith(server.url)
    with up(directory) as server:
        assert "600 of 600 VMs that need slots are covered; ready on" in server.said[-1]
