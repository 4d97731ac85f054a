"""``outlive secret`` against a running server: what is set can be used by coordinators, and is nowhere in clear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import Result, Server, outlive, spawned, up

from outlive.base.clock import SystemClock
from outlive.base.errors import Unavailable
from outlive.base.random import system_random
from outlive.drivers.bmc import Credential
from outlive.drivers.secrets import ClusterKey, Secrets
from outlive.store.http import HttpStore

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
            return await Secrets(store, key_file).credential(name)
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
    assert "v1." in listed.out
    assert [one["metadata"]["name"] for one in json.loads(listed.out)["items"]] == ["rack-3"]
    everywhere = listed.out + outlive("dump", "--state-dir", directory).out
    kept = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    for value in (VALUE, "another"):
        assert value not in everywhere
        assert value.encode() not in kept

    assert secret(directory, "delete", "rack-3").code == 0
    assert secret(directory, "delete", "rack-3").code == 4


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
    assert "there is no new key" in secret(directory, "rotate-key", "--finish").line

    assert secret(directory, "rotate-key").code == 0
    assert "a new key is there already" in secret(directory, "rotate-key").line
    assert secret(directory, "set", "rack-5", stdin=VALUE).code == 0
    assert credential(server, directory, there, "rack-5").password == VALUE, "the new key is not used yet"

    new = ClusterKey.read(here)
    new.write(there)
    done = secret(directory, "rotate-key", "--finish")
    assert "3 secrets sealed for key" in done.out
    assert len(ClusterKey.read(here).keys) == 1
    for name in ("rack-3", "rack-4", "rack-5"):
        assert credential(server, directory, here, name).password == VALUE
        assert credential(server, directory, there, name).password == VALUE
    ClusterKey(new.keys[1:]).write(there)
    with pytest.raises(Unavailable, match="which this host does not have"):
        credential(server, directory, there, "rack-3")


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
