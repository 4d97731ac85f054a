"""Options of the storage agent that say how an API server is reached, on a real one: as at kubectl, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.api_server import ApiServer, shared_server
from tests.support.loops import run_real

from outlive.base import Forbidden, OutliveError, Random, SystemClock, Unavailable
from outlive.cli import access_overrides
from outlive.storage import FLAGS, parse_options
from outlive.store.kubernetes import KubernetesStore, cluster_access

pytestmark = pytest.mark.component("kubernetes")


@pytest.fixture(scope="module")
def server() -> ApiServer:
    return shared_server()


def outcome(server: ApiServer, *words: str, kubeconfig: str = "") -> Any:
    """What comes of a request for all nodes with these options: the answer, or the error."""

    async def ask() -> Any:
        access = cluster_access(kubeconfig, environ={}, overrides=access_overrides(parse_options(words, {})))
        store = KubernetesStore(access, clock=SystemClock(), random=Random(1))
        try:
            return await store.call("GET", "/api/v1/nodes")
        except OutliveError as error:
            return error
        finally:
            await store.close()

    return run_real(ask())


def alone(server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> tuple[str, ...]:
    """Options that need no kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    authority = server.folder / "pki/apiserver.crt"
    return f"--server={server.url}", f"--token={server.token}", f"--certificate-authority={authority}"


def test_every_option_of_the_client_is_honoured_or_its_page_says_that_it_is_not_used() -> None:
    texts = {"token": "t", "server": "s", "insecure-skip-tls-verify": "true"}
    for flag in FLAGS:
        if flag.section != "client" or flag.name in ("kubeconfig", "context"):
            continue
        overrides = access_overrides(parse_options([f"--{flag.name}={texts.get(flag.name, 'true')}"], {}))
        unused = flag.doc.startswith("Taken and not used")
        assert unused == (overrides == access_overrides(parse_options([], {}))), flag.name


def test_server_token_and_authority_need_no_kubeconfig(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    words = alone(server, monkeypatch, tmp_path)
    assert outcome(server, *words)["kind"] == "NodeList"
    assert isinstance(outcome(server, *words, "--token=wrong"), Forbidden)
    assert isinstance(outcome(server, *words[:2]), Unavailable), "its certificate is not believed"
    assert outcome(server, *words[:2], "--insecure-skip-tls-verify")["kind"] == "NodeList"


def test_who_is_acted_as_is_judged_by_the_server(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    words = (*alone(server, monkeypatch, tmp_path), "--as=ann")
    refused = outcome(server, *words)
    assert isinstance(refused, Forbidden)
    assert 'User "ann" cannot list resource "nodes"' in str(refused)
    assert outcome(server, *words, "--as-group=some", "--as-group=system:masters")["kind"] == "NodeList"


def test_a_name_is_expected_in_the_certificate_of_the_server(server: ApiServer) -> None:
    config = str(server.kubeconfig())
    assert outcome(server, "--tls-server-name=kubernetes.default.svc", kubeconfig=config)["kind"] == "NodeList"
    wrong = outcome(server, "--tls-server-name=other.example", kubeconfig=config)
    assert isinstance(wrong, Unavailable)
    assert "other.example" in str(wrong)


def test_a_request_that_takes_too_long_ends(server: ApiServer) -> None:
    config = str(server.kubeconfig())
    assert isinstance(outcome(server, "--request-timeout=1us", kubeconfig=config), Unavailable)
    assert outcome(server, "--request-timeout=0", kubeconfig=config)["kind"] == "NodeList"
