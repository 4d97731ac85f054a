"""How an API server is reached: kubeconfig files, exec plug-ins, client certificates, a pod's service account."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outlive.base import BadInput, Forbidden, SystemClock, Unavailable
from outlive.store import RequestCredentials
from outlive.store.kubernetes import AccessOverrides, ClusterAccess, cluster_access, pod_access

CLOCK = SystemClock()


def kubeconfig(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> str:
    """A file with one of everything, called ``one``."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "one", "user": user}],
    }
    path.write_text(json.dumps(document))
    return str(path)


def sent_by(access: ClusterAccess) -> RequestCredentials:
    return asyncio.run(access.request_credentials(CLOCK))


def authorization(access: ClusterAccess) -> str:
    return sent_by(access).headers.get("Authorization", "")


def plugin(folder: Path, text: str) -> dict[str, Any]:
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "args": ["a"]}}


def granted(token: str, end: str = "") -> str:
    status = {"token": token} | ({"expirationTimestamp": end} if end else {})
    kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    return f"echo '{json.dumps({**kind, 'status': status})}'"


def certificate(folder: Path) -> tuple[bytes, bytes]:
    key, made = folder / "c.key", folder / "c.pem"
    what = ["-nodes", "-days", "1", "-subj", "/CN=someone", "-keyout", str(key), "-out", str(made)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *what], check=True, capture_output=True)
    return made.read_bytes(), key.read_bytes()


def test_a_token_is_sent_as_the_file_has_it(tmp_path: Path) -> None:
    access = cluster_access(kubeconfig(tmp_path / "config", {"token": "abc"}))
    assert authorization(access) == "Bearer abc"
    assert access.server == "http://127.0.0.1:1"


def test_a_token_file_beside_the_kubeconfig_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    access = cluster_access(kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert authorization(access) == "Bearer first"
    (tmp_path / "token").write_text("the second\n")
    assert authorization(access) == "Bearer the second"


def test_a_service_account_is_renewed_in_place(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    access = pod_access({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert access.server == "https://[fd00::1]:6443"
    made, _ = certificate(tmp_path)
    (tmp_path / "ca.crt").write_bytes(made)
    before = sent_by(access)
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").replace(tmp_path / "token")
    assert authorization(access) == "Bearer second"
    assert asyncio.run(access.renew(before, CLOCK)), "what was refused is no more what is sent"
    assert not asyncio.run(access.renew(sent_by(access), CLOCK))


def test_a_plug_in_is_run_once_until_its_token_ends(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    user = plugin(tmp_path, f"echo x >>{runs}; {granted('from-plugin', '2099-01-01T00:00:00Z')}")
    access = cluster_access(kubeconfig(tmp_path / "config", user))
    assert [authorization(access) for _ in range(3)] == ["Bearer from-plugin"] * 3
    assert len(runs.read_text().split()) == 1
    asyncio.run(access.renew(sent_by(access), CLOCK))
    assert len(runs.read_text().split()) == 2, "what it gave was refused"


def test_a_plug_in_whose_token_has_ended_is_run_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    user = plugin(tmp_path, f"echo x >>{runs}; {granted('t', '2020-01-01T00:00:00Z')}")
    access = cluster_access(kubeconfig(tmp_path / "config", user))
    assert [authorization(access) for _ in range(2)] == ["Bearer t"] * 2
    assert len(runs.read_text().split()) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo no access >&2; exit 3", "exit code 3: no access"),
        ("echo nonsense", "no ExecCredential"),
        (granted("t").replace("/v1", "/v1beta1"), "was asked for"),
        (granted(""), "neither a token nor a certificate"),
    ],
)
def test_a_plug_in_that_gives_nothing_is_named_with_what_it_said(tmp_path: Path, text: str, says: str) -> None:
    access = cluster_access(kubeconfig(tmp_path / "config", plugin(tmp_path, text)))
    with pytest.raises(Unavailable, match=says) as error:
        sent_by(access)
    assert "exec plug-in" in error.value.place


def test_a_client_certificate_is_taken_from_data_and_from_files(tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    encoded = {"certificate-authority-data": base64.b64encode(made).decode(), "server": "https://127.0.0.1:1"}
    data = {"client-certificate-data": base64.b64encode(made).decode()}
    data["client-key-data"] = base64.b64encode(key).decode()
    files = {"client-certificate": "c.pem", "client-key": "c.key"}
    for user in (data, files):
        assert sent_by(cluster_access(kubeconfig(tmp_path / "config", user, encoded))).tls is not None


def test_several_files_are_one_configuration_of_which_the_first_counts(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "a", {"token": "first"})
    second = json.loads((tmp_path / "a").read_text())
    second["users"] = [{"name": "one", "user": {"token": "hidden"}}, {"name": "two", "user": {"token": "second"}}]
    second["contexts"] = [{"name": "two", "context": {"cluster": "one", "user": "two"}}]
    (tmp_path / "b").write_text(json.dumps(second))
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'absent'}:{tmp_path / 'b'}"}
    assert authorization(cluster_access(environ=environ)) == "Bearer first"
    assert authorization(cluster_access(context="two", environ=environ)) == "Bearer second"


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"username": "me", "password": "x"}, {}, "username of user 'one' is not supported"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider of user 'one' is not supported"),
        ({"as-user-extra": {"a": ["b"]}, "token": "t"}, {}, "as-user-extra of user 'one' is not supported"),
        ({"as-groups": ["g"], "token": "t"}, {}, "needs a user to act as"),
        ({"token": "t"}, {"server": "ftp://h"}, "no address of an API server"),
        ({"token": "t"}, {"proxy-url": "http://p"}, "proxy-url of cluster 'one' is not supported"),
        ({"token": 7}, {}, "user 'one': Expected `str`"),
        ({"client-certificate-data": "#"}, {}, "no base64"),
        ({"client-certificate": "absent.pem"}, {}, "client-certificate cannot be read"),
        ({"exec": {"apiVersion": "v0", "command": "x"}}, {}, "exec plug-in of v0 is not supported"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says) as error:
        cluster_access(kubeconfig(tmp_path / "config", user, cluster))
    assert not error.value.place or error.value.place.startswith((str(tmp_path), "--as-group"))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate(tmp_path)
    with pytest.raises(BadInput, match="needs its key"):
        cluster_access(kubeconfig(tmp_path / "config", {"client-certificate": "c.pem"}))


def test_no_kubeconfig_and_no_context_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such kubeconfig"):
        cluster_access(str(tmp_path / "absent"))
    path = tmp_path / "config"
    path.write_text("kind: Config\n")
    with pytest.raises(BadInput, match="no current-context"):
        cluster_access(str(path))
    with pytest.raises(BadInput, match="has no context 'x'"):
        cluster_access(str(path), "x")
    path.write_text("- 1\n")
    with pytest.raises(BadInput, match="is no kubeconfig"):
        cluster_access(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(Forbidden, match="cannot be read"):
        cluster_access(str(path))


# Options that count more than files, as at kubectl


def over(path: str, **given: Any) -> ClusterAccess:
    return cluster_access(path, overrides=AccessOverrides(**given))


def test_options_count_more_than_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"}, {"tls-server-name": "of-the-file"})
    assert over(path, server="https://10.0.0.1:6443/").server == "https://10.0.0.1:6443"
    assert authorization(over(path, token="given")) == "Bearer given"
    assert authorization(over(path, server="http://other")) == "Bearer abc", "the user stays"


def test_a_token_takes_the_place_of_a_plug_in_that_is_not_run(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", plugin(tmp_path, "exit 3"))
    assert authorization(over(path, token="given")) == "Bearer given"


def test_cluster_and_user_are_chosen_apart_from_the_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"})
    document = json.loads(Path(path).read_text())
    document["clusters"].append({"name": "two", "cluster": {"server": "http://two"}})
    document["users"].append({"name": "two", "user": {"token": "second"}})
    Path(path).write_text(json.dumps(document))
    chosen = over(path, cluster="two", user="two")
    assert (chosen.server, authorization(chosen)) == ("http://two", "Bearer second")
    del document["current-context"]
    Path(path).write_text(json.dumps(document))
    assert over(path, cluster="two").server == "http://two", "no context is needed then"
    for given in ({"cluster": "three"}, {"user": "three"}):
        with pytest.raises(BadInput, match=r"has no (cluster|user) 'three'"):
            over(path, **{"cluster": "two", **given})


def test_a_caller_acts_as_another_with_a_header_for_each_group(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "t", "as": "of-the-file"})
    headers = sent_by(over(path, act_as="ann", act_as_groups=("a", "b,c"), act_as_uid="u1")).headers
    sent = [(name, value) for name, value in headers.items() if name.startswith("Impersonate")]
    expected = [("User", "ann"), ("Group", "a"), ("Group", "b,c"), ("Uid", "u1")]
    assert sent == [(f"Impersonate-{name}", value) for name, value in expected]
    assert sent_by(over(path)).headers["Impersonate-User"] == "of-the-file"
    with pytest.raises(BadInput, match="needs a user to act as"):
        over(kubeconfig(tmp_path / "plain", {"token": "t"}), act_as_groups=("a",))


def test_an_authority_ends_blind_trust_and_the_other_way_round(tmp_path: Path) -> None:
    made, _ = certificate(tmp_path)
    encoded = {"certificate-authority-data": base64.b64encode(made).decode(), "server": "https://127.0.0.1:1"}
    path = kubeconfig(tmp_path / "config", {"token": "t"}, encoded)
    blind = sent_by(over(path, insecure_skip_tls_verify=True)).tls
    assert blind is not None
    assert blind.verify_mode.name == "CERT_NONE"
    path = kubeconfig(tmp_path / "config", {}, {"server": "https://h:1", "insecure-skip-tls-verify": True})
    strict = sent_by(over(path, certificate_authority=str(tmp_path / "c.pem"))).tls
    assert strict is not None
    assert strict.verify_mode.name == "CERT_REQUIRED"
    with pytest.raises(BadInput, match="no certificate is verified"):
        over(path, certificate_authority=str(tmp_path / "c.pem"), insecure_skip_tls_verify=True)
    with pytest.raises(BadInput, match="certificate-authority cannot be read"):
        over(path, certificate_authority=str(tmp_path / "absent"))
    with pytest.raises(BadInput, match="needs its key"):
        over(path, client_certificate=str(tmp_path / "c.pem"))
    pair = {"client_certificate": str(tmp_path / "c.pem"), "client_key": str(tmp_path / "c.key")}
    assert sent_by(over(path, **pair)).tls is not None


def test_a_server_needs_no_kubeconfig(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": str(tmp_path / "absent")}
    alone = cluster_access(environ=environ, overrides=AccessOverrides(server="10.0.0.1:8080"))
    assert alone.server == "http://10.0.0.1:8080", "as kubectl reads it"
    skip = AccessOverrides(server="10.0.0.1:6443", insecure_skip_tls_verify=True)
    assert cluster_access(environ=environ, overrides=skip).server == "https://10.0.0.1:6443"
    with pytest.raises(BadInput, match="there is none") as error:
        cluster_access(environ=environ, overrides=AccessOverrides(server="http://h", user="u"))
    assert error.value.place == "--user"
    with pytest.raises(BadInput, match="no such kubeconfig"):
        over(str(tmp_path / "absent"), server="http://h")


def test_options_count_more_than_a_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    (tmp_path / "token").write_text("account")
    given = AccessOverrides(server="http://other", act_as="ann")
    access = pod_access(environ, tmp_path, given)
    assert (access.server, authorization(access)) == ("http://other", "Bearer account")
    assert sent_by(access).headers["Impersonate-User"] == "ann"
    assert authorization(pod_access(environ, tmp_path, AccessOverrides(server="http://h", token="t"))) == "Bearer t"


@pytest.mark.parametrize(("text", "seconds"), [("", None), ("0", 0), ("30", 30), ("1m30s", 90), ("0s", 0)])
def test_a_request_timeout_is_seconds_or_a_duration(text: str, seconds: float | None) -> None:
    assert AccessOverrides(request_timeout=text).request_timeout_s == seconds


@pytest.mark.parametrize("text", ["-1s", "soon", "1e9", "99999999", "5 s"])
def test_a_request_timeout_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput) as error:
        _ = AccessOverrides(request_timeout=text).request_timeout_s
    assert error.value.place == "--request-timeout"
