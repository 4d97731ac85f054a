"""The keys of equal servers: all of them show certificates of one authority, and have one cluster key and one token.

The keys are files in each server's own directory, and together one Secret of Kubernetes. The first server makes them
and creates the Secret; every other one takes what is there, whatever is in its directory. Of two that begin together
the one whose creation came second takes the keys of the first (docs/how-to/kubernetes.md#keys).
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

from outlive.base import AlreadyExists, BadInput, NotFound, Refused, write_whole
from outlive.drivers.shared_keys import SharedToken, StoreMove, encode_key_files
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
KEY_CHARACTERS: Final = 32
"""Of the shortest key."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] = {}


_Dated = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that says of which zone it is."""


class SecretKeys:
    """The shared keys as one Secret; see ``outlive.drivers.shared_keys.SharedKeys``."""

    lost_remedy = (
        "put the Secret back from its backup, unless the cluster has moved away: docs/how-to/kubernetes.md#backup"
    )

    def __init__(self, store: KubernetesStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._path = f"{_secrets_path(namespace)}/{NAME}"

    @property
    def place(self) -> str:
        """Where they are, in words."""
        return f"Secret {self._namespace}/{NAME}"

    async def read(self, directory: Path, files: tuple[str, ...]) -> bool:
        """Write the cluster's keys into the directory; False where it has none yet."""
        secret = await self._read_secret()
        if secret is None:
            return False
        data, place = secret.data, self.place
        if MOVING in secret.metadata.annotations:
            remedy = "repeat outlive migrate-store until it ends"
            raise Refused("a cluster is being moved here", place=place, remedy=remedy)
        found: dict[str, bytes] = {}
        for name in files:
            try:
                found[name] = base64.b64decode(data[name], validate=True)
            except KeyError:
                remedy = "put it back from a backup of the Secret"
                raise BadInput(f"has no {name}", place=place, remedy=remedy) from None
            except (binascii.Error, ValueError):
                raise BadInput(f"{name} is no base64", place=place, remedy="put it back from a backup") from None
        for name, content in found.items():
            write_whole(directory / name, content)
        return True

    async def share(self, directory: Path, files: tuple[str, ...], incarnation: str) -> None:
        """Create the Secret from the files of the directory; where another server was first, take its keys instead."""
        try:
            await self._create(encode_key_files(directory, files), {INCARNATION: incarnation})
        except AlreadyExists:
            await self.read(directory, files)

    async def read_incarnation(self) -> str:
        """The store's incarnation. ``NotFound``: the Secret is gone."""
        answer = await self._store.call("GET", self._path)
        return msgspec.convert(answer, _Secret).metadata.annotations.get(INCARNATION, "")

    async def write_incarnation(self, incarnation: str) -> None:
        """Say that the store is another one now. ``NotFound``: the Secret is gone."""
        change = {"metadata": {"annotations": {INCARNATION: incarnation}}}
        await self._store.call("PATCH", self._path, change, MERGE_PATCH)

    async def read_token(self, file: str) -> SharedToken:
        """The token, which the Secret has under the file's name."""
        secret, place = await self._read_secret(), self.place
        if secret is None:
            raise NotFound("it is gone", place=place, remedy="put it back from its backup")
        meta = secret.metadata
        try:
            token = base64.b64decode(secret.data[file], validate=True).decode("ascii").strip()
            issued = msgspec.convert(meta.annotations.get(ISSUED, meta.creation_timestamp), _Dated, strict=False)
        except (KeyError, ValueError, msgspec.ValidationError) as error:
            raise BadInput(f"holds no token: {error}", place=place, remedy="put it back from a backup") from None
        return SharedToken(secret=token, issued=issued, version=meta.resource_version)

    async def replace_token(self, file: str, before: SharedToken, secret: str, now: datetime) -> None:
        """Have another token there. ``Conflict``: another server was first, or the Secret was changed."""
        data = {file: base64.b64encode(f"{secret}\n".encode()).decode()}
        annotations = {ISSUED: now.isoformat(timespec="seconds")}
        change = {"metadata": {"resourceVersion": before.version, "annotations": annotations}, "data": data}
        await self._store.call("PATCH", self._path, change, MERGE_PATCH)

    async def begin_move(self, directory: Path, files: tuple[str, ...], *, source: str, incarnation: str) -> StoreMove:
        """Create the Secret so that no controller starts before ``end_move``; or go on where this was done before.

        ``NotFound`` without the namespace.
        """
        place, data = self.place, encode_key_files(directory, files)
        secret = await self._read_secret()
        if secret is None:
            try:
                await self._create(data, {INCARNATION: incarnation, MOVING: source})
            except NotFound as error:
                remedy = f"kubectl create namespace {self._namespace}; or --namespace"
                raise NotFound(error.message, place=place, remedy=remedy) from None
            secret = await self._read_secret()
        said = secret.metadata.annotations if secret is not None else {}
        if secret is None or source not in (said.get(MOVING), said.get(MOVED)):
            raise Refused(
                "is there already: controllers of another cluster have run there",
                place=place,
                remedy="if nothing of that is needed: stop them, delete the Secret and all objects of outlive.dev",
            )
        if MOVED not in said and secret.data != data:
            what = "has other keys than the state directory"
            raise Refused(what, place=place, remedy="delete the Secret, and repeat")
        assert secret.metadata.creation_timestamp is not None, "the server dates every object"
        return StoreMove(incarnation=said[INCARNATION], since=secret.metadata.creation_timestamp, over=MOVED in said)

    async def end_move(self, source: str) -> None:
        """Let controllers start: all objects are there."""
        change = {"metadata": {"annotations": {MOVING: None, MOVED: source}}}
        await self._store.call("PATCH", self._path, change, MERGE_PATCH)

    async def _read_secret(self) -> _Secret | None:
        try:
            return msgspec.convert(await self._store.call("GET", self._path), _Secret)
        except NotFound:
            return None
        except msgspec.ValidationError as error:
            raise BadInput(f"is broken: {error}", place=self.place, remedy="put it back from a backup") from None

    async def _create(self, data: dict[str, str], annotations: dict[str, str]) -> None:
        metadata = {"name": NAME, "annotations": annotations}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        await self._store.call("POST", _secrets_path(self._namespace), secret)


async def read_authority(store: KubernetesStore, namespace: str, file: str) -> bytes:
    """The certificate (PEM) of the controllers' authority, which the Secret has under the file's name. ``NotFound``."""
    found = msgspec.convert(await store.call("GET", f"{_secrets_path(namespace)}/{NAME}"), _Secret).data.get(file, "")
    return base64.b64decode(found)


async def admission_key(store: KubernetesStore, namespace: str, made: str = "") -> str:
    """The key by which the controllers know the API server; ``made`` becomes it where there is none.

    ``NotFound`` where there is none and none is made, ``BadInput`` for a Secret that is broken.
    """
    path = f"{_secrets_path(namespace)}/{ADMISSION_NAME}"
    if made:
        data = {ADMISSION_KEY: base64.b64encode(made.encode()).decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": ADMISSION_NAME}, "data": data}
        with contextlib.suppress(AlreadyExists):
            await store.call("POST", _secrets_path(namespace), {**secret, "type": "Opaque"})
    found = msgspec.convert(await store.call("GET", path), _Secret).data.get(ADMISSION_KEY, "")
    try:
        key = base64.b64decode(found, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        key = ""
    if len(key) < KEY_CHARACTERS or quote(key, safe="") != key:
        place, remedy = f"Secret {namespace}/{ADMISSION_NAME}", "delete it, restart the controllers, outlive admission"
        raise BadInput("holds no key", place=place, remedy=remedy)
    return key


def _secrets_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
