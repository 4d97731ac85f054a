"""``outlive secret`` against a running server: what is set can be used by coordinators, and is nowhere in clear."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.api import GROUP, api
from tests.support.command import Result, Server, outlive, spawned, up
from tests.support.hosts import LIMIT_S, Host, within
from tests.support.loops import run_real

from outlive.api import Role
from outlive.base import Forbidden, SystemClock, Unavailable, system_random
from outlive.cli import publish
from outlive.drivers import ClusterKey, Secrets
from outlive.drivers.bmc import Credential
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, ObjectMeta
from outlive.store import HttpStore

VALUE = "four-words-of-two"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with up(tmp_path / "state") as one:
        yield one


def secret(directory: Path, *arguments: str, stdin: str = "") -> Result:
    return spawned("secret", *arguments, "--state-dir", directory, stdin=stdin.encode())


def credential(server: Server, directory: Path, key_file: Path, name: str) -> Credential:
    """As a coordinator reads it."""

    async def used() -> Credential:
        token = (directory / "token").read_text().strip()
        store = HttpStore(server.url, token, clock=SystemClock(), random=system_random())
        try:
            return await Secrets(store, key_file).read_credential(name)
        finally:
            await store.close()

    return asyncio.run(used())


@pytest.mark.usefixtures("server")
def test_a_value_is_sealed_before_it_leaves_the_command(server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    done = secret(directory, "set", "rack-3", "--username", "outlive", stdin=VALUE + "\n")
    assert (done.code, done.out) == (0, "secret/rack-3 set\n"), done.err
    found = credential(server, directory, directory / "cluster-key", "rack-3")
    assert (found.username, found.password) == ("outlive", VALUE)

    assert secret(directory, "set", "rack-3", stdin="another").code == 0
    found = credential(server, directory, directory / "cluster-key", "rack-3")
    assert (found.username, found.password) == ("outlive", "another")

    listed = secret(directory, "list", "-o", "json")
    assert "v2." in listed.out
    assert [one["metadata"]["name"] for one in json.loads(listed.out)["items"]] == ["rack-3"]
    everywhere = listed.out + outlive("dump", "--state-dir", directory).out
    kept = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    for value in (VALUE, "another"):
        assert value not in everywhere
        assert value.encode() not in kept

    asked = secret(directory, "delete", "rack-3")
    assert (asked.code, "give --yes" in asked.line) == (2, True)
    assert secret(directory, "delete", "rack-3", "--yes").code == 0
    assert secret(directory, "delete", "rack-3", "--yes").code == 4


@pytest.mark.usefixtures("server")
def test_a_value_in_clear_is_refused_and_an_empty_one_as_well(tmp_path: Path) -> None:
    directory, file = tmp_path / "state", tmp_path / "secret.yaml"
    head = "apiVersion: outlive.dev/v1alpha1\nkind: Secret\nmetadata: {name: rack-3}\n"
    file.write_text(f"{head}spec: {{sealed: {VALUE}}}\n")
    refused = outlive("apply", "-f", file, "--state-dir", directory)
    assert refused.code == 3
    assert "holds no sealed value" in refused.line
    assert "the value is empty" in secret(directory, "set", "rack-3", stdin="\n").line
    assert "no such file" in secret(directory, "set", "rack-3", "--file", str(tmp_path / "none")).line


def test_the_key_changes_in_two_steps_and_nobody_is_without_it(server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    here, there = directory / "cluster-key", tmp_path / "coordinator"
    ClusterKey.read(here).write(there)
    for name in ("rack-3", "rack-4"):
        assert secret(directory, "set", name, stdin=VALUE).code == 0
    assert "there is no new key" in secret(directory, "rotate-key", "--finish", "--yes").line

    assert secret(directory, "rotate-key").code == 0
    assert "a new key is there already" in secret(directory, "rotate-key").line
    assert secret(directory, "set", "rack-5", stdin=VALUE).code == 0
    assert credential(server, directory, there, "rack-5").password == VALUE, "the new key is not used yet"

    new = ClusterKey.read(here)
    new.write(there)
    done = secret(directory, "rotate-key", "--finish", "--yes")
    assert "3 secrets sealed for key" in done.out
    assert len(ClusterKey.read(here).keys) == 1
    for name in ("rack-3", "rack-4", "rack-5"):
        assert credential(server, directory, here, name).password == VALUE
        assert credential(server, directory, there, name).password == VALUE
    ClusterKey(new.keys[1:]).write(there)
    with pytest.raises(Unavailable, match="which this host does not have"):
        credential(server, directory, there, "rack-3")


def _keys(directory: Path, kind: str, name: str) -> tuple[str, ...]:
    return tuple(json.loads(outlive("get", kind, name, "--state-dir", directory, "-o", "json").out)["status"]["keyIds"])


def test_a_change_of_the_key_that_was_interrupted_goes_on_when_it_is_repeated(server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    file = directory / "cluster-key"
    assert secret(directory, "set", "rack-3", stdin=VALUE).code == 0
    both = ClusterKey.generate(ClusterKey.read(file))
    both.write(file)  # it ended before the new key was published
    again = secret(directory, "rotate-key")
    assert (again.code, f"new key in {file}" in again.out) == (0, True), again.err
    assert _keys(directory, "clusters", "default") == both.ids == ClusterKey.read(file).ids
    assert secret(directory, "rotate-key", "--finish", "--yes").code == 0
    assert _keys(directory, "clusters", "default") == both.ids[:1]

    async def as_before() -> None:
        token = (directory / "token").read_text().strip()
        store = HttpStore(server.url, token, clock=SystemClock(), random=system_random())
        await publish(store, SystemClock(), both)
        await store.close()

    run_real(as_before())  # it ended before it was published that the old key is gone
    again = secret(directory, "rotate-key", "--finish", "--yes")
    assert (again.code, "the old key is not in" in again.out) == (0, True), again.err
    assert _keys(directory, "clusters", "default") == both.ids[:1]
    assert "there is no new key" in secret(directory, "rotate-key", "--finish", "--yes").line


def test_coordinators_fetch_a_new_key_by_themselves_and_who_cannot_is_named(server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    here, there = directory / "cluster-key", tmp_path / "host/cluster-key"
    host = Host(tmp_path / "host", "kvm-1", server.url, tmp_path / "host/node.token")
    host.sections["node"] = {"look": "1s"}
    host.configure()
    ticket = json.loads(
        outlive(
            "token", "create", "--join", "--coordinator", "--host", "kvm-1", "--state-dir", directory, "-o", "json"
        ).out
    )
    joined = spawned("node", "join", server.url, "--token", ticket["token"], "--config", host.config)
    assert joined.code == 0, joined.err
    assert secret(directory, "set", "rack-3", stdin=VALUE).code == 0
    try:
        host.start().ready()
        assert within(LIMIT_S, lambda: "keyIds" in outlive("get", "ohv", "--state-dir", directory, "-o", "json").out)
        assert _keys(directory, "clusters", "default") == _keys(directory, "hypervisors", "kvm-1")
        host.signal(signal.SIGSTOP)
        assert secret(directory, "rotate-key").code == 0
        new = ClusterKey.read(here).ids
        refused = secret(directory, "rotate-key", "--finish", "--yes")
        assert (refused.code, f"kvm-1 has not fetched key {new[0]} yet" in refused.line) == (1, True), refused.err
        host.signal(signal.SIGCONT)
        assert within(LIMIT_S, lambda: _keys(directory, "hypervisors", "kvm-1") == new)
        assert there.read_text() == here.read_text()
        assert there.stat().st_mode & 0o077 == 0
        done = secret(directory, "rotate-key", "--finish", "--yes")
        assert done.code == 0, done.err
        assert within(LIMIT_S, lambda: _keys(directory, "hypervisors", "kvm-1") == new[:1])
        assert credential(server, directory, there, "rack-3").password == VALUE

        token = (directory / "token").read_text().strip()
        request = urllib.request.Request(f"{server.url}/cluster-key", headers={"Authorization": f"Bearer {token}"})
        with pytest.raises(urllib.error.HTTPError, match="403") as denied:
            urllib.request.urlopen(request, timeout=LIMIT_S)
        denied.value.close()
    finally:
        host.signal(signal.SIGCONT)
        host.close()


def test_a_lost_key_is_told_and_never_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with up(directory):
        kept = (directory / "cluster-key").read_text()
    (directory / "cluster-key").unlink()
    with up(directory) as server:
        assert any("does not hold the cluster's key" in line for line in server.said)
        assert not (directory / "cluster-key").exists()
        assert secret(directory, "set", "rack-3", stdin=VALUE).code == 0
        there = tmp_path / "coordinator"
        ClusterKey.parse(kept, "kept").write(there)
        assert credential(server, directory, there, "rack-3").password == VALUE


async def test_only_an_administrator_says_which_controller_gets_a_secret() -> None:
    """A writer of the address would be sent the password at the next rehearsal."""
    async with api() as served:
        admin, operator = served.client(), served.client(Role.OPERATOR)
        fencing = FencingSpec(driver="redfish", address="10.0.9.7", secret="rack-3")
        made = await admin.create(Hypervisor(metadata=ObjectMeta(name="kvm-1"), spec=HypervisorSpec(fencing=fencing)))

        def changed(**fields: Any) -> Hypervisor:
            return replace(made, spec=replace(made.spec, fencing=replace(fencing, **fields)))

        for name, value in (
            ("driver", "command"),
            ("address", "http://mine"),
            ("options", {"insecure": "true"}),
            ("secret", "rack-4"),
        ):
            with pytest.raises(
                Forbidden, match=rf"may not write spec\.fencing\.{name}.* of Hypervisor/kvm-1"
            ) as caught:
                await operator.replace(changed(**{name: value}))
            assert caught.value.remedy == "who may is in docs/reference/permissions.md#table"
            new = HypervisorSpec(fencing=FencingSpec(**{name: value}))
            with pytest.raises(Forbidden, match=rf"may not write spec\.fencing\.{name} of Hypervisor/kvm-2"):
                await operator.create(Hypervisor(metadata=ObjectMeta(name="kvm-2"), spec=new))
        headers = {"Content-Type": "application/merge-patch+json"}
        patch = {"spec": {"fencing": {"address": "http://mine"}}}
        path = f"{GROUP}/hypervisors/kvm-1"
        status, _, _ = await served.call("PATCH", path, role=Role.OPERATOR, headers=headers, json=patch)
        assert status == 403
        made = await operator.replace(changed(maintenance=True, system_uuid="4c4c", operator_proof="1|ann|unplugged"))
        assert made.spec.fencing.maintenance
        await operator.create(Hypervisor(metadata=ObjectMeta(name="kvm-3"), spec=HypervisorSpec(drain=True)))
        await admin.replace(changed(address="10.0.9.8"))
        for store in (admin, operator):
            await store.close()
