"""Bad input, line by line: each is one line with its place and its remedy, and its exit code."""

from __future__ import annotations

import resource
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import COMMAND, Result, environment, outlive, spawned, up

HOSTS = "name,cpu,memory\nh0,32,128Gi\nh1,32,128Gi\n"
VMS = "id,cpu,memory,host\nv0,4,8Gi,h0\nv1,4,8Gi,h1\n"
HYPERVISOR = "apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: a}\n"
VM = "apiVersion: outlive.dev/v1alpha1\nkind: VirtualMachine\nmetadata: {name: v1}\n"


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file and return its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def imported(folder: Path, hosts: str = HOSTS, vms: str = VMS, *more: str) -> Result:
    (folder / "hosts.csv").write_text(hosts)
    (folder / "vms.csv").write_text(vms)
    files = ["--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv"]
    return outlive("import", "csv", *files, "--state-dir", folder / "state", *more)


def refused(result: Result, code: int, *words: str) -> None:
    """One line, with a place or value, a remedy in parentheses, and this exit code."""
    assert result.code == code, result.err
    assert result.line.startswith("outlive")
    assert result.line.endswith(")")
    for word in words:
        assert word in result.line


@pytest.mark.parametrize(
    ("hosts", "vms", "words"),
    [
        ('name,cpu,memory\nh0,32,"128Gi\n', VMS, ("hosts.csv:2", "not CSV")),
        (HOSTS, "id,cpu,memory,host\nv0,4\n", ("vms.csv:2", "2 cells")),
        (HOSTS, "id,cpu,memory,host\nv0,four,8Gi,h0\n", ("vms.csv:2", "'four'")),
        (HOSTS, "id,cpu,memory,host\nv0,-4,8Gi,h0\n", ("vms.csv:2", "negative cpu: -4")),
        (HOSTS, "id,cpu,memory,host\nv0,4,0,h0\n", ("vms.csv:2", "no memory")),
        (HOSTS, "id,cpu,memory,host\nv0,4,8E,h0\n", ("vms.csv:2", "more than any machine")),
        ("name,cpu,memory\nh0,32000000,128Gi\n", "id,cpu,memory\n", ("hosts.csv:2", "more than any machine")),
        (HOSTS + "h0,32,128Gi\n", VMS, ("hosts.csv:4", "there twice", "hosts.csv:2")),
        (HOSTS, VMS + "v0,4,8Gi,h0\n", ("vms.csv:4", "there twice", "vms.csv:2")),
        (HOSTS, "id,cpu,memory,host\nv0,4,8Gi,h9\n", ("vms.csv:2", "'h9'", "in no list of hosts")),
        (HOSTS, f"id,cpu,memory,host\n{'v' * 254},4,8Gi,h0\n", ("vms.csv:2", "254 characters")),
        (HOSTS, "id,cpu,memory,host,status\nv0,4,8Gi,h0,sleeps\n", ("vms.csv:2", "'sleeps'", "--status-map", "halted")),
        (HOSTS, "id,cpu,memory,host\nv0,4,16384,h0\n", ("vms.csv:2", "memory 16Ki", "memory=COLUMN:Mi")),
        (HOSTS, "id,cpu,memory,host,disk\nv0,4,8Gi,h0,-5\n", ("vms.csv:2", "negative diskGib: -5")),
        (HOSTS, "id,cpu,memory,host,disk\nv0,4,8Gi,h0,2000000\n", ("vms.csv:2", "diskGib 2000000", "at most 1048576")),
        ("", VMS, ("hosts.csv:1", "is empty")),
        ("name:cpu:memory\n", VMS, ("hosts.csv:1", "no column for name")),
    ],
)
def test_a_bad_inventory_is_refused_by_file_and_line(
    tmp_path: Path, hosts: str, vms: str, words: tuple[str, ...]
) -> None:
    refused(imported(tmp_path, hosts, vms), 3, *words)


def test_nothing_is_written_of_an_inventory_with_a_problem(tmp_path: Path) -> None:
    imported(tmp_path)
    imported(tmp_path, HOSTS + "h2,64,1Ti\n", VMS + "v2,4,8Gi,h9\n")
    assert outlive("get", "host", "h2", "--state-dir", tmp_path / "state").code == 4


def test_every_problem_of_an_inventory_is_a_line(tmp_path: Path) -> None:
    rows = "".join(f"w{n},0,8Gi,h0\n" for n in range(30))
    result = imported(tmp_path, HOSTS, VMS + rows)
    assert result.code == 3
    assert len(result.lines) == 21
    assert result.lines[-1] == "outlive: and 10 more problems"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--host-map", "name=sn,cpu=cpu,memory=memory"), 3, ("hosts.csv:1", "no column 'sn'")),
        (("--where", "phase=Running"), 3, ("vms.csv:1", "no column 'phase'")),
        (("--host-map", "nam=name"), 2, ("--host-map", "did you mean 'name'")),
        (("--host-map", "name=name:GiB"), 2, ("--host-map", "unit 'GiB'")),
        (("--domains", "rack"), 2, ("--domains", "rack=32")),
        (("--domains", "rack=0"), 2, ("--domains",)),
        (("--overcommit", "cpu=0.5"), 2, ("--overcommit", "at least 1")),
    ],
)
def test_bad_options_of_an_import_name_the_option(
    tmp_path: Path, options: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    refused(imported(tmp_path, HOSTS, VMS, *options), code, *words)


def test_a_file_over_the_limit_is_exit_code_8(tmp_path: Path) -> None:
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as stream:
        stream.truncate(512 * 2**20 + 1)
    refused(outlive("import", "csv", "--hosts", huge, "--state-dir", tmp_path / "s"), 8, "huge.csv", "512 MiB")


def test_a_missing_file_is_exit_code_4(tmp_path: Path) -> None:
    refused(outlive("import", "csv", "--hosts", tmp_path / "no.csv", "--state-dir", tmp_path / "s"), 4, "no.csv")
    refused(outlive("import", "openstack", tmp_path / "no", "--state-dir", tmp_path / "s"), 4, "no such folder")
    refused(outlive("get", "vms", "--state", tmp_path / "no.json"), 4, "no.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", ("m.yaml:2", "not YAML")),
        (HYPERVISOR + "spec: {\n", ("m.yaml:", "not YAML")),
        (HYPERVISOR + "spec: {maintenance: nap}\n", ("m.yaml:1", "nap")),
        (HYPERVISOR + "spec: {mode: hypervisor, mode: coordinator}\n", ("m.yaml:4", "twice")),
        (HYPERVISOR + "spec: {colour: red}\n", ("m.yaml:1", "colour")),
        (HYPERVISOR + "---\n" + HYPERVISOR, ("m.yaml:5", "there twice")),
        ("apiVersion: v1\nkind: Pod\n", ("m.yaml:1", "apiVersion", "outlive.dev/v1alpha1")),
        ("apiVersion: outlive.dev/v1alpha1\nkind: Pod\n", ("m.yaml:1", "'Pod' is not known")),
        ("apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: A_1}\n", ("m.yaml:1", "DNS name")),
        (VM + "spec: {startAfter: [v1]}\n", ("m.yaml:1", "start after itself")),
        ("- just a list\n", ("m.yaml:1", "a resource is a map")),
        ('{"kind": ', ("m.yaml:1", "not JSON")),
        ("", ("no documents",)),
    ],
)
def test_a_bad_manifest_is_refused_by_line(
    tmp_path: Path, put: Callable[[str, str], Path], text: str, words: tuple[str, ...]
) -> None:
    refused(outlive("apply", "-f", put("m.yaml", text), "--state-dir", tmp_path / "s"), 3, *words)


def test_a_pipeline_that_cannot_be_built_is_refused_before_it_is_kept(
    tmp_path: Path, put: Callable[[str, str], Path]
) -> None:
    text = "apiVersion: outlive.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec: {detectors: [{name: d}]}\n"
    refused(outlive("apply", "-f", put("p.yaml", text), "--state-dir", tmp_path / "s"), 3, "p.yaml:1", "detectors")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "State"}', '{"takenAt":"2026-01-01T00:00:00Z","objects":[{}]}']
)
def test_a_broken_state_file_is_refused(put: Callable[[str, str], Path], text: str) -> None:
    refused(outlive("failover", "coverage", "--state", put("s.json", text)), 3, "s.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("failover: [1\n", ("c.yaml:", "not")),
        ("failovr: {}\n", ("c.yaml:1", "failovr", "did you mean failover")),
        ("failover:\n  reconcileIntervall: 5m\n", ("c.yaml:2", "reconcileIntervall", "did you mean")),
        ("failover:\n  maxVMsToProcess: many\n", ("c.yaml:2", "maxVMsToProcess", "many")),
        ("failover:\n  reconcileInterval: 5\n", ("c.yaml:2", "reconcileInterval")),
        (
            'failover:\n  flavorFailoverRequirements: {"m1.[a-": 2}\n',
            ("flavorFailoverRequirements", "m1.[a-", "malformed"),
        ),
        ("api:\n  listen: nowhere\n", ("c.yaml:", "listen")),
    ],
)
def test_bad_settings_name_the_key_and_the_line(
    tmp_path: Path, put: Callable[[str, str], Path], text: str, words: tuple[str, ...]
) -> None:
    refused(outlive("up", "--config", put("c.yaml", text), "--state-dir", tmp_path / "s"), 3, *words)


def test_a_bad_setting_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    env = {"OUTLIVE_FAILOVER__MAX_VMS_TO_PROCESS": "many"}
    refused(spawned("up", "--state-dir", tmp_path / "s", env=env), 3, "OUTLIVE_FAILOVER__MAX_VMS_TO_PROCESS", "many")


def test_a_database_that_is_not_there_is_exit_code_6(tmp_path: Path) -> None:
    target = tmp_path / "state"
    refused(outlive("import", "database", f"sqlite:///{tmp_path}/no.db", "--state-dir", target), 6, "no.db")
    refused(outlive("import", "database", "oracle://x", "--state-dir", target), 3, "oracle")
    refused(outlive("import", "database", "::", "--state-dir", target), 3, "malformed")


def test_a_database_without_the_tables_is_exit_code_6(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    result = outlive("import", "database", f"sqlite:///{tmp_path}/empty.db", "--state-dir", tmp_path / "state")
    refused(result, 6, "servers")


def test_a_state_directory_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    imported(tmp_path)
    with sqlite3.connect(tmp_path / "state" / "store.db") as database:
        (version,) = database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        database.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(int(version) + 1),))
    database.close()
    for command in (("get", "vms"), ("up",)):
        refused(outlive(*command, "--state-dir", tmp_path / "state"), 3, "newer Outlive")


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(outlive("up", "--state-dir", tmp_path / "file"), 3, "no directory")


def test_two_servers_on_one_directory_the_second_names_the_first(tmp_path: Path) -> None:
    with up(tmp_path / "state") as server:
        refused(spawned("up", "--state-dir", tmp_path / "state"), 5, str(server.process.pid))


def test_a_port_in_use_is_exit_code_5(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = spawned("up", "--state-dir", tmp_path / "state", "--listen", f"127.0.0.1:{port}")
    assert result.code == 5
    assert any(f"port {port}" in line and "--listen" in line for line in result.lines)


def test_a_wrong_token_is_exit_code_7(tmp_path: Path) -> None:
    with up(tmp_path / "state") as server:
        refused(outlive("get", "vms", "--server", server.url, "--token", "not-the-right-one-at-all"), 7, "token")
        refused(outlive("get", "vms", "--server", server.url, "--state-dir", tmp_path / "none"), 7, "token")
        missing = outlive("get", "vms", "--server", server.url, "--token", f"@{tmp_path}/none")
        refused(missing, 4, "none")


@pytest.mark.parametrize("address", ["banana", "127.0.0.1", "127.0.0.1:99999"])
def test_where_nobody_can_listen_is_refused_by_the_name_of_the_option(tmp_path: Path, address: str) -> None:
    refused(spawned("up", "--state-dir", tmp_path / "state", "--listen", address), 3, "--listen", f"'{address}'")


@pytest.mark.parametrize("address", ["kvm-1", "127.0.0.1:8080", "ftp://kvm-1"])
def test_what_is_no_address_of_a_server_is_refused_with_one_that_is(address: str) -> None:
    refused(outlive("get", "vms", "--server", address), 2, "--server", f"'{address}'", "http://127.0.0.1:8080")


def test_a_server_that_is_not_there_is_exit_code_6(tmp_path: Path) -> None:
    with socket.socket() as silent:  # nobody else has its port meanwhile, and it listens to nobody
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        refused(outlive("get", "vms", "--server", url, "--token", "x" * 20), 6, "127.0.0.1")


def test_a_full_disk_ends_an_import_with_exit_code_6_and_repeating_completes_it(tmp_path: Path) -> None:
    (tmp_path / "hosts.csv").write_text("name,cpu,memory\n" + "".join(f"h{n:04},32,128Gi\n" for n in range(1500)))
    arguments = ["import", "csv", "--hosts", str(tmp_path / "hosts.csv"), "--state-dir", str(tmp_path / "state")]

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    broken = subprocess.run(
        [*COMMAND, *arguments], env=environment(), capture_output=True, text=True, preexec_fn=small, check=False
    )
    result = Result(broken.returncode, broken.stdout, broken.stderr)
    refused(result, 6, "repeat the import")
    there = outlive("get", "hosts", "--state-dir", tmp_path / "state").out.splitlines()[1:]
    assert 0 < len(there) < 1500
    assert outlive(*arguments).code == 0
    assert len(outlive("get", "hosts", "--state-dir", tmp_path / "state").out.splitlines()) == 1501


def test_an_interrupted_command_is_exit_code_130_and_says_nothing(tmp_path: Path) -> None:
    imported(tmp_path)
    import signal
    import time

    process = subprocess.Popen(
        [*COMMAND, "get", "vms", "--watch", "--state-dir", str(tmp_path / "state")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")
