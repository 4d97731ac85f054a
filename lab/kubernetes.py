"""An API server of Kubernetes on an etcd of its own: the store of a lab that has one, in the network ``store``.

It runs no pod: the controllers are processes of the lab.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab.processes import LabError, Process, run, until

CLIENTS, PEERS, PORT = 2379, 2380, 6443
NAMESPACE = "outlive"
START_S = 120.0


def program(name: str = "kube-apiserver") -> str:
    """A program of Kubernetes: that of the variable, such as ``KUBE_APISERVER``, or of ``PATH``, or unpacked from what
    is beside the project; empty: there is none."""
    if found := os.environ.get(name.upper().replace("-", "_")) or shutil.which(name):
        return found
    shared = os.environ.get("OUTLIVE_SHARED")
    packed = Path(shared) / f"lab/bin/{name}.xz" if shared else None
    return _unpacked(packed) if packed is not None and packed.exists() else ""


@lru_cache
def _unpacked(packed: Path) -> str:
    """Kept for later runs, like the environments of other components."""
    folder = Path.home() / ".cache/outlive-tests"
    found = packed.stat()
    path = folder / f"{packed.stem}-{found.st_size}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{packed.stem}-{os.getpid()}"
        with part.open("wb") as file:
            subprocess.run(["xz", "-dc", str(packed)], stdout=file, check=True)
        part.chmod(0o755)
        part.replace(path)
    return str(path)


def etcd_command(folder: Path, clients: int, peers: int) -> list[str]:
    """An etcd of one member, with its data below the folder."""
    client, peer = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
    return [
        *("etcd", "--name", "one", "--data-dir", str(folder / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
    ]


def server_command(folder: Path, port: int, etcd_url: str) -> list[str]:
    """An API server on that etcd, with the keys and tokens of the folder (``make_keys``)."""
    return [
        *(program(), f"--etcd-servers={etcd_url}", "--storage-media-type=application/json"),
        *("--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder / 'pki'}"),
        *("--insecure-port=0", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
        *("--service-cluster-ip-range=10.96.0.0/24", f"--token-auth-file={folder / 'tokens.csv'}"),
        *("--authorization-mode=RBAC", "--anonymous-auth=true", "--api-audiences=lab"),
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'sa.pub'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--disable-admission-plugins=ServiceAccount,DefaultStorageClass,Priority,TaintNodesByCondition",
        *("--enable-priority-and-fairness=false", "--profiling=false", "-v=1"),
    ]


CONTROLLERS = (
    *("statefulset", "replicaset", "deployment", "disruption", "podgc", "garbagecollector"),
    *("attachdetach", "nodelifecycle"),
)


def controllers_command(config: Path, *, grace_s: float = 40.0, sync_s: float = 60.0) -> list[str]:
    """The controllers of Kubernetes. ``grace_s``: after so long without a heartbeat a node is not ready; ``sync_s``:
    how often attach-detach compares its belief with the attachments that there are."""
    return [
        *(program("kube-controller-manager"), f"--kubeconfig={config}", "--leader-elect=false"),
        *("--port=0", "--secure-port=0", f"--controllers={','.join(CONTROLLERS)}", "-v=1"),
        *("--use-service-account-credentials=false", "--node-monitor-period=1s"),
        *(f"--node-monitor-grace-period={grace_s:g}s", f"--attach-detach-reconcile-sync-period={sync_s:g}s"),
    ]


def make_keys(folder: Path) -> None:
    """The key that signs tokens of service accounts, unless it is there."""
    key = folder / "sa.key"
    if key.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    run("openssl", "genrsa", "-out", str(key), "2048")
    run("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(folder / "sa.pub"))


def kubeconfig(server: str, authority: Path, token: str) -> str:
    """The file by which kubectl and Outlive reach it."""
    cluster = {"server": server, "certificate-authority": str(authority)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "one",
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": "admin"}}],
        }
    )


class Kubernetes:
    """See the module. ``enter`` makes a command that runs in the network of the store."""

    def __init__(self, folder: Path, enter: Callable[..., list[str]]) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.etcd = Process(folder / "etcd.pid")
        self.server = Process(folder / "server.pid")
        self._enter = enter

    def start(self) -> None:
        """Start what does not run, and make the kinds of Outlive; returns when they are served."""
        if not program():
            raise LabError("there is no kube-apiserver: put one into PATH, or name it in KUBE_APISERVER")
        make_keys(self.folder)
        tokens = self.folder / "tokens.csv"
        if not tokens.exists():
            token = secrets.token_hex(16)
            tokens.write_text(f'{token},lab-admin,1,"system:masters"\n')
            url = f"https://127.0.0.1:{PORT}"
            self.kubeconfig.write_text(kubeconfig(url, self.folder / "pki/apiserver.crt", token))
            self.kubeconfig.chmod(0o600)
        self.etcd.start(self._enter(*etcd_command(self.folder, CLIENTS, PEERS)), self.folder / "etcd.log")
        command = server_command(self.folder, PORT, f"http://127.0.0.1:{CLIENTS}")
        self.server.start(self._enter(*command), self.folder / "server.log")
        until(
            lambda: self._answers("get", "--raw", "/readyz"), f"it answers: see {self.folder}/server.log", START_S, 0.2
        )
        outlive = str(Path(sys.executable).with_name("outlive"))
        kinds = run(outlive, "crds")
        self.kubectl("apply", "-f", "-", stdin=kinds)
        self.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", stdin=kinds)
        if not self._answers("get", "namespace", NAMESPACE):
            self.kubectl("create", "namespace", NAMESPACE)

    def stop(self) -> None:
        """End both."""
        self.server.stop()
        self.etcd.stop()

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """What kubectl prints."""
        return run(*self._enter("kubectl", "--kubeconfig", str(self.kubeconfig), *words), stdin=stdin)

    def _answers(self, *words: str) -> Any:
        for one in (self.etcd, self.server):
            if not one.pid:
                raise LabError(f"{one.file.stem} ended: see {self.folder}/{one.file.stem}.log")
        try:
            return self.kubectl(*words)
        except LabError:
            return ""
