"""Where a list goes on, for readers who are not shown every object.

A store's place is the name of the last object that it read, which may be one that the reader is not shown. So these
readers get it encrypted, with a key that each start of the server makes anew, and in one length. A place of another
start or of another kind is ``Expired``: the client lists from the beginning, as with any place that is too old.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outlive.api.errors import Expired
from outlive.resources.meta import NAME_LENGTH_LIMIT

_NONCE_BYTES: Final = 12


class ListPlaces:
    """Encrypts and decrypts places; one for each server."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._numbers = itertools.count()
        """Of nonces: no two places of one key have the same."""

    def seal(self, place: str, plural: str) -> str:
        """The place as a reader is given it; none where there is none."""
        if not place:
            return ""
        nonce, plain = next(self._numbers).to_bytes(_NONCE_BYTES), place.encode().ljust(NAME_LENGTH_LIMIT, b"\0")
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
