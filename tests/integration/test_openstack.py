"""A real Keystone: logging in, projects, tokens of callers, the catalogue; with it Limes and Nova over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import http_service, keystone
from tests.support.command import outlive, up
from tests.support.keystone import Keystone
from tests.support.limes import Limes, commitment
from tests.support.loops import run_real
from tests.support.nova import VERSION, Nova
from tests.support.openstack import settings

from outlive.api import ServerTls
from outlive.base import (
    BadInput,
    Forbidden,
    Instant,
    NotFound,
    OutliveError,
    Random,
    SeededIds,
    SystemClock,
    Unavailable,
)
from outlive.commitments import CommitmentSettings, CommitmentSyncer, commitment_name, read_store
from outlive.drivers.bmc import Credential
from outlive.drivers.openstack import (
    INVALID_S,
    VALID_S,
    KeystoneProjects,
    KeystoneTokens,
    LimesClient,
    OpenStackSession,
)
from outlive.drivers.openstack import session as sessions
from outlive.resources import (
    CommitmentStep,
    CommittedResource,
    FlavorGroup,
    FlavorGroupSpec,
    GroupFlavor,
    ObjectMeta,
    ObjectRef,
)
from outlive.runtime import FaultRecorder, Metrics
from outlive.store import MemoryStore, list_all

pytestmark = pytest.mark.component("keystone")
FLAVOR = GroupFlavor(name="s4_c1_m1", vcpus=1, memory_mb=1024)
S4 = FlavorGroupSpec(
    group_name="s4", flavors=(FLAVOR,), largest_flavor=FLAVOR, smallest_flavor=FLAVOR, ram_core_ratio=1024
)
OUTLIVE, SECRET = "outlive", "pa55word-of-the-service"


@dataclass
class Cloud:
    """A Keystone, with Nova and Limes in its catalogue."""

    keystone: Keystone
    nova: Nova
    limes: Limes
    folder: Path
    projects: dict[str, tuple[str, str]]
    """Name → domain and id."""

    def clouds_file(self, password: str = SECRET, user: str = OUTLIVE) -> Path:
        return self.keystone.clouds(self.folder / "clouds.yaml", user=user, password=password, project="service")

    @asynccontextmanager
    async def session(
        self, credential: Callable[[], Any] | None = None, *, file: Path | None = None, **given: Any
    ) -> AsyncIterator[OpenStackSession]:
        path = file or self.clouds_file()
        opened = OpenStackSession(settings(clouds_file=str(path), request_limit=20.0, **given), credential)
        try:
            yield opened
        finally:
            await opened.close()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    nova, limes = Nova(), Limes()
    with http_service.in_thread(nova, limes), keystone.running() as server:
        server.add_service("compute", f"{nova.url}{VERSION}")
        server.add_service("resources", limes.url, interfaces=("public",))
        projects = {"service": ("default", server.create("projects", name="service", domain_id="default"))}
        domain = server.create("domains", name="customers")
        for name in ("green", "blue"):
            projects[name] = (domain, server.create("projects", name=name, domain_id=domain))
        server.add_user(OUTLIVE, SECRET, projects["service"][1], "admin")
        server.add_user("member", "pa55word-of-a-member", projects["service"][1], "member")
        yield Cloud(server, nova, limes, tmp_path_factory.mktemp("cloud"), projects)


@pytest.fixture(autouse=True)
def _well(cloud: Cloud) -> None:
    """Every test begins with services that answer."""
    cloud.nova.fault = cloud.limes.fault = None
    cloud.limes.is_token = bool
    listed = {found: [] for found in cloud.projects.values()}
    admin = cloud.keystone.id_of("projects", "admin")
    cloud.limes.commitments = {**listed, ("default", admin): []}
    cloud.limes.requests.clear()


class Clock(SystemClock):
    """The machine's clock, some time ahead."""

    ahead = 0.0

    def now(self) -> Instant:
        return Instant(super().now() + self.ahead)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


# Logging in


async def test_all_projects_of_all_domains_are_listed(cloud: Cloud) -> None:
    async with cloud.session() as session:
        found = {one.name: (one.domain_id, one.id) for one in await KeystoneProjects(session).list_projects()}
    assert found.items() >= cloud.projects.items()


def test_the_password_may_be_in_a_secret_and_a_new_one_counts_at_the_next_login(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REFUSED_S", 0.0)
    password = "wrong-pa55word"

    async def credential() -> Credential:
        return Credential(OUTLIVE, password)

    async def ask() -> None:
        nonlocal password
        async with cloud.session(credential, file=cloud.clouds_file(password="")) as session:
            with pytest.raises(Forbidden) as error:
                await KeystoneProjects(session).list_projects()
            assert OUTLIVE in str(error.value)
            assert password not in str(error.value)
            password = SECRET
            assert await KeystoneProjects(session).list_projects()

    run_real(ask())


def test_after_a_refusal_nobody_logs_in_for_a_while(cloud: Cloud) -> None:
    asked = 0

    async def credential() -> Credential:
        nonlocal asked
        asked += 1
        return Credential(OUTLIVE, "wrong-pa55word")

    async def ask() -> None:
        async with cloud.session(credential, file=cloud.clouds_file(password="")) as session:
            for _ in range(5):
                with pytest.raises(Forbidden):
                    await KeystoneProjects(session).list_projects()
        assert asked == 1

    run_real(ask())


async def test_an_application_credential_serves_as_well(cloud: Cloud) -> None:
    server = cloud.keystone
    token = server.login(OUTLIVE, SECRET, "service")
    user = server.id_of("users", OUTLIVE)
    body = {"application_credential": {"name": "for-outlive", "roles": [{"name": "admin"}]}}
    status, made, _ = server.call("POST", f"/users/{user}/application_credentials", body, token=token)
    assert status == 201, made
    entry = {"auth_type": "v3applicationcredential", "auth": {"auth_url": server.url}, "region_name": keystone.REGION}
    path = cloud.folder / "application.yaml"
    path.write_text(json.dumps({"clouds": {"lab": entry}}))

    async def credential() -> Credential:
        return Credential(made["application_credential"]["id"], made["application_credential"]["secret"])

    async with cloud.session(credential, file=path) as session:
        assert await session.get_endpoint("compute", version="2.1") == f"{cloud.nova.url}{VERSION}"


@pytest.mark.parametrize(
    ("text", "mode", "error", "words"),
    [
        (None, 0o600, NotFound, "no such file"),
        ("{clouds: {other: {}}}", 0o600, BadInput, "the file has: other"),
        ("clouds: [", 0o600, BadInput, "is not YAML"),
        ("{clouds: {lab: {auth: {password: p}}}}", 0o644, Forbidden, "others may read it"),
        ("{clouds: {lab: {auth: {password: p}}}}", 0o600, BadInput, "cannot be used"),
        ("{clouds: {lab: {auth_type: magic, auth: {}}}}", 0o600, BadInput, "cannot be used"),
    ],
)
async def test_a_clouds_file_that_is_wrong_is_named_with_what_is_wrong(
    cloud: Cloud, tmp_path: Path, text: str | None, mode: int, error: type[OutliveError], words: str
) -> None:
    path = tmp_path / "clouds.yaml"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)

    async with cloud.session(file=path) as session:
        with pytest.raises(error, match=words) as raised:
            await session.get_endpoint("compute")
    assert str(path) in str(raised.value)


async def test_a_service_that_the_catalogue_lacks_is_named(cloud: Cloud) -> None:
    async with cloud.session() as session:
        with pytest.raises(NotFound, match="internal endpoint for resources service"):
            await session.get_endpoint("resources", interface="internal")


async def test_a_token_that_was_revoked_is_replaced(cloud: Cloud) -> None:
    async with cloud.session() as session:
        projects = KeystoneProjects(session)
        await projects.list_projects()
        login = await session._open()
        ours = login.get_token()
        revoke(cloud, ours)
        assert await projects.list_projects()
        assert login.get_token() != ours


def revoke(cloud: Cloud, token: str) -> None:
    import urllib.request

    headers = {"X-Auth-Token": cloud.keystone.token(), "X-Subject-Token": token}
    request = urllib.request.Request(f"{cloud.keystone.url}/auth/tokens", headers=headers, method="DELETE")
    urllib.request.urlopen(request, timeout=30).close()


async def test_while_keystone_is_away_it_is_named_and_later_it_is_asked_again(cloud: Cloud) -> None:
    async with cloud.session() as session:
        projects = KeystoneProjects(session)
        cloud.keystone.stop()
        try:
            with pytest.raises(Unavailable) as error:
                await projects.list_projects()
            assert SECRET not in str(error.value)
        finally:
            cloud.keystone.start()
        assert await projects.list_projects()


async def test_services_behind_tls_are_trusted_by_the_authority_of_the_clouds_file_only(
    cloud: Cloud, tmp_path: Path
) -> None:
    tls = ServerTls(tmp_path, ("127.0.0.1",), SystemClock())
    authority = tmp_path / "authority.pem"
    authority.write_text(tls.authority)
    nova = Nova()
    nova.tls = tls.context
    entry = json.loads(cloud.clouds_file().read_text())["clouds"]["lab"]
    clouds = tmp_path / "clouds.yaml"
    async with nova.serving() as url:
        for trusted in (True, False):
            more = {"cacert": str(authority)} if trusted else {}
            clouds.write_text(json.dumps({"clouds": {"lab": {**entry, **more}}}))
            clouds.chmod(0o600)
            async with cloud.session(file=clouds) as session:
                await session.get_endpoint("compute", version="2.1")
                asked = session.get(f"{url}{VERSION}")
                if trusted:
                    assert (await asked).status == 200
                    continue
                with pytest.raises(Unavailable, match="certificate"):
                    await asked


# Tokens of callers


async def test_a_token_says_who_calls_with_which_roles(cloud: Cloud) -> None:
    token = cloud.keystone.login("member", "pa55word-of-a-member", "service")
    async with cloud.session() as session:
        caller = await KeystoneTokens(session, Clock()).validate(token)
    assert caller is not None
    assert (caller.user_name, caller.project_name, caller.domain_name) == ("member", "service", "Default")
    assert caller.project_id == cloud.projects["service"][1]
    assert "member" in caller.roles
    assert "admin" not in caller.roles
    assert caller.expires_at > time.time()


@pytest.mark.parametrize("token", ["", "gAAAAABnonsense", "with a blank", "ünïcode", "a\nb", "x" * 10_000])
async def test_what_is_no_token_belongs_to_nobody(cloud: Cloud, token: str) -> None:
    async with cloud.session() as session:
        assert await KeystoneTokens(session, Clock()).validate(token) is None


async def test_a_revoked_token_is_good_no_longer_than_answers_are_kept(cloud: Cloud) -> None:
    clock = Clock()
    token = cloud.keystone.login("member", "pa55word-of-a-member", "service")
    async with cloud.session() as session:
        tokens = KeystoneTokens(session, clock)
        assert await tokens.validate(token) is not None
        revoke(cloud, token)
        assert await tokens.validate(token) is not None
        clock.ahead = VALID_S + 1
        assert await tokens.validate(token) is None
        clock.ahead += INVALID_S + 1
        assert await tokens.validate(token) is None


async def test_a_token_that_is_over_is_not_good_although_its_answer_is_kept(cloud: Cloud) -> None:
    clock = Clock()
    async with cloud.session() as session:
        tokens = KeystoneTokens(session, clock)
        caller = await tokens.validate(cloud.keystone.token())
        assert caller is not None

        class Later(Clock):
            def now(self) -> Instant:
                return Instant(caller.expires_at + 1)

        tokens._clock = Later()
        assert await tokens.validate(cloud.keystone.token()) is None


async def test_while_keystone_is_away_a_token_that_was_asked_about_is_still_good_and_others_are_nobodys_word(
    cloud: Cloud,
) -> None:
    token = cloud.keystone.login("member", "pa55word-of-a-member", "service")
    other = cloud.keystone.login("member", "pa55word-of-a-member", "service")
    async with cloud.session() as session:
        tokens = KeystoneTokens(session, Clock())
        assert await tokens.validate(token) is not None
        cloud.keystone.stop()
        try:
            assert await tokens.validate(token) is not None
            if other != token:
                with pytest.raises(Unavailable):
                    await tokens.validate(other)
        finally:
            cloud.keystone.start()


async def test_a_user_who_may_not_ask_about_tokens_is_told_which_right_is_missing(cloud: Cloud) -> None:
    path = cloud.clouds_file("pa55word-of-a-member", user="member")
    async with cloud.session(file=path) as session:
        with pytest.raises(Forbidden, match=r"openstack\.md#rights"):
            await KeystoneTokens(session, Clock()).validate(cloud.keystone.token())


# Limes


def limes_client(session: OpenStackSession, **given: Any) -> LimesClient:
    return LimesClient(session, settings(**given), clock=SystemClock(), random=Random(1))


async def test_the_commitments_of_every_project_come_with_its_project_and_domain(cloud: Cloud) -> None:
    green, blue = cloud.projects["green"], cloud.projects["blue"]
    cloud.limes.is_token = lambda token: cloud.keystone.call("GET", "/projects", token=token)[0] == 200
    cloud.limes.commitments[green] = [commitment("uuid-1", later_member={"a": 1}), commitment("uuid-2", status=None)]
    cloud.limes.commitments[blue] = [commitment("uuid-3", confirmed_at=None), commitment("u-4", status="expired")]
    async with cloud.session() as session:
        projects = await KeystoneProjects(session).list_projects()
        found = {one.uuid: one for one in await limes_client(session).list_commitments(projects)}
    assert {uuid: (one.domain, one.project) for uuid, one in found.items()} == {
        "uuid-1": green, "uuid-2": green, "uuid-3": blue
    }  # fmt: skip
    assert (found["uuid-1"].amount, found["uuid-1"].unit, found["uuid-2"].status) == (10, "GiB", "")
    assert found["uuid-3"].confirmed_at is None


async def test_no_answer_of_limes_loses_a_commitment(cloud: Cloud) -> None:
    store = MemoryStore(SystemClock(), SeededIds(Random(1)))
    await store.create(FlavorGroup(metadata=ObjectMeta(name="s4"), spec=S4))

    async def write(step: CommitmentStep) -> None:
        name = commitment_name(step.uuid)
        if step.before is None and step.after is not None:
            await store.create(CommittedResource(metadata=ObjectMeta(name=name), spec=step.after))
        elif step.after is not None:
            found = await store.get(CommittedResource, name)
            await store.replace(msgspec.structs.replace(found, spec=step.after))
        else:
            await store.delete(ObjectRef(kind="CommittedResource", name=name))

    async def kept() -> dict[str, str]:
        return {one.spec.commitment_uuid: one.spec.amount async for one in list_all(store, CommittedResource)}

    cloud.limes.commitments[cloud.projects["green"]] = [commitment("uuid-1"), commitment("uuid-2", amount=3)]
    async with cloud.session() as session:
        syncer = CommitmentSyncer(
            KeystoneProjects(session), limes_client(session), lambda: read_store(store), write,
            CommitmentSettings(), clock=SystemClock(), random=Random(1), metrics=Metrics(),
            faults=FaultRecorder(store, SystemClock(), "commitments-sync"),
        )  # fmt: skip
        await syncer.sync()
        assert await kept() == {"uuid-1": "10Gi", "uuid-2": "3Gi"}
        usual = session._settings
        for fault in (http_service.status(500), http_service.body(b"{}"), http_service.drips):
            cloud.limes.fault = fault
            session._settings = settings(request_limit=1.0)
            with pytest.raises(OutliveError):
                await syncer.sync()
            session._settings = usual
        cloud.limes.fault = http_service.body(b'{"commitments": []}')
        await syncer.sync()
        assert await kept() == {"uuid-1": "10Gi", "uuid-2": "3Gi"}
        cloud.limes.fault = None
        cloud.limes.commitments[cloud.projects["green"]] = [commitment("uuid-1", amount=4)]
        await syncer.sync()
        assert await kept() == {"uuid-1": "4Gi", "uuid-2": "3Gi"}


# Everything together


def test_a_server_keeps_what_nova_has_with_a_sealed_password_that_is_nowhere_in_clear(
    cloud: Cloud, tmp_path: Path
) -> None:
    state, password = tmp_path / "state", tmp_path / "password"
    password.write_text(SECRET + "\n")
    with up(state):
        assert (
            outlive("secret", "set", "openstack", "--username", OUTLIVE, "--file", password, "--state-dir", state).code
            == 0
        )
    password.unlink()
    config = tmp_path / "outlive.yaml"
    section = {
        "cloud": "lab",
        "cloudsFile": str(cloud.clouds_file(password="")),
        "secret": "openstack",
        "pollInterval": "200ms",
        "staleAfter": "10s",
    }
    config.write_text(json.dumps({"openstack": section}))

    def servers() -> dict[str, str]:
        items = json.loads(outlive("get", "vms", "--state-dir", state, "-o", "json").out)["items"]
        return {one["spec"]["displayName"]: one["status"].get("assigned", {}).get("hypervisor", "") for one in items}

    def sources() -> dict[str, str]:
        items = json.loads(outlive("get", "hosts", "--state-dir", state, "-o", "json").out)["items"]
        return {one["metadata"]["name"]: one["status"].get("source", "") for one in items}

    with up(state, "--config", str(config)) as server:
        assert _within(lambda: len(servers()) == 8 and servers().get("db-2") == "h3"), servers()
        assert _within(lambda: sources() == dict.fromkeys(("h1", "h2", "h3"), "nova")), sources()
        cloud.nova.change()
        assert _within(lambda: "old-1" not in servers() and "new-1" in servers()), servers()
        command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        command += Path(f"/proc/{server.process.pid}/environ").read_bytes()
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert SECRET.encode() not in command
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def _within(claim: Callable[[], bool], limit_s: float = 60.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.1)
    return claim()
