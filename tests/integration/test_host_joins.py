"""How a host gets its token: by a join token, once, and by the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.api import GROUP, Api
from tests.support.command import outlive, spawned, up
from tests.support.host_tokens import joining, member, refused

from outlive.api import HostJoin, Joining, StoredTokens, digest_of
from outlive.base import Random, Refused, SystemClock, SystemIds
from outlive.resources import ObjectMeta, Token
from outlive.store import HttpStore, MemoryStore

OTHER = "kvm-2"
_replace = msgspec.structs.replace


async def test_a_join_token_becomes_the_token_of_one_host() -> None:
    async with joining() as (served, ask):
        status, body = await ask("kvm-1")
        assert (status, body["role"], body["clusterKey"]) == (200, "host", "")
        host = HttpStore(served.url, body["token"], clock=SystemClock(), random=Random(1))
        written = member("kvm-1")
        await host.create(_replace(written, record=_replace(written.record, machine_id="a" * 32)))
        assert "kvm-2" in await refused(host.create(member("kvm-2")))
        await host.close()
        assert body["token"] not in str(await served.call("GET", f"{GROUP}/tokens"))
        status, again = await ask("kvm-2", "b" * 32)
        assert status == 401
        assert again["message"] == f"the join token join-1 was used by kvm-1 (machine {'a' * 32})"


async def test_a_coordinator_gets_the_key_of_the_cluster() -> None:
    async with joining(coordinator=True) as (_, ask):
        _, body = await ask("kvm-1")
        assert (body["role"], body["clusterKey"]) == ("coordinator", "the key")


async def test_two_hosts_with_one_join_token_at_once() -> None:
    async with joining() as (_, ask):
        answers = await asyncio.gather(*(ask(f"kvm-{n}", str(n) * 32) for n in range(1, 6)))
        assert sorted(status for status, _ in answers)[:2][0] == 200
        assert sum(status == 200 for status, _ in answers) == 1


@pytest.mark.parametrize(
    ("token", "host", "machine", "status", "said"),
    [
        ({"host": "kvm-2"}, "kvm-1", "a" * 32, 409, "the join token join-1 is for kvm-2, and kvm-1 came with it"),
        ({"expires": datetime.now(UTC) - timedelta(hours=1)}, "kvm-1", "a" * 32, 401, "the token join-1 ended at"),
        ({}, "Kvm_1", "a" * 32, 422, "is not a DNS name"),
        ({}, "kvm-1", "!", 400, "'!' is no machine id"),
        ({}, "kvm-9", "a" * 32, 409, f"machine {'a' * 32} has joined as kvm-8: it was renamed, or its disk is a copy"),
        ({}, "kvm-8", "b" * 32, 409, f"kvm-8 has joined as machine {'a' * 32}, and machine {'b' * 32} wants this name"),
    ],
)
async def test_what_cannot_join_is_told_why_and_the_token_stays(
    token: dict[str, Any], host: str, machine: str, status: int, said: str
) -> None:
    async with joining(**token) as (served, ask):
        admin = served.client()
        first = member("kvm-8")
        await admin.create(_replace(first, record=_replace(first.record, machine_id="a" * 32)))
        code, body = await ask(host, machine)
        assert (code, said in body["message"], bool(body["remedy"])) == (status, True, True), body
        assert (await admin.get(Token, "join-1")).used_by == ""
        await admin.close()


async def ticket(served: Api, name: str, **token: Any) -> str:
    """Another join token."""
    secret = f"token-of-{name}-{'x' * 16}"
    admin = served.client()
    await admin.create(Token(metadata=ObjectMeta(name=name), role="join", digest=digest_of(secret.encode()), **token))
    await admin.close()
    return secret


async def test_a_host_that_has_joined_is_replaced_by_a_join_token_for_it_only() -> None:
    """Its name and the id of its machine are no secrets: any token that reads learns them."""
    async with joining() as (served, ask):
        await ask("kvm-1")
        foreign = await ticket(served, "join-2")
        status, body = await ask("kvm-1", secret=foreign)
        assert (status, body["message"]) == (
            409,
            "kvm-1 has joined before, and the join token join-2 is not for it alone",
        )
        assert body["remedy"] == "create one that is: outlive token create --join --host kvm-1"
        admin = served.client()
        assert (await admin.get(Token, "join-2")).used_by == ""
        written = member("kvm-1")
        await admin.create(_replace(written, record=_replace(written.record, machine_id="a" * 32)))
        await admin.delete((await admin.get(Token, "host.kvm-1")).ref)
        await admin.close()
        assert (await ask("kvm-1", secret=foreign))[0] == 409  # revoked, and still a member
        status, again = await ask("kvm-1", secret=await ticket(served, "join-3", host="kvm-1"))
        assert (status, again["role"]) == (200, "host")
        status, last = await ask("kvm-1", secret=await ticket(served, "join-4", host="kvm-1"))
        assert (status, last["token"] != again["token"]) == (200, True)


@pytest.mark.parametrize("host", ["", "kvm-1"])
async def test_two_machines_that_want_one_name_at_once(host: str) -> None:
    async with joining(host=host) as (served, ask):
        secrets = ["one-time-token", *[await ticket(served, f"join-{n}", host=host) for n in range(2, 6)]]
        asked = [ask("kvm-1", str(n) * 32, secret) for n, secret in enumerate(secrets)]
        answers = await asyncio.gather(*asked)
        good = [body["token"] for status, body in answers if status == 200]
        assert (len(good), {status for status, _ in answers}) == (1, {200, 409})
        admin = served.client()
        kept = await admin.get(Token, "host.kvm-1")
        assert kept.digest == digest_of(good[0].encode())
        await admin.close()


async def test_one_machine_that_wants_two_names_at_once() -> None:
    async with joining() as (served, ask):
        secrets = ["one-time-token", *[await ticket(served, f"join-{n}") for n in range(2, 6)]]
        asked = [ask(f"kvm-{n}", "a" * 32, secret) for n, secret in enumerate(secrets, 1)]
        answers = await asyncio.gather(*asked)
        good = [body for status, body in answers if status == 200]
        assert (len(good), {status for status, _ in answers}) == (1, {200, 409}), answers
        admin = served.client()
        machines = [one.name for one in (await admin.list(Token)).items if one.machine_id == "a" * 32]
        assert machines == [f"host.{good[0]['host']}"]
        await admin.close()


async def test_one_machine_that_wants_two_names_of_two_servers_at_once() -> None:
    """They share nothing but the store, so it may be that neither of them lets it in."""
    store = MemoryStore(SystemClock(), SystemIds())
    tokens = StoredTokens(store, clock=SystemClock(), random=Random(1))
    for name in ("join-1", "join-2"):
        await store.create(Token(metadata=ObjectMeta(name=name), role="join", digest=digest_of(name.encode())))
    servers = [HostJoin(store, tokens, clock=SystemClock(), ids=SystemIds()) for _ in range(2)]
    asked = [server._exchange(f"join-{n}", Joining(f"kvm-{n}", "a" * 32)) for n, server in enumerate(servers, 1)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    good = [one.host for one in answers if not isinstance(one, BaseException)]
    kept = [one.host for one in (await store.list(Token)).items if one.machine_id]
    assert len(good) <= 1
    assert good == kept
    assert all(isinstance(one, Refused) for one in answers if isinstance(one, BaseException))


def test_a_host_joins_by_the_command_line(tmp_path: Path) -> None:
    """Over TLS, with the fingerprint; what people wrote into the configuration stays."""
    state, config = tmp_path / "state", tmp_path / "node.yaml"
    config.write_text(f"# ours\nhost:\n  stateDir: {tmp_path / 'host'}\nlog:\n  level: info\n")
    with up(state, "--listen", "0.0.0.0:0") as server:
        pinned = json.loads((state / "server.json").read_text())["fingerprint"]
        made = json.loads(
            outlive(
                "token", "create", "--join", "--coordinator", "--host", "kvm-1", "--state-dir", state, "-o", "json"
            ).out
        )
        assert f"--fingerprint {pinned}" in made["join"]
        options = ("--token", made["token"], "--config", config, "--name", "kvm-1")
        wrong = spawned("node", "join", server.url, *options, "--fingerprint", "0" * 64)
        assert (wrong.code, "was expected" in wrong.line) == (7, True)
        joined = spawned("node", "join", server.url, *options, "--fingerprint", pinned)
        assert joined.code == 0, joined.err
        assert "kvm-1 has joined" in joined.out
        text = config.read_text()
        wanted = ("# ours", ' mode: "coordinator"', " level: info", f' url: "{server.url}"')
        assert all(line in text for line in wanted)
        assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("node.token", "cluster-key"))
        assert (tmp_path / "cluster-key").read_text() == (state / "cluster-key").read_text()
        assert spawned("node", "--check", "--config", config).code == 0
        again = spawned("node", "join", server.url, *options, "--fingerprint", pinned)
        assert (again.code, "was used by kvm-1" in again.line) == (7, True)
        listed = outlive("token", "list", "--state-dir", state).out
        assert "host.kvm-1" in listed
        assert made["token"] not in listed
        revoke = ("token", "revoke", "kvm-1", "--state-dir", state)
        assert outlive(*revoke).code == 2
        assert outlive(*revoke, "--yes").out == "host.kvm-1 (coordinator) is revoked\n"


@pytest.mark.parametrize(
    "text",
    [
        '{{"host": {{"stateDir": "{state}"}}}}\n',
        "host: {{stateDir: {state}}}\n",
        "host:\n  stateDir: {state}\nserver: {{\n  url: x\n}}\n",
        "host:\n  stateDir: {state}\n...\n",
    ],
    ids=["json", "section on one line", "server over lines", "end of document"],
)
def test_a_configuration_that_lines_cannot_be_added_to_costs_no_join_token(tmp_path: Path, text: str) -> None:
    state, config = tmp_path / "state", tmp_path / "node.yaml"
    config.write_text(text := text.format(state=tmp_path / "host"))
    with up(state) as server:
        made = json.loads(
            outlive("token", "create", "--join", "--any-new-host", "--state-dir", state, "-o", "json").out
        )
        options = ("--token", made["token"], "--config", config, "--name", "kvm-1")
        refused = outlive("node", "join", server.url, *options)
        assert (refused.code, "is not written in lines" in refused.line, str(config) in refused.line) == (3, True, True)
        assert config.read_text() == text
        config.write_text(f"host:\n  stateDir: {tmp_path / 'host'}\n")
        joined = outlive("node", "join", server.url, *options)
        assert joined.code == 0, joined.err
        assert spawned("node", "--check", "--config", config).code == 0


def test_an_authority_in_a_file_is_not_taken_with_a_fingerprint(tmp_path: Path) -> None:
    """Names are not compared with a fingerprint, and an authority of an operator's signs for others as well."""
    options = ("--token", "x" * 20, "--config", tmp_path / "node.yaml", "--ca", tmp_path / "ca.pem")
    result = outlive("node", "join", "https://127.0.0.1:1", *options, "--fingerprint", "0" * 64)
    assert (result.code, "--fingerprint, --ca" in result.line) == (2, True), result.line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create",), "say what the token is for"),
        (("create", "--join", "--role", "viewer"), "say what the token is for"),
        (("create", "--role", "host"), "there is no role 'host'"),
        (("create", "--role", "viewer", "--host", "kvm-1"), "only join tokens are for hosts"),
        (("create", "--join", "--host", "kvm-1", "--for", "never"), "'never' is no time that a token may last"),
        (("create", "--role", "viewer", "--for", "401d"), "'401d' is no time that a token may last"),
        (("create", "--join"), "say which host is to join"),
        (("create", "--join", "--host", "kvm-1", "--any-new-host"), "say which host is to join"),
        (("create", "--join", "--coordinator", "--any-new-host"), "a coordinator gets the cluster's key"),
        (("create", "--role", "viewer", "host.kvm-1"), "is a name of a host's token"),
        (("revoke", "nobody"), "there is no token 'nobody'"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = outlive("token", *arguments, "--state-dir", tmp_path)
    assert result.code != 0
    assert said in result.line
