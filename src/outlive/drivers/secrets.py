"""The cluster's key, and secrets sealed for it: set with its public half, read with the private one.

A key is an X25519 pair. A value is sealed with a pair that is made for it alone: the shared secret of both gives, by
HKDF-SHA256, the key of AES-256-GCM (the shape of ECIES, SEC 1, and HPKE, RFC 9180). Name, user name and addresses of
the secret are authenticated with it, so that a sealed value is worth nothing with others. ``v2.KEY.DATA``: the id of
the key, and the public half of the value's own pair, the nonce and what was encrypted, in URL-safe Base64. In ``v1``,
which is still opened, the name alone was authenticated.

The private half is a file of mode 600, which holds the newest key first and older ones after it
(docs/how-to/secrets.md).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from outlive.base import BadInput, NotFound, OutliveError, Unavailable, read_private
from outlive.drivers.bmc.driver import Credential
from outlive.drivers.files import write_private
from outlive.drivers.libvirt.threads import DiskThread
from outlive.resources import Secret
from outlive.store import read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    from outlive.store import Store

KEY_FILE: Final = "cluster-key"
"""In the state directory of ``outlive up``, and in ``/etc/outlive`` of coordinators."""
KEY_FILE_BYTES: Final = 4096
KEYS_LIMIT: Final = 8
"""Keys in the file: the newest, and older ones until nothing is sealed for them any more."""
VALUE_BYTES: Final = 4096
"""The longest value."""
KEPT: Final = 1000
"""Sealed secrets that are kept for when the store does not answer, the latest."""
OLD_VERSION: Final = "v1"
VERSION: Final = "v2"
PUBLIC: Final = "x25519:"
PRIVATE: Final = "x25519-private:"
_PUBLIC_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_HEAD: Final = "# Opens the secrets of this cluster (docs/how-to/secrets.md). The newest key first.\n"


@dataclass(frozen=True, slots=True)
class SealingKey:
    """The public half: its holder can set secrets and read none."""

    raw: bytes

    @classmethod
    def parse(cls, text: str) -> SealingKey:
        """Of ``Cluster/default.status.sealingKey``."""
        raw = _decode_base64(text.removeprefix(PUBLIC)) if text.startswith(PUBLIC) else None
        if raw is None or len(raw) != _PUBLIC_BYTES:
            raise BadInput(f"{text[:80]!r} is no public key", place="status.sealingKey", remedy="restart outlive up")
        return cls(raw)

    @property
    def text(self) -> str:
        """For ``status.sealingKey``."""
        return PUBLIC + _encode_base64(self.raw)

    @property
    def id(self) -> str:
        """In what is sealed for it."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def seal(self, name: str, value: bytes, username: str = "", addresses: Sequence[str] = ()) -> str:
        """The value for the secret of that name, user and controllers, as ``Secret.spec.sealed`` has it."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not 0 < len(value) <= VALUE_BYTES:
            what = "empty" if not value else f"longer than {VALUE_BYTES} bytes"
            raise BadInput(f"the value is {what}", place=name, remedy="give the password alone")
        pair = X25519PrivateKey.generate()
        mine, nonce = pair.public_key().public_bytes_raw(), os.urandom(_NONCE_BYTES)
        shared = _derive_shared_key(pair, X25519PublicKey.from_public_bytes(self.raw), mine, self.raw)
        closed = AESGCM(shared).encrypt(nonce, value, _associated_data(VERSION, name, username, addresses))
        return f"{VERSION}.{self.id}.{_encode_base64(mine + nonce + closed)}"


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """The private half of the newest key, and of older ones."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def generate(cls, older: ClusterKey | None = None) -> ClusterKey:
        """A new key before the older ones."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        new = X25519PrivateKey.generate().private_bytes_raw()
        return cls((new, *(older.keys if older is not None else ()))[:KEYS_LIMIT])

    @classmethod
    def parse(cls, text: str, place: str) -> ClusterKey:
        """What a key file holds."""
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        keys = [_decode_base64(line.removeprefix(PRIVATE)) if line.startswith(PRIVATE) else None for line in lines]
        found = tuple(key for key in keys if key is not None and len(key) == _PUBLIC_BYTES)
        if not found or len(found) != len(lines) or len(found) > KEYS_LIMIT:
            raise BadInput("is no key of a cluster", place=place, remedy="copy it again from the server")
        return cls(found)

    @classmethod
    def read(cls, path: Path) -> ClusterKey:
        """The key in a file that nobody else can read."""
        try:
            raw = read_private(path, limit=KEY_FILE_BYTES)
        except NotFound:
            raise NotFound("is not there, so no secret can be read here", place=str(path), remedy=_COPY) from None
        return cls.parse(raw.decode(errors="replace"), str(path))

    @classmethod
    def ensure(cls, path: Path) -> ClusterKey:
        """The key in the file; made where there is none."""
        try:
            return cls.read(path)
        except NotFound:
            key = cls.generate()
            key.write(path)
            return key

    def write(self, path: Path) -> None:
        """Whole or not at all, readable by its owner only."""
        write_private(path, self.text.encode())

    @property
    def text(self) -> str:
        """What a key file holds."""
        return _HEAD + "".join(f"{PRIVATE}{_encode_base64(key)}\n" for key in self.keys)

    @property
    def public(self) -> SealingKey:
        """Of the newest."""
        return _derive_public_key(self.keys[0])

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all of them, the newest first."""
        return tuple(_derive_public_key(key).id for key in self.keys)

    def without_older(self) -> ClusterKey:
        """Without the older ones."""
        return ClusterKey(self.keys[:1])

    def unseal(self, secret: Secret) -> bytes:
        """Its value; ``Unavailable`` with what is wrong with it."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        again = f"outlive secret set {secret.name}"
        if not secret.spec.key:
            raise Unavailable(f"secret {secret.name} holds no sealed value", remedy=again)
        private = next((key for key in self.keys if _derive_public_key(key).id == secret.spec.key), None)
        if private is None:
            what = f"secret {secret.name} is sealed for key {secret.spec.key}, which this host does not have"
            raise Unavailable(what, remedy=_COPY)
        raw = _decode_base64(secret.spec.sealed.rpartition(".")[2]) or b""
        theirs, rest = raw[:_PUBLIC_BYTES], raw[_PUBLIC_BYTES:]
        try:
            shared = _derive_shared_key(
                X25519PrivateKey.from_private_bytes(private),
                X25519PublicKey.from_public_bytes(theirs),
                theirs,
                _derive_public_key(private).raw,
            )
            version, spec = secret.spec.sealed.partition(".")[0], secret.spec
            bound = _associated_data(version, secret.name, spec.username, spec.addresses)
            return AESGCM(shared).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            what = f"secret {secret.name} was damaged, or sealed under another name, user or address"
            raise Unavailable(what, remedy=again) from None


_COPY: Final = f"copy {KEY_FILE} from the server, or join as a coordinator again"


class Secrets:
    """Credentials of controllers: each is read from the store, and opened with the key in the file, when it is used.

    Sealed as it was read last it is used while the store does not answer: in the middle of a fence, for example.
    """

    def __init__(self, store: Store, key_file: Path) -> None:
        self._store = store
        self._key_file = key_file
        self._disk = DiskThread(key_file)
        self._last: dict[str, Secret] = {}

    async def read_credential(self, name: str) -> Credential:
        """User name and password; ``Unavailable`` and others in one line."""
        try:
            secret = await read(self._store, Secret, name)
        except Unavailable:
            secret = self._last.get(name)
            if secret is None:
                raise
        self._last.pop(name, None)
        if secret is None:
            raise NotFound(f"secret {name} does not exist", remedy=f"outlive secret set {name}")
        self._last[name] = secret
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        value = (await self._disk.call(lambda: ClusterKey.read(self._key_file))).unseal(secret)
        try:
            return Credential(secret.spec.username, value.decode(), secret.spec.addresses)
        except UnicodeDecodeError:
            raise Unavailable(f"secret {name} holds no text", remedy=f"outlive secret set {name}") from None


class KeyCopy:
    """A coordinator's own copy of the cluster's key, fetched anew where the server has other keys."""

    def __init__(self, fetch: Callable[[], Awaitable[str]], path: Path) -> None:
        self._fetch = fetch
        self._path = path
        self._disk = DiskThread(path)

    async def list_ids(self) -> tuple[str, ...]:
        """Of the keys in the file; none where it is not there, or cannot be read."""
        try:
            return (await self._disk.call(lambda: ClusterKey.read(self._path))).ids
        except OutliveError:
            return ()

    async def update(self, ids: tuple[str, ...], sealing: str) -> None:
        """Have these keys in the file, among them the one for whose public half secrets are sealed.

        A file that would lack that one stays as it is: it may be the last copy. ``Unavailable`` and others say why.
        """
        key = ClusterKey.parse(await self._fetch(), "what the server handed over")
        if key.ids != ids or SealingKey.parse(sealing).id not in key.ids:
            has = " and ".join(key.ids)
            raise Unavailable(f"the server hands over {has}", remedy=f"see {KEY_FILE} in its state directory")
        await self._disk.call(lambda: key.write(self._path))


def _derive_shared_key(private: X25519PrivateKey, public: X25519PublicKey, ephemeral: bytes, recipient: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"outlive secret v1" + ephemeral + recipient)
    return kdf.derive(private.exchange(public))


def _derive_public_key(private: bytes) -> SealingKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return SealingKey(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def _associated_data(version: str, name: str, username: str, addresses: Sequence[str]) -> bytes:
    """What is authenticated with a sealed value."""
    if version == OLD_VERSION:
        return f"Secret/{name}".encode()
    return msgspec.json.encode(["Secret", name, username, list(addresses)])


def _encode_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
