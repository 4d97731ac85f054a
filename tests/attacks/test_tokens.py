"""Tokens: whose they are, whom they let in, and what a stolen or former one is worth; over real HTTP and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.api import AuthorityRotation, Role, ServerTls, StateToken, TokenUpkeep, digest_of
from outlive.base import Forbidden, Random, Refused, SystemClock, SystemIds, Unavailable, write_whole
from outlive.drivers import CredentialFiles, read_authorities, read_host_token, read_other_token
from outlive.node import CredentialRenewer, Credentials
from outlive.resources import Assigned, Hypervisor, Membership, ObjectMeta, Token, VirtualMachine, VirtualMachineStatus
from outlive.store import HttpStore, MemoryStore, Store, Upsert, make_pinned_context
from tests.support.api import GROUP, TOKENS, Api, api
from tests.support.host_tokens import joining, member
from tests.support.loops import run_real

HOST_TOKEN = "token-of-kvm-1-of-the-tests"
_replace = msgspec.structs.replace


def token(name: str, secret: str, *, role: str = "host", host: str = "") -> Token:
    return Token(metadata=ObjectMeta(name=name), role=role, digest=digest_of(secret.encode()), host=host)


def connected(url: str, file: Path) -> HttpStore:
    """As a daemon connects that starts now."""
    return HttpStore(url, read_host_token(file), clock=SystemClock(), random=Random(1), former=read_other_token(file))


def believer(url: str, role: Role, tls: ssl.SSLContext) -> HttpStore:
    return HttpStore(url, TOKENS[role], clock=SystemClock(), random=Random(1), tls=tls)


# Who may join, and as whom


@pytest.mark.parametrize("what", ["hypervisor", "membership", "token", "vm"])
async def test_a_join_token_without_a_host_takes_no_name_that_anything_refers_to(what: str) -> None:
    """``kvm-r3-05`` has not joined yet, and its VMs are assigned to it already."""
    async with joining() as (served, ask):
        admin, meta = served.client(), ObjectMeta(name="kvm-r3-05")
        if what == "hypervisor":
            await admin.create(Hypervisor(metadata=meta))
        elif what == "membership":
            await admin.create(member("kvm-r3-05"))
        elif what == "token":
            await admin.create(Token(metadata=ObjectMeta(name="t"), role="host", digest="d" * 64, host="kvm-r3-05"))
        else:
            vm = await admin.create(VirtualMachine(metadata=ObjectMeta(name="vm-1")))
            status = VirtualMachineStatus(assigned=Assigned(hypervisor="kvm-r3-05"))
            await admin.replace_status(_replace(vm, status=status))
        status, body = await ask("kvm-r3-05")
        assert (status, body["code"]) == (409, "refused"), body
        assert (await admin.get(Token, "join-1")).used_by == ""
        assert (await ask("kvm-new"))[0] == 200
        await admin.close()


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.JOIN])
async def test_no_token_but_a_join_token_joins_and_none_is_used_up(role: Role) -> None:
    async with joining() as (served, ask):
        admin, secret = served.client(), f"stored-token-of-role-{role}"
        await admin.create(token("adm-1", secret, role=role, host="adm-1"))
        assert (await ask("adm-1", secret=secret))[0] == 403
        assert (await ask("adm-1", secret=TOKENS[role]))[0] == 403
        assert (await admin.get(Token, "adm-1")).used_by == ""
        assert [one.name for one in (await admin.list(Token)).items if one.host == "adm-1"] == ["adm-1"]
        await admin.close()


async def test_every_token_that_is_made_over_the_api_ends_and_says_who_made_it() -> None:
    async with joining() as (served, _):
        wanted = {"metadata": {"name": "t"}, "role": "viewer", "digest": "d" * 64, "createdBy": "somebody else"}
        status, made, _ = await served.call("POST", f"{GROUP}/tokens", json=wanted)
        assert (status, made["createdBy"], made["expires"][:2]) == (201, "admin-of-tests", "20")


# Renewal over a real connection


@asynccontextmanager
async def renewing(directory: Path) -> AsyncIterator[tuple[Api, HttpStore, CredentialFiles, TokenUpkeep]]:
    """A server, and a host with its token on the disk."""
    files = CredentialFiles(directory / "node.token")
    write_whole(directory / "node.token", HOST_TOKEN.encode())
    async with api(joins=True) as served:
        admin = served.client()
        await admin.create(token("host.kvm-1", HOST_TOKEN, host="kvm-1"))
        await admin.close()
        host = connected(served.url, directory / "node.token")
        assert served.stored is not None
        state = StateToken(directory / "token", clock=SystemClock(), ids=SystemIds())
        upkeep = TokenUpkeep(served.store, served.stored, state, clock=SystemClock())
        try:
            yield served, host, files, upkeep
        finally:
            await host.close()


def renewer(host: HttpStore, files: CredentialFiles, **options: Any) -> CredentialRenewer:
    credentials = Credentials(files, host)
    return CredentialRenewer(credentials, clock=SystemClock(), random=Random(1), make=SystemIds().new_token, **options)


async def mark(served: Api) -> None:
    found = await served.store.get(Token, "host.kvm-1")
    await served.store.replace(_replace(found, rotate=True))
    await asyncio.sleep(0.05)


def test_a_host_renews_its_token_over_its_connection_and_its_watches_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with renewing(tmp_path) as (served, host, files, upkeep):
            watched = host.observe(Hypervisor)
            await renewer(host, files).renew_token()
            assert read_host_token(tmp_path / "node.token") == HOST_TOKEN, "it is not due"
            await mark(served)
            await renewer(host, files).renew_token()
            fresh = read_host_token(tmp_path / "node.token")
            assert fresh != HOST_TOKEN
            assert await files.read_pending() == ""
            await upkeep.update()
            found = await served.store.get(Token, "host.kvm-1")
            assert (found.digest, found.rotate) == (digest_of(fresh.encode()), False)
            await served.store.replace(_replace(found, former_digest="", former_until=None))
            await asyncio.sleep(0.05)
            await host.list(Hypervisor)
            # The watch began with a token that is good no more: it goes on with the new one.
            await served.store.create(Hypervisor(metadata=ObjectMeta(name="kvm-1")))
            async with asyncio.timeout(60):
                async for change in watched:
                    if isinstance(change, Upsert) and change.object.name == "kvm-1":
                        break

    run_real(story())
    assert all(one.stat().st_mode & 0o077 == 0 for one in tmp_path.iterdir())


async def test_nobody_renews_the_token_of_somebody_else_or_one_that_is_no_host_s() -> None:
    async with joining() as (served, _):
        for role in Role:
            if role not in (Role.HOST, Role.COORDINATOR):
                status, *_ = await served.call("POST", "/token/renew", role=role, json={"digest": "a" * 64})
                assert status == 403, role
        status, body, _ = await served.call("POST", "/token/renew", role=Role.HOST, json={"digest": "a" * 63})
        assert status == 400, body
        admin = served.client()
        secret = "token-of-kvm-2-of-the-tests"
        await admin.create(token("host.kvm-2", secret, host="kvm-2"))
        taken = (await admin.get(Token, "join-1")).digest
        headers = {"Authorization": f"Bearer {secret}"}
        status, body, _ = await served.call("POST", "/token/renew", role=None, headers=headers, json={"digest": taken})
        assert (status, body["message"]) == (409, "this secret is that of another token")
        await admin.close()


async def test_a_host_goes_on_with_its_former_token_after_the_store_was_restored(tmp_path: Path) -> None:
    """The backup is older than the renewal: the server knows the former token alone."""
    async with renewing(tmp_path) as (served, host, files, upkeep):
        backup = await served.store.get(Token, "host.kvm-1")
        await mark(served)
        await renewer(host, files).renew_token()
        await upkeep.update()
        await served.store.delete(backup.ref)
        await served.store.create(_replace(backup, metadata=ObjectMeta(name="host.kvm-1")))
        await asyncio.sleep(0.05)
        await host.list(Hypervisor)
        again = connected(served.url, tmp_path / "node.token")
        await again.list(Hypervisor)
        await again.close()


async def test_a_revoked_host_is_refused_with_both_of_its_tokens(tmp_path: Path) -> None:
    async with renewing(tmp_path) as (served, host, files, _):
        await mark(served)
        await renewer(host, files).renew_token()
        await served.store.delete((await served.store.get(Token, "host.kvm-1")).ref)
        await asyncio.sleep(0.05)
        for _ in range(3):
            with pytest.raises(Forbidden, match="not known"):
                await host.list(Hypervisor)


# Another authority


@asynccontextmanager
async def server(directory: Path, store: Store, port: int = 0) -> AsyncIterator[tuple[Api, ServerTls]]:
    """A server with an authority of its own."""
    tls = ServerTls(directory, ["127.0.0.1"], SystemClock())
    rotation = AuthorityRotation(store, tls, SystemClock()).rotate
    async with api(
        store, tls=tls, authority=lambda: tls.published, rotate_authority=rotation, joins=True, port=port
    ) as served:
        yield served, tls


def test_the_authority_is_replaced_while_a_host_renews_its_lease(tmp_path: Path) -> None:
    """No renewal is lost for longer than one retry; then a server with the new authority is believed, and one with the
    old authority is not. A host that does not believe the new one yet is named."""

    async def story() -> None:
        old, new, node = (tmp_path / name for name in ("old", "new", "node"))
        for folder in (old, new, node):
            folder.mkdir()
        store = MemoryStore(SystemClock(), SystemIds())
        async with server(new, store) as (served, tls):
            for one in new.iterdir():  # as somebody has it who copied the old authority
                write_whole(old / one.name, one.read_bytes())
            first, pinned = tls.fingerprint, tls.fingerprint
            (node / "ca.pem").write_text(tls.authority)
            write_whole(node / "node.token", TOKENS[Role.HOST].encode())
            files = CredentialFiles(node / "node.token", node / "ca.pem", pinned)
            trust = make_pinned_context(await files.read_authorities())
            host = believer(served.url, Role.HOST, trust)
            admin = served.client(tls=trust)
            await store.create(Token(metadata=ObjectMeta(name="host.kvm-1"), role="host", digest="d", host="kvm-1"))
            made = await store.create(Hypervisor(metadata=ObjectMeta(name="kvm-1")))
            lease = await store.create(member("kvm-1"))
            lost: list[int] = []

            async def renew() -> None:
                nonlocal lease
                while True:
                    record = _replace(lease.record, seq=lease.record.seq + 1)
                    try:
                        # Each renewal has a connection of its own: none is spared the handshake.
                        fresh = believer(served.url, Role.ADMIN, host._tls or trust)
                        try:
                            lease = await fresh.replace(_replace(lease, record=record))
                        finally:
                            await fresh.close()
                        lost.append(0)
                    except Unavailable:
                        lost.append(lost[-1] + 1 if lost else 1)
                    await asyncio.sleep(0.02)

            renewing_lease = asyncio.create_task(renew())
            said = await admin.command("/tls/rotate", {})
            assert (said["authority"], said["without"]) == (first, ["kvm-1"])
            with pytest.raises(Refused, match="kvm-1 does not believe the new authority yet"):
                await admin.command("/tls/rotate", {"finish": True})
            believed: list[tuple[str, ...]] = []
            follows = renewer(host, files, reported=believed.append)
            await follows.renew_authorities()
            assert believed == [(first, said["next"])]
            status = _replace(made.status, authorities=believed[-1])
            await store.replace_status(_replace(await store.get(Hypervisor, "kvm-1"), status=status))
            said = await admin.command("/tls/rotate", {"finish": True})
            assert said["authority"] == believed[-1][1] == tls.fingerprint
            await follows.renew_authorities()
            assert believed[-1] == (tls.fingerprint,)
            seq = (await store.get(Membership, "kvm-1")).record.seq
            while (await store.get(Membership, "kvm-1")).record.seq < seq + 5:  # noqa: ASYNC110 - nothing says when another process has written
                await asyncio.sleep(0.02)
            renewing_lease.cancel()
            await asyncio.wait([renewing_lease])
            assert max(lost) <= 1
            found = read_authorities(node / "ca.pem", pinned)  # as its daemon reads them when it starts anew
            again = believer(served.url, Role.HOST, make_pinned_context(found))
            await again.list(Hypervisor)
            await again.close()
            await host.close()
            await admin.close()
        impostor = ServerTls(old, ["127.0.0.1"], SystemClock())
        assert impostor.fingerprint == first
        async with api(tls=impostor) as served:
            fooled = believer(served.url, Role.HOST, make_pinned_context(found))
            with pytest.raises(Unavailable, match="is not believed"):
                await fooled.list(Hypervisor)
            await fooled.close()

    run_real(story())


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
async def test_only_an_admin_replaces_the_authority(tmp_path: Path, role: Role) -> None:
    async with server(tmp_path, MemoryStore(SystemClock(), SystemIds())) as (served, tls):
        trust = make_pinned_context(read_authorities(tmp_path / "ca.pem", tls.fingerprint))
        status, *_ = await served.call("POST", "/tls/rotate", role=role, json={}, ssl=trust)
        assert (status, tls.next_fingerprint) == (403, "")


@pytest.mark.parametrize("crash", ["the new key is not there yet", "the new key has gone, its certificate not"])
def test_a_server_that_crashes_while_its_authority_is_replaced_starts_again(tmp_path: Path, crash: str) -> None:
    tls = ServerTls(tmp_path, [], SystemClock())
    first = tls.fingerprint
    tls.rotate()
    following = tls.next_fingerprint
    if crash.endswith("yet"):
        (tmp_path / "ca-next.key").unlink()
    else:
        (tmp_path / "ca-next.key").replace(tmp_path / "ca.key")
    again = ServerTls(tmp_path, [], SystemClock())
    assert again.fingerprint == (first if crash.endswith("yet") else following)
    assert again.next_fingerprint == ""
    assert not (tmp_path / "ca-next.pem").exists()
    again.rotate()
    again.finish()
    assert ServerTls(tmp_path, [], SystemClock()).fingerprint == again.fingerprint


async def test_what_followed_an_authority_is_not_believed_where_another_one_is_pinned(tmp_path: Path) -> None:
    """A host that joins another cluster is not led astray by what the former one has left."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, other = (ServerTls(tmp_path / name, [], SystemClock()) for name in ("a", "b"))
    file = tmp_path / "ca.pem"
    file.write_text(first.authority)

    files = CredentialFiles(tmp_path / "node.token", file, first.fingerprint)
    before = await files.read_authorities()
    first.rotate()
    await files.believe((*before, *read_authorities(tmp_path / "a/ca-next.pem", first.next_fingerprint)))
    assert len(await files.read_authorities()) == 2
    file.write_text(other.authority)
    assert read_authorities(file, other.fingerprint) == read_authorities(tmp_path / "b/ca.pem", other.fingerprint)
