"""A real Kubernetes API server on its own etcd, one for each process that runs tests.

It takes some seconds to start, so that tests share it; each begins with an empty etcd below the kinds of Outlive.
"""

from __future__ import annotations

import atexit
import base64
import gc
import json
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from lab.kubernetes import etcd_command, kubeconfig, make_keys, program, server_command
from lab.processes import free_ports

from outlive.resources import API_VERSION, build_crds
from outlive.store.kubernetes import ClusterAccess

CLUSTER_SCOPED = ("ClusterRole", "ClusterRoleBinding", "Namespace", "ValidatingWebhookConfiguration")
GROUPS = {"oskar": "outlive:operators"}
"""Users that every server knows, and their groups."""
START_S = 120.0
LOOK_S = 0.1
CONTROLLER = "system:serviceaccount:outlive:outlive-controller"
STORAGE_AGENT = "system:serviceaccount:outlive-storage-agent:outlive-storage-agent"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [CONTROLLER, STORAGE_AGENT]}, {"level": "None"}],
}
"""What the shared server writes down: each request of the controllers' own account, and of the storage agent's."""


def can_run() -> bool:
    """Whether API server and etcd are there."""
    return shutil.which("etcd") is not None and shutil.which("openssl") is not None and program() != ""


class ApiRefusal(Exception):
    """An answer that is an error, with its status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class ApiServer:
    """API server and etcd, as processes that can be stopped, killed and started again."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.port, self.etcd_port, peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.etcd_url = f"http://127.0.0.1:{self.etcd_port}"
        self.token = secrets.token_hex(16)
        self.tokens = {"admin": self.token} | {user: secrets.token_hex(16) for user in GROUPS}
        self._flags = flags
        self._etcd_command = etcd_command(folder, self.etcd_port, peer_port)
        self.etcd: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start what does not run, and return when it is ready."""
        make_keys(self.folder)
        rows = [f'{self.token},lab-admin,1,"system:masters"']
        rows += [
            f'{token},{user},{user},"{GROUPS.get(user, "")}"' for user, token in self.tokens.items() if user != "admin"
        ]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        if self.etcd is None or self.etcd.poll() is not None:
            self.etcd = self._spawn("etcd", self._etcd_command)
        self._wait(f"{self.etcd_url}/health", b"true", self.etcd, None)
        if self.server is None or self.server.poll() is not None:
            self.server = self._spawn("server", [*server_command(self.folder, self.port, self.etcd_url), *self._flags])
        insecure = ssl.create_default_context()
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        self._wait(f"{self.url}/readyz", b"ok", self.server, insecure)

    def stop(self) -> None:
        """Kill both."""
        for process in (self.server, self.etcd):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def take_snapshot(self) -> Path:
        """A copy of etcd's data, taken while nothing runs."""
        self.stop()
        copy = self.folder / "snapshot"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "etcd", copy)
        self.start()
        return copy

    def go_back(self, copy: Path) -> None:
        """Have the data of that moment again."""
        self.stop()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(copy, self.folder / "etcd")
        self.start()

    def stop_server(self) -> None:
        """Kill the API server alone."""
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGCONT)
            self.server.kill()
            self.server.wait()

    def twin(self) -> ApiServer:
        """Another API server on the same etcd, with the same certificate and tokens; not started."""
        other = ApiServer(self.folder)
        other.etcd, other.etcd_url = self.etcd, self.etcd_url
        other.token, other.tokens = self.token, self.tokens
        return other

    def access(self, user: str = "admin") -> ClusterAccess:
        """As that user."""
        return ClusterAccess(self.url, authority=self.authority, token=self.tokens[user])

    @property
    def authority(self) -> bytes:
        """What clients believe."""
        return (self.folder / "pki/apiserver.crt").read_bytes()

    def kubeconfig(self, user: str = "admin") -> Path:
        """A file for kubectl, as that user."""
        path = self.folder / f"kubeconfig-{user}"
        path.write_text(kubeconfig(self.url, self.folder / "pki/apiserver.crt", self.tokens[user]))
        path.chmod(0o600)
        return path

    def account_kubeconfig(self, namespace: str, account: str, path: Path) -> Path:
        """A file for a service account, which is made."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        for where, name in (("/api/v1/namespaces", namespace), (accounts, account)):
            try:
                self.call("POST", where, {"metadata": {"name": name}})
            except ApiRefusal as error:
                if error.code != 409:
                    raise
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["lab"]}}
        made = self.call("POST", f"{accounts}/{account}/token", request)
        document = json.loads(self.kubeconfig().read_text())
        document["users"] = [{"name": "admin", "user": {"token": made["status"]["token"]}}]
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def apply(self, path: Path, namespace: str) -> None:
        """Create the documents of a manifest that are not there, in that namespace where they have one."""
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            group = "api/v1" if document["apiVersion"] == "v1" else f"apis/{document['apiVersion']}"
            within = "" if document["kind"] in CLUSTER_SCOPED else f"/namespaces/{namespace}"
            try:
                self.call("POST", f"/{group}{within}/{document['kind'].lower()}s", document)
            except ApiRefusal as error:
                if error.code != 409:
                    raise

    def call(self, method: str, path: str, document: Any = None, kind: str = "application/json") -> Any:
        """What the server answers to an administrator."""
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if document is not None:
            request.data = json.dumps(document).encode()
            request.add_header("Content-Type", kind)
        trusted = ssl.create_default_context(cadata=self.authority.decode())
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise ApiRefusal(error.code, error.read().decode(errors="replace")) from None

    def make_kinds(self) -> None:
        """Create all kinds of Outlive, and return when they are served."""
        wanted = build_crds()
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        there = {one["metadata"]["name"] for one in self.call("GET", path)["items"]}
        for one in wanted:
            if one["metadata"]["name"] not in there:
                self.call("POST", path, one)
        for one in wanted:
            names = one["spec"]
            url = f"/apis/{names['group']}/{names['versions'][0]['name']}/{names['names']['plural']}"
            end = time.monotonic() + START_S
            while True:
                try:
                    self.call("GET", url)
                    break
                except ApiRefusal as error:
                    if error.code != 404 or time.monotonic() > end:
                        raise
                    time.sleep(LOOK_S)
        plurals = {one["spec"]["names"]["plural"] for one in wanted}
        end = time.monotonic() + START_S
        while missing := plurals - self.named_kinds():  # what is served is named a little later
            assert time.monotonic() < end, f"the server does not name {missing}"
            time.sleep(LOOK_S)

    def named_kinds(self) -> set[str]:
        """The kinds of Outlive that the server names to those who ask what it serves."""
        try:
            return {one["name"] for one in self.call("GET", f"/apis/{API_VERSION}")["resources"]}
        except ApiRefusal as error:
            if error.code != 404:
                raise
            return set()

    def empty(self) -> None:
        """Delete every object of Outlive's kinds, finalizers or not."""
        span = {"key": "/registry/outlive.dev/", "range_end": "/registry/outlive.dev0"}
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in span.items()}
        self.etcd_request("kv/deleterange", encoded)

    def etcd_request(self, verb: str, document: dict[str, Any]) -> Any:
        """A request to etcd itself; keys and values are base64."""
        request = urllib.request.Request(f"{self.etcd_url}/v3/{verb}", data=json.dumps(document).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _wait(self, url: str, wanted: bytes, process: subprocess.Popen[bytes], context: ssl.SSLContext | None) -> None:
        end = time.monotonic() + START_S
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        while time.monotonic() < end:
            assert process.poll() is None, f"{process.args!r} has ended: see {self.folder}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # urllib leaves sockets whose handshake failed
                found = _asked(request, context)
                gc.collect()
            if wanted in found:
                return
            time.sleep(LOOK_S)
        raise AssertionError(f"{url} was not ready within {START_S:g} s: see {self.folder}")


def _asked(request: urllib.request.Request, context: ssl.SSLContext | None) -> bytes:
    try:
        with urllib.request.urlopen(request, context=context, timeout=5) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        return b""
    except OSError:
        return b""


@lru_cache
def shared_server() -> ApiServer:
    """The server of this process, with Outlive's kinds; it ends with the process."""
    in_memory = Path("/dev/shm")  # etcd waits for the disk after each write
    folder = Path(tempfile.mkdtemp(prefix="outlive-api-server-", dir=in_memory if in_memory.is_dir() else None))
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    audit = (f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}")
    server = ApiServer(folder, *audit, "--allow-privileged")  # as every distribution does: daemons of storage need it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.stop)
    try:
        server.start()
        server.make_kinds()
    except BaseException:
        server.stop()  # the next test starts another one
        raise
    return server
