"""What a real API server refuses: each says what is wrong and what helps, is counted, and loses nothing."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.conformance.objects import change, flavor
from tests.support.api_server import ApiServer, shared_server
from tests.support.loops import run_real

from outlive.base import ExitCode, Forbidden, LimitExceeded, OutliveError, Random, Refused, SystemClock, Unavailable
from outlive.resources import Flavor
from outlive.store import StoreFull, list_all
from outlive.store.kubernetes import CRDS_PATH, ClusterAccess, KubernetesStore, check_kinds_served

pytestmark = pytest.mark.component("kubernetes")
NAMESPACE = "refusals"
FLAVORS = f"{CRDS_PATH}/flavors.outlive.dev"


@pytest.fixture(scope="module")
def server() -> ApiServer:
    one = shared_server()
    one.empty()
    one.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return one


def asked(access: ClusterAccess, call: Callable[[KubernetesStore], Awaitable[Any]]) -> tuple[Any, dict[Any, int]]:
    """What came of it, an error or an answer, and what was counted."""

    async def scene() -> tuple[Any, dict[Any, int]]:
        store = KubernetesStore(access, clock=SystemClock(), random=Random(1))
        try:
            try:
                found = await call(store)
            except OutliveError as error:
                found = error
            return found, dict(store.troubles.counts)
        finally:
            await store.close()

    return run_real(scene())


async def read_one(store: KubernetesStore) -> Flavor:
    return await store.get(Flavor, "any")


def service_account(server: ApiServer, name: str) -> str:
    """The token of an account that may do nothing."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    server.call("POST", path, {"metadata": {"name": name}})
    asks = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["lab"]}}
    return str(server.call("POST", f"{path}/{name}/token", asks)["status"]["token"])


def test_a_certificate_of_another_authority_is_not_believed(server: ApiServer, tmp_path: Any) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-days", "1"]
    words += ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "other.pem")]
    subprocess.run(words, check=True, capture_output=True)
    other = (tmp_path / "other.pem").read_bytes()
    error, counts = asked(ClusterAccess(server.url, authority=other, token=server.token), read_one)
    assert isinstance(error, Unavailable), "nothing was sent"
    assert "is not believed" in str(error)
    assert "certificate-authority-data" in error.remedy
    assert counts == {("GET", "unavailable"): 1}


def test_a_token_that_has_ended_is_to_be_renewed(server: ApiServer) -> None:
    error, counts = asked(ClusterAccess(server.url, authority=server.authority, token="ended"), read_one)
    assert isinstance(error, Forbidden)
    assert error.remedy == "renew its token or certificate"
    assert counts == {("GET", "forbidden"): 1}


def test_a_verb_that_the_account_lacks_is_named_with_its_kind(server: ApiServer) -> None:
    token = service_account(server, "powerless")
    access = ClusterAccess(server.url, authority=server.authority, token=token)
    error, counts = asked(access, lambda store: store.create(flavor("f1")))
    assert isinstance(error, Forbidden)
    assert 'cannot create resource "flavors"' in error.message
    assert "deploy/kubernetes" in error.remedy
    assert counts == {("POST", "forbidden"): 1}


@contextmanager
def changed_kind(server: ApiServer, edit: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """The kind of flavors is another one meanwhile."""
    whole = server.call("GET", FLAVORS)
    other = server.call("GET", FLAVORS)
    edit(other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    server.call("PUT", FLAVORS, other)
    try:
        yield
    finally:
        whole["metadata"].pop("resourceVersion")
        newest = server.call("GET", FLAVORS)["metadata"]["resourceVersion"]
        whole["metadata"]["resourceVersion"] = newest
        server.call("PUT", FLAVORS, whole)


def test_kinds_of_an_older_version_are_refused_since_fields_would_be_dropped(server: ApiServer) -> None:
    with changed_kind(server, lambda spec: spec["properties"].pop("extraSpecs")):
        error, _ = asked(server.access(), check_kinds_served)
    assert isinstance(error, Refused)
    assert "would drop flavors.spec.extraSpecs" in str(error)
    assert "outlive crds | kubectl apply -f -" in error.remedy


def test_kinds_of_a_newer_version_are_told_and_do(server: ApiServer) -> None:
    with changed_kind(server, lambda spec: spec["properties"].update({"colour": {"type": "string"}})):
        found, _ = asked(server.access(), check_kinds_served)
    assert found == ["flavors.spec.colour"]
    found, counts = asked(server.access(), check_kinds_served)
    assert (found, counts) == ([], {}), "the kinds of this version"


def test_an_etcd_that_is_full_refuses_writes_and_answers_reads(server: ApiServer) -> None:
    member = server.etcd_request("maintenance/status", {})["header"]["member_id"]
    alarm = {"memberID": member, "alarm": "NOSPACE"}

    async def scene(store: KubernetesStore) -> list[str]:
        before = await store.create(flavor("kept"))
        changed = change(before, spec=change(before.spec, flavor_name="other"))
        server.etcd_request("maintenance/alarm", {"action": "ACTIVATE", **alarm})
        try:
            for write in (lambda: store.create(flavor("new")), lambda: store.replace(changed)):
                with pytest.raises(StoreFull, match="disarm its alarm"):
                    await write()
            assert [one.name async for one in list_all(store, Flavor)] == ["kept"], "reads go on, nothing is lost"
        finally:
            server.etcd_request("maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        await store.delete(before.ref)
        return []

    found, counts = asked(server.access(), scene)
    assert found == [], found
    assert counts == {("POST", "limit"): 1, ("PUT", "limit"): 1}
    assert StoreFull("").exit_code is ExitCode.LIMIT


def test_an_exceeded_quota_is_a_limit(server: ApiServer) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    none = {"count/secrets": "0"}
    server.call("POST", path, {"metadata": {"name": "none"}, "spec": {"hard": none}})
    quota = server.call("GET", f"{path}/none")
    server.call("PUT", f"{path}/none/status", {**quota, "status": {"hard": none, "used": none}})
    secret = {"metadata": {"name": "s"}, "data": {"a": base64.b64encode(b"a").decode()}}

    async def create(store: KubernetesStore) -> Any:
        for _ in range(50):  # the server comes to know a new quota a little later
            await store.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
            await store.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/s")
            await asyncio.sleep(0.1)

    error, counts = asked(server.access(), create)
    assert isinstance(error, LimitExceeded), error
    assert "exceeded quota: none" in error.message
    assert error.remedy == "delete some, or raise the quota"
    assert counts == {("POST", "limit"): 1}
