"""The keys of equal servers: all of them show certificates of one authority, and have one cluster key and one token.

The keys are files in each server's own directory, and together one Secret of Kubernetes. The first server makes them
and creates the Secret; every other one takes what is there, whatever is in its directory. Of two that begin together
the one whose creation came second takes the keys of the first (docs/operating/kubernetes.md#keys).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from outlive.base.errors import AlreadyExists, BadInput, NotFound, Refused
from outlive.base.files import read_private, write_whole
from outlive.drivers.shared_keys import SharedToken, StoreMove
from outlive.store.kubernetes import KubernetesStore

NAME: Final = "outlive-keys"
ADMISSION_NAME: Final = "outlive-admission"
"""The Secret with the key that the API server shows when it asks whether a write is allowed."""
ADMISSION_KEY: Final = "key"
INCARNATION: Final = "outlive.dev/store-incarnation"
"""Annotation of the Secret: changes when etcd was restored from a snapshot."""
MOVING: Final = "outlive.dev/moving-from"
"""Annotation of the Secret while objects are moved here from another store, whose incarnation it names; then
``MOVED``."""
MOVED: Final = "outlive.dev/moved-from"
ISSUED: Final = "outlive.dev/token-issued"
"""Annotation of the Secret: when its token was made, once one was renewed; before that when the Secret was."""
MERGE_PATCH: Final = "application/merge-patch+json"
FILE_BYTES: Final = 64 * 1024
KEY_CHARACTERS: Final = 32
"""Of the shortest key."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] = {}


async def read_shared_keys(store: KubernetesStore, namespace: str, directory: Path, files: tuple[str, ...]) -> bool:
    """Write the cluster's keys into the directory; False where it has none yet.

    ``BadInput`` where the Secret lacks a file or is broken, ``Refused`` while objects are moved here: nothing is
    written then.
    """
    secret = await _read(store, namespace)
    if secret is None:
        return False
    data, place = secret.data, f"Secret {namespace}/{NAME}"
    if MOVING in secret.metadata.annotations:
        raise Refused("a cluster is being moved here", place=place, remedy="repeat outlive migrate-store until it ends")
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


async def read_authority(store: KubernetesStore, namespace: str, file: str) -> bytes:
    """The certificate (PEM) of the controllers' authority, which the Secret has under the file's name. ``NotFound``."""
    found = msgspec.convert(await store.call("GET", f"{_path(namespace)}/{NAME}"), _Secret).data.get(file, "")
    return base64.b64decode(found)


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
    try:
        await _create(store, namespace, _data(directory, files), {INCARNATION: incarnation})
    except AlreadyExists:
        await read_shared_keys(store, namespace, directory, files)


_Dated = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that says of which zone it is."""


async def read_shared_token(store: KubernetesStore, namespace: str, file: str) -> SharedToken:
    """The token, which the Secret has under the file's name. ``NotFound``, ``BadInput`` for a Secret that is broken."""
    secret, place = await _read(store, namespace), f"Secret {namespace}/{NAME}"
    if secret is None:
        raise NotFound("it is gone", place=place, remedy="put it back from its backup")
    meta = secret.metadata
    try:
        token = base64.b64decode(secret.data[file], validate=True).decode("ascii").strip()
        issued = msgspec.convert(meta.annotations.get(ISSUED, meta.creation_timestamp), _Dated, strict=False)
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        raise BadInput(f"holds no token: {error}", place=place, remedy="put it back from a backup") from None
    return SharedToken(secret=token, issued=issued, version=meta.resource_version)


async def replace_shared_token(
    store: KubernetesStore, namespace: str, file: str, before: SharedToken, secret: str, now: datetime
) -> None:
    """Have another token in the Secret. ``Conflict``: another server was first, or the Secret was changed."""
    data = {file: base64.b64encode(f"{secret}\n".encode()).decode()}
    annotations = {ISSUED: now.isoformat(timespec="seconds")}
    change = {"metadata": {"resourceVersion": before.version, "annotations": annotations}, "data": data}
    await store.call("PATCH", f"{_path(namespace)}/{NAME}", change, MERGE_PATCH)


class SecretKeys:
    """The shared keys as one Secret; see ``outlive.drivers.shared_keys.SharedKeys``."""

    lost_remedy = (
        "put the Secret back from its backup, unless the cluster has moved away: docs/operating/kubernetes.md#backup"
    )

    def __init__(self, store: KubernetesStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    @property
    def place(self) -> str:
        """Where they are, in words."""
        return f"Secret {self._namespace}/{NAME}"

    async def read(self, directory: Path, files: tuple[str, ...]) -> bool:
        """As ``read_shared_keys``."""
        return await read_shared_keys(self._store, self._namespace, directory, files)

    async def share(self, directory: Path, files: tuple[str, ...], incarnation: str) -> None:
        """As ``share_keys``."""
        await share_keys(self._store, self._namespace, directory, files, incarnation)

    async def read_incarnation(self) -> str:
        """As ``read_incarnation``."""
        return await read_incarnation(self._store, self._namespace)

    async def write_incarnation(self, incarnation: str) -> None:
        """As ``write_incarnation``."""
        await write_incarnation(self._store, self._namespace, incarnation)

    async def read_token(self, file: str) -> SharedToken:
        """As ``read_shared_token``."""
        return await read_shared_token(self._store, self._namespace, file)

    async def replace_token(self, file: str, before: SharedToken, secret: str, now: datetime) -> None:
        """As ``replace_shared_token``."""
        await replace_shared_token(self._store, self._namespace, file, before, secret, now)

    async def begin_move(self, directory: Path, files: tuple[str, ...], *, source: str, incarnation: str) -> StoreMove:
        """As ``begin_move``."""
        return await begin_move(self._store, self._namespace, directory, files, source=source, incarnation=incarnation)

    async def end_move(self, source: str) -> None:
        """As ``end_move``."""
        await end_move(self._store, self._namespace, source)


async def begin_move(
    store: KubernetesStore, namespace: str, directory: Path, files: tuple[str, ...], *, source: str, incarnation: str
) -> StoreMove:
    """Create the Secret so that no controller starts before ``end_move``; or go on where this was done before.

    ``source``: incarnation of the store that is moved. ``incarnation``: of the new one, if the move begins now.
    ``Refused`` where the Secret is another cluster's, or has other keys; ``NotFound`` without the namespace.
    """
    place, data = f"Secret {namespace}/{NAME}", _data(directory, files)
    secret = await _read(store, namespace)
    if secret is None:
        try:
            await _create(store, namespace, data, {INCARNATION: incarnation, MOVING: source})
        except NotFound as error:
            remedy = f"kubectl create namespace {namespace}; or --namespace"
            raise NotFound(error.message, place=place, remedy=remedy) from None
        secret = await _read(store, namespace)
    said = secret.metadata.annotations if secret is not None else {}
    if secret is None or source not in (said.get(MOVING), said.get(MOVED)):
        raise Refused(
            "is there already: controllers of another cluster have run there",
            place=place,
            remedy="if nothing of that is needed: stop them, delete the Secret and all objects of outlive.dev",
        )
    if MOVED not in said and secret.data != data:
        raise Refused("has other keys than the state directory", place=place, remedy="delete the Secret, and repeat")
    assert secret.metadata.creation_timestamp is not None, "the server dates every object"
    return StoreMove(incarnation=said[INCARNATION], since=secret.metadata.creation_timestamp, over=MOVED in said)


async def end_move(store: KubernetesStore, namespace: str, source: str) -> None:
    """Let controllers start: all objects are there."""
    change = {"metadata": {"annotations": {MOVING: None, MOVED: source}}}
    await store.call("PATCH", f"{_path(namespace)}/{NAME}", change, MERGE_PATCH)


async def _read(store: KubernetesStore, namespace: str) -> _Secret | None:
    try:
        return msgspec.convert(await store.call("GET", f"{_path(namespace)}/{NAME}"), _Secret)
    except NotFound:
        return None
    except msgspec.ValidationError as error:
        place = f"Secret {namespace}/{NAME}"
        raise BadInput(f"is broken: {error}", place=place, remedy="put it back from a backup") from None


async def _create(store: KubernetesStore, namespace: str, data: dict[str, str], annotations: dict[str, str]) -> None:
    metadata = {"name": NAME, "annotations": annotations}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    await store.call("POST", _path(namespace), secret)


def _data(directory: Path, files: tuple[str, ...]) -> dict[str, str]:
    return {name: base64.b64encode(_content(directory / name)).decode() for name in files}


async def admission_key(store: KubernetesStore, namespace: str, made: str = "") -> str:
    """The key by which the controllers know the API server; ``made`` becomes it where there is none.

    ``NotFound`` where there is none and none is made, ``BadInput`` for a Secret that is broken.
    """
    path = f"{_path(namespace)}/{ADMISSION_NAME}"
    if made:
        data = {ADMISSION_KEY: base64.b64encode(made.encode()).decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": ADMISSION_NAME}, "data": data}
        with contextlib.suppress(AlreadyExists):
            await store.call("POST", _path(namespace), {**secret, "type": "Opaque"})
    found = msgspec.convert(await store.call("GET", path), _Secret).data.get(ADMISSION_KEY, "")
    try:
        key = base64.b64decode(found, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        key = ""
    if len(key) < KEY_CHARACTERS or quote(key, safe="") != key:
        place, remedy = f"Secret {namespace}/{ADMISSION_NAME}", "delete it, restart the controllers, outlive admission"
        raise BadInput("holds no key", place=place, remedy=remedy)
    return key


def _content(path: Path) -> bytes:
    """Of a key file; a certificate is no secret."""
    return path.read_bytes() if path.suffix == ".pem" else read_private(path, limit=FILE_BYTES)


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
