"""Age's format with a passphrase (age-encryption.org/v1, recipient type scrypt), with a fixed amount of work.

The library that does the rest of the format measures the machine to choose the work, and refuses what would take this
machine long. A backup that was made on an idle machine has to open on a slow or busy one, and a server has to know how
much memory it takes; so the work is fixed here, as the ``age`` command fixes it, and up to its limit is opened
(docs/decisions/README.md#backups).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import Final

from outlive.base import BadInput

LOG_WORK: Final = 18
"""Of what is encrypted: half a second to a few seconds, and 256 MiB."""
LOG_WORK_MOST: Final = 22
"""Of what is opened: four GiB."""
_CHUNK_BYTES: Final = 64 * 1024
_TAG_BYTES: Final = 16
_SALT_BYTES: Final = 16
_FILE_KEY_BYTES: Final = 16
_NONCE_BYTES: Final = 16
_SALT_LABEL: Final = b"age-encryption.org/v1/scrypt"
_HEADER: Final = re.compile(
    rb"(age-encryption\.org/v1\n-> scrypt ([A-Za-z0-9+/]{22}) ([1-9][0-9]?)\n"
    rb"([A-Za-z0-9+/]{43})\n---) ([A-Za-z0-9+/]{43})\n"
)
"""One recipient alone: a passphrase has no others beside it."""


def encrypt(raw: bytes, passphrase: str) -> bytes:
    """Encrypt bytes; ``age -d`` opens them with the same passphrase."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    file_key, salt, nonce = os.urandom(_FILE_KEY_BYTES), os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    wrapped = ChaCha20Poly1305(_wrap_key(passphrase, salt, LOG_WORK)).encrypt(bytes(12), file_key, None)
    header = b"age-encryption.org/v1\n-> scrypt %b %d\n%b\n---" % (
        _encode_base64(salt),
        LOG_WORK,
        _encode_base64(wrapped),
    )
    payload = ChaCha20Poly1305(_derive_key(file_key, nonce, b"payload"))
    starts = range(0, max(1, len(raw)), _CHUNK_BYTES)
    chunks = [
        payload.encrypt(_chunk_nonce(number, start == starts[-1]), raw[start : start + _CHUNK_BYTES], None)
        for number, start in enumerate(starts)
    ]
    return b"".join((header, b" ", _encode_base64(_compute_mac(file_key, header)), b"\n", nonce, *chunks))


def decrypt(sealed: bytes, passphrase: str) -> bytes:
    """Open it; ``BadInput`` where the passphrase is another one, or it was changed or cut off."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    found = _HEADER.match(sealed)
    if found is None:
        raise BadInput("is not encrypted with a passphrase in age's format", remedy="use another backup")
    header, salt, work, wrapped, mac = found.groups()
    if int(work) > LOG_WORK_MOST:
        raise BadInput(f"asks for work of 2^{int(work)}; at most 2^{LOG_WORK_MOST} is done", remedy="use age -d")
    try:
        key = _wrap_key(passphrase, _decode_base64(salt), int(work))
        file_key = ChaCha20Poly1305(key).decrypt(bytes(12), _decode_base64(wrapped), None)
    except (InvalidTag, binascii.Error):
        raise BadInput("the passphrase is another one", remedy="give that with which it was made") from None
    rest = sealed[found.end() :]
    nonce, body = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
    payload, size = ChaCha20Poly1305(_derive_key(file_key, nonce, b"payload")), _CHUNK_BYTES + _TAG_BYTES
    starts = range(0, max(1, len(body)), size)
    try:
        if not hmac.compare_digest(_compute_mac(file_key, header), _decode_base64(mac)):
            raise InvalidTag
        return b"".join(
            payload.decrypt(_chunk_nonce(number, start == starts[-1]), body[start : start + size], None)
            for number, start in enumerate(starts)
        )
    except (InvalidTag, binascii.Error, ValueError):
        raise BadInput("was changed or cut off", remedy="use another backup") from None


def _wrap_key(passphrase: str, salt: bytes, log_work: int) -> bytes:
    work = 1 << log_work
    return hashlib.scrypt(
        passphrase.encode(), salt=_SALT_LABEL + salt, n=work, r=8, p=1, maxmem=1024 * work + 2**20, dklen=32
    )


def _derive_key(file_key: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt or None, info=info).derive(file_key)


def _compute_mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derive_key(file_key, b"", b"header"), header, "sha256")


def _chunk_nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\x01" if last else b"\x00")


def _encode_base64(raw: bytes) -> bytes:
    return base64.b64encode(raw).rstrip(b"=")


def _decode_base64(text: bytes) -> bytes:
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
