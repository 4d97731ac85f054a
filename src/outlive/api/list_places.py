"""Where a list goes on, for readers who are not shown every object.

A store's place is the name of the last object that it read, which may be one that the reader is not shown. So these
readers get it encrypted and in one length: with a key that each start of the server makes anew, or with one that equal
servers share, since the next page may be asked of another one. Any other place is ``Expired``: the client lists from
the beginning, as with any place that is too old.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outlive.api.errors import Expired
from outlive.resources import NAME_LENGTH_LIMIT

_NONCE_BYTES: Final = 12
_START_BYTES: Final = 8


class ListPlaces:
    """Encrypts and decrypts places; one for each server. ``shared``: a secret of all equal servers, or nothing."""

    def __init__(self, shared: str = "") -> None:
        key = hashlib.sha256(b"outlive list places " + shared.encode()).digest() if shared else AESGCM.generate_key(256)
        self._cipher = AESGCM(key)
        self._start = AESGCM.generate_key(128)[:_START_BYTES]
        self._numbers = itertools.count()
        """Of nonces: no two places of one key have the same, those of other servers and starts included."""

    def seal(self, place: str, plural: str) -> str:
        """The place as a reader is given it; none where there is none."""
        if not place:
            return ""
        nonce = self._start + next(self._numbers).to_bytes(_NONCE_BYTES - _START_BYTES)
        plain = place.encode().ljust(NAME_LENGTH_LIMIT, b"\0")
        return base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, plain, plural.encode())).decode()

    def open(self, sealed: str, plural: str) -> str:
        """The place that was sealed; ``Expired`` for what this server has not sealed."""
        if not sealed:
            return ""
        try:
            raw = base64.urlsafe_b64decode(sealed.encode())
            plain = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], plural.encode())
        except (binascii.Error, ValueError, InvalidTag):
            raise Expired("the continue token is not one of this server", remedy="list from the beginning") from None
        return plain.rstrip(b"\0").decode()
