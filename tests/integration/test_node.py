"""``outlive node`` as a process beside a real ``outlive up``: it registers, renews, restarts, is replaced, and ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.support.command import Server, outlive, spawned, up
from tests.support.hosts import LIMIT_S, Host, within
from tests.support.keystone import free_port
from tests.support.receivers import receiver_tls

from outlive import __version__


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    directory = tmp_path_factory.mktemp("node") / "state"
    with up(directory) as running:
        yield running, directory


@pytest.fixture
def host(server: tuple[Server, Path], tmp_path: Path) -> Iterator[Host]:
    """A host of its own name for each test; its daemon is killed in the end."""
    running, directory = server
    name = f"host-{tmp_path.name.replace('_', '-').lower()[-40:]}"
    one = Host(tmp_path / "host", name, running.url, directory / "token")
    yield one
    one.close()


def record(host: Host, directory: Path) -> dict[str, Any]:
    answer = outlive("get", "memberships", host.name, "--state-dir", directory, "-o", "json")
    assert answer.code == 0, answer.err
    return {"state": "Held", "epoch": 1, **json.loads(answer.out)["record"]}


def hypervisor(host: Host, directory: Path) -> dict[str, Any]:
    return json.loads(outlive("get", "hypervisors", host.name, "--state-dir", directory, "-o", "json").out)


def test_it_registers_its_host_and_renews(server: tuple[Server, Path], host: Host) -> None:
    host.sections["host"] |= {
        "addresses": {"cluster": "10.0.0.1", "storage": "10.0.1.1"},
        "capacity": {"cpu": "16", "memory": "64Gi"},
        "labels": {"topology.kubernetes.io/zone": "a"},
    }
    host.configure()
    host.start().ready()
    first = record(host, server[1])
    assert (first["state"], first["epoch"]) == ("Held", 1)
    assert within(LIMIT_S, lambda: record(host, server[1])["seq"] > first["seq"] + 1)
    assert within(LIMIT_S, lambda: hypervisor(host, server[1])["status"].get("addresses") is not None)
    found = hypervisor(host, server[1])
    assert found["spec"]["management"] == "node"
    assert found["metadata"]["labels"]["topology.kubernetes.io/zone"] == "a"
    assert found["status"]["capacity"] == {"cpu": "16", "memory": "64Gi"}
    assert found["status"]["addresses"] == {"cluster": "10.0.0.1", "storage": "10.0.1.1"}
    assert found["status"]["storageAddress"] == "10.0.1.1"
    asked = ("get", "hypervisorusages", host.name, "--state-dir", server[1], "-o", "json")
    assert within(LIMIT_S, lambda: outlive(*asked).code == 0), "it tells how much is used"
    usage = json.loads(outlive(*asked).out)["usage"]
    assert usage["load"] >= 0
    assert set(usage["used"]) == {"cpu", "memory"}, "of the machine, though no VM is here"
    assert "stale" not in usage
    assert host.said().count("\n") == 1, host.said()
    assert host.stop() == 0
    after = record(host, server[1])
    assert after["state"] == "Released", "it held nothing, and left"


def test_the_installed_version_takes_its_place_in_the_same_process(server: tuple[Server, Path], host: Host) -> None:
    host.start().ready()
    before = record(host, server[1])
    host.signal(signal.SIGUSR2)
    assert within(LIMIT_S, lambda: len(host.events("node.ready")) == 2)
    assert host.process is not None
    assert host.process.poll() is None
    assert host.events("node.started")[1]["pid"] == host.process.pid
    after = record(host, server[1])
    assert (after["epoch"], after["state"]) == (before["epoch"], "Held")
    second = spawned("node", "--config", host.config)
    assert second.code == 1
    assert "another daemon runs" in second.line, "it still has its lock"
    assert host.stop() == 0


def test_a_version_that_cannot_start_takes_nobodys_place(server: tuple[Server, Path], host: Host) -> None:
    host.start().ready()
    good = host.config.read_text()
    host.config.write_text("server: [")
    host.signal(signal.SIGUSR2)
    assert within(LIMIT_S, lambda: host.events("node.not_replaced") != [])
    host.config.write_text(good)
    seen = record(host, server[1])["seq"]
    assert within(LIMIT_S, lambda: record(host, server[1])["seq"] > seen)


def test_the_log_is_opened_anew(server: tuple[Server, Path], host: Host) -> None:
    host.start().ready()
    host.log.rename(host.log.with_suffix(".1"))
    host.signal(signal.SIGHUP)
    assert within(LIMIT_S, host.log.exists)
    assert host.stop() == 0
    assert host.events("node.stopped") != []


def test_its_log_is_read_from_elsewhere_where_it_keeps_one_in_the_store(
    server: tuple[Server, Path], host: Host
) -> None:
    host.start().ready()
    none = outlive("host", "log", host.name, "--state-dir", server[1])
    assert (none.code, none.err.count("\n")) == (4, 1)
    assert "set node.logLines in its node.yaml" in none.line
    host.close()
    host.sections["node"] = {"logLines": 50}
    host.configure()
    host.start().ready()

    def shown(*options: str) -> list[str]:
        return outlive("host", "log", host.name, *options, "--state-dir", server[1]).out.splitlines()

    assert within(LIMIT_S, lambda: any('"node.ready"' in line for line in shown()))
    started = next(json.loads(line) for line in shown() if '"node.started"' in line)
    assert (started["version"], started["kernel"]) == (__version__, os.uname().release)
    assert host.stop() == 0
    assert len(shown("-n", "1")) == 1
    assert any("drain_logs" in line for line in shown()), "the end of the log is written at the end"


def test_a_second_daemon_is_refused_in_one_line(host: Host) -> None:
    host.start().ready()
    second = spawned("node", "--config", host.config)
    assert second.code == 1
    assert second.line.startswith("outlive: another daemon runs on host-")


def test_a_host_that_is_called_otherwise_than_it_was_does_not_start(host: Host) -> None:
    host.start().ready()
    host.close()
    host.sections["host"]["name"] = "another"
    host.configure()
    said = spawned("node", "--config", host.config)
    assert said.code == 3
    assert f"this machine is a member as {host.name} and is now called another" in said.line
    assert f"set host.name: {host.name}" in said.line


def test_another_machine_of_the_same_name_does_not_start(host: Host) -> None:
    """As one that was made from a copy of the disk: whatever its files say, it is another machine."""
    host.start().ready()
    host.close()
    (host.directory / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    host.boot()
    said = spawned("node", "--config", host.config)
    assert said.code == 1
    assert "give this machine another name" in said.line


def test_its_token_is_renewed_without_joining_again(server: tuple[Server, Path], host: Host) -> None:
    """``outlive token rotate`` marks it; the daemon renews it at its next look, here at its start, and lives on."""
    created = outlive("token", "create", "--join", "--host", host.name, "--state-dir", server[1], "-o", "json")
    del host.sections["server"]
    host.configure()
    token = json.loads(created.out)["token"]
    joined = outlive("node", "join", server[0].url, "--token", token, "--config", host.config)
    assert joined.code == 0, joined.err
    file = host.directory / "node.token"
    first = file.read_text()
    said = outlive("token", "rotate", host.name, "--state-dir", server[1])
    assert (said.code, "its host renews it" in said.out) == (0, True), said.err
    host.start().ready()
    assert within(LIMIT_S, lambda: file.read_text() != first), host.logged()[-3000:]
    assert file.stat().st_mode & 0o777 == 0o600
    seq = record(host, server[1])["seq"]
    assert within(LIMIT_S, lambda: record(host, server[1])["seq"] > seq + 1)
    assert host.stop() == 0
    assert host.start().ready().stop() == 0


def test_the_token_of_another_host_starts_nothing(server: tuple[Server, Path], host: Host, tmp_path: Path) -> None:
    other = Host(tmp_path / "other", f"{host.name}-2"[-60:], server[0].url, server[1] / "token")
    made = outlive("token", "create", "--join", "--any-new-host", "--state-dir", server[1], "-o", "json")
    assert made.code == 0, made.err
    token = json.loads(made.out)["token"]
    joined = outlive("node", "join", server[0].url, "--token", token, "--config", other.config)
    assert joined.code == 0, joined.err
    host.sections["server"]["tokenFile"] = str(other.directory / "node.token")
    host.configure()
    said = spawned("node", "--config", host.config)
    assert said.code == 1, said.err
    assert f"/{host.name}: that is another host's" in said.line


def test_a_token_that_nobody_knows_starts_nothing(server: tuple[Server, Path], host: Host) -> None:
    nonsense = host.directory / "nonsense"
    nonsense.write_text("nonsense-token-nonsense\n")
    nonsense.chmod(0o600)
    host.sections["server"]["tokenFile"] = str(nonsense)
    host.configure()
    said = spawned("node", "--config", host.config)
    assert said.code == 7, said.err
    assert "the token is not known" in said.line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount a disk that can be filled")
def test_a_host_whose_disk_is_full_waits_and_says_so(server: tuple[Server, Path], host: Host, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    host.sections["host"]["stateDir"] = str(disk / "state")
    host.configure()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        host.start().ready()
        host.close()
        host.boot()
        fill(disk / "filler")
        host.start()
        assert within(LIMIT_S, lambda: any("No space left" in one["why"] for one in host.events("membership.blocked")))
        assert "ready" not in host.said(), "an epoch that is not written down is not used"
        assert within(LIMIT_S, lambda: f"host-cannot-join.{host.name}" in outlive_faults(server[1]))
        (disk / "filler").unlink()
        host.ready()
        assert record(host, server[1])["epoch"] >= 2
        assert within(LIMIT_S, lambda: f"host-cannot-join.{host.name}" not in outlive_faults(server[1]))
    finally:
        host.close()
        subprocess.run(["umount", str(disk)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"\0" * 4096):
            pass


def outlive_faults(directory: Path) -> list[str]:
    items = json.loads(outlive("get", "faults", "--state-dir", directory, "-o", "json").out)["items"]
    return [one["metadata"]["name"] for one in items if not one.get("ended")]


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("server", "url", "http://10.0.0.1:8080", "plain HTTP to another machine"),
        ("server", "url", "controller:8080", "is no address of a server"),
        ("server", "url", "", "no server is named"),
        ("server", "tokenFile", "/nowhere/token", "no such file"),
        ("server", "tocken", "x", "did you mean server.tokenFile"),
        ("host", "name", "Host_1", "cannot be the name of a host"),
        ("host", "machineIdFile", "/etc/hostname", "is no machine id"),
        ("host", "bootIdFile", "/nowhere/boot", "cannot be read"),
        ("host", "capacity", {"cpu": "much"}, "much"),
        ("host", "stateDir", "/proc/state", "cannot be made"),
        ("log", "file", "/nowhere/log", "cannot be opened"),
    ],
)
def test_a_bad_setting_is_one_line(host: Host, section: str, key: str, value: object, words: str) -> None:
    host.sections[section][key] = value
    host.configure()
    said = outlive("node", "--config", host.config)
    assert said.code in (3, 4, 6, 7)
    assert words in said.line


def test_it_serves_its_own_metrics_by_tls_to_who_shows_a_token(
    server: tuple[Server, Path], host: Host, tmp_path: Path
) -> None:
    receiver_tls(tmp_path / "tls")
    tokens, token = tmp_path / "tokens", "a-token-of-prometheus"
    tokens.write_text(f"viewer {token} prometheus\n")
    tokens.chmod(0o600)
    port = free_port()
    host.sections["metrics"] = {
        "listen": f"127.0.0.1:{port}",
        "tokensFile": str(tokens),
        "tlsCertificate": str(tmp_path / "tls" / "server.pem"),
        "tlsKey": str(tmp_path / "tls" / "server.key"),
    }
    host.configure()
    host.start().ready()
    context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))

    def scrape(path: str, shown: str = "") -> tuple[int, str]:
        request = Request(
            f"https://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {shown}"} if shown else {}
        )
        try:
            with urlopen(request, timeout=10, context=context) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, ""

    status, text = scrape("/metrics", token)
    assert status == 200
    assert "outlive_node_member 1.0" in text
    assert "outlive_node_renewed_timestamp_seconds" in text
    assert (scrape("/metrics")[0], scrape("/metrics", "another-token-of-nobody")[0]) == (401, 401)
    assert scrape("/apis/outlive.dev/v1alpha1/hypervisors", token)[0] == 404


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"listen": "10.0.0.1:9177", "tokensFile": "/etc/x"}, "beyond this machine"),
        ({"listen": "127.0.0.1:9177"}, "tokensFile is missing"),
        ({"listen": "nonsense", "tokensFile": "/etc/x"}, "no address to listen on"),
    ],
)
def test_metrics_are_not_served_in_the_open(host: Host, section: dict[str, str], words: str) -> None:
    host.sections["metrics"] = section
    host.configure()
    host.start()
    assert host.ended() == 3
    assert words in host.said()
