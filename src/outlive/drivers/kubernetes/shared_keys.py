"""The keys of equal servers: all of them show certificates of one authority, and have one cluster key and one token.

The keys are files in each server's own directory, and together one Secret of Kubernetes. The first server makes them
and creates the Secret; every other one takes what is there, whatever is in its directory. Of two that begin together
the one whose creation came second takes the keys of the first (docs/operating/kubernetes.md#keys).
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final

import msgspec

from outlive.base.errors import AlreadyExists, BadInput, NotFound
from outlive.base.files import read_private, write_whole
from outlive.store.kubernetes import KubernetesStore

NAME: Final = "outlive-keys"
INCARNATION: Final = "outlive.dev/store-incarnation"
"""Annotation of the Secret: changes when etcd was restored from a snapshot."""
MERGE_PATCH: Final = "application/merge-patch+json"
FILE_BYTES: Final = 64 * 1024


class _Metadata(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] = {}


async def read_shared_keys(store: KubernetesStore, namespace: str, directory: Path, files: tuple[str, ...]) -> bool:
    """Write the cluster's keys into the directory; False where it has none yet.

    ``BadInput`` where the Secret lacks a file or is broken: nothing is written then.
    """
    try:
        answer = await store.call("GET", f"{_path(namespace)}/{NAME}")
    except NotFound:
        return False
    data = msgspec.convert(answer, _Secret).data
    place = f"Secret {namespace}/{NAME}"
    found: dict[str, bytes] = {}
    for name in files:
        try:
            found[name] = base64.b64decode(data[name], validate=True)
        except KeyError:
            raise BadInput(f"has no {name}", place=place, remedy="put it back from a backup of the Secret") from None
        except (binascii.Error, ValueError):
            raise BadInput(f"{name} is no base64", place=place, remedy="put it back from a backup") from None
    for name, content in found.items():
        write_whole(directory / name, content)
    return True


async def read_incarnation(store: KubernetesStore, namespace: str) -> str:
    """The store's incarnation. ``NotFound``: the Secret is gone."""
    answer = await store.call("GET", f"{_path(namespace)}/{NAME}")
    return msgspec.convert(answer, _Secret).metadata.annotations.get(INCARNATION, "")


async def write_incarnation(store: KubernetesStore, namespace: str, incarnation: str) -> None:
    """Say that the store is another one now. ``NotFound``: the Secret is gone."""
    change = {"metadata": {"annotations": {INCARNATION: incarnation}}}
    await store.call("PATCH", f"{_path(namespace)}/{NAME}", change, MERGE_PATCH)


async def share_keys(
    store: KubernetesStore, namespace: str, directory: Path, files: tuple[str, ...], incarnation: str
) -> None:
    """Create the Secret from the files of the directory; where another server was first, take its keys instead."""
    data = {name: base64.b64encode(_content(directory / name)).decode() for name in files}
    metadata = {"name": NAME, "annotations": {INCARNATION: incarnation}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    try:
        await store.call("POST", _path(namespace), secret)
    except AlreadyExists:
        await read_shared_keys(store, namespace, directory, files)


def _content(path: Path) -> bytes:
    """Of a key file; a certificate is no secret."""
    return path.read_bytes() if path.suffix == ".pem" else read_private(path, limit=FILE_BYTES)


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
