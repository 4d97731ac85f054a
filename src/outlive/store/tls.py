"""How a client verifies its server: by the fingerprint of the server's own authority, or by an authority that it
knows.

The server's own authority signs for nothing but that server, so a client that has pinned it needs no name to compare;
it is known by the unit in its name (``OWN_UNIT``), and any other one is an operator's, which signs for others as well.
Its fingerprint is the SHA-256 of its certificate; the certificate itself is asked of the server once, over a connection
that is not believed, and compared: the one with that fingerprint is believed, and nothing beside it. Anything else is
verified as usual, with the name. Tokens are never sent in clear text beyond this machine, unless ``--insecure`` says so
(docs/reference/http-api.md#tls).
"""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from outlive.base import BadInput, Forbidden, LimitExceeded, NotFound, SystemClock, Unavailable

AUTHORITY_PATH: Final = "/ca"
"""Where a server gives away the certificate of its own authority, and of the one that is to follow it."""
JOIN_PATH: Final = "/join"
"""Where a host exchanges its join token."""
KEY_PATH: Final = "/cluster-key"
"""Where a coordinator gets what opens secrets."""
SCREEN_PATH: Final = "/screen-passwords/{name}"
"""Where a host gets the password of the screens of a VM of its own."""
TOKEN_PATH: Final = "/token"  # noqa: S105 - a path
"""What a token says of itself."""
RENEWAL_PATH: Final = "/token/renew"
"""Where a host renews its token."""
ROTATION_PATH: Final = "/tls/rotate"
"""Where an administrator replaces the server's own authority."""
BACKUP_PATH: Final = "/backup"
"""Where an administrator gets a backup of the server."""
ADDRESSES_LIMIT: Final = 8
"""Addresses of equal servers that a client is given."""
AUTHORITIES: Final = 2
"""A server's own authorities at the same time: the present one, and the one that is to follow it."""
AUTHORITY_BYTES: Final = 16 * 1024
ASKED_WITHIN_S: Final = 15.0
HEX_DIGITS: Final = 64
"""Of a fingerprint."""
OWN_UNIT: Final = "own authority of one Outlive server"
"""Organizational unit in the name of a server's own authority; nobody names one so that signs for others."""
_PEM_BEGIN: Final = "-----BEGIN "


def check_address(url: str, *, insecure: bool = False) -> None:
    """``Forbidden`` for an address to which a token would go in clear text, ``BadInput`` for one that is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise BadInput(f"{url[:200]!r} is no address of a server", remedy="write one such as https://10.0.0.1:8080")
    if parts.scheme == "http" and not insecure and not is_loopback(host):
        raise Forbidden(
            f"{url[:200]} is plain HTTP to another machine: the token could be read on the way",
            remedy="use https://, or --insecure if you must",
        )


def split_addresses(text: str, *, insecure: bool = False) -> tuple[str, ...]:
    """The addresses of equal servers, which commas separate; ``BadInput`` and ``Forbidden`` as of ``check_address``."""
    found = tuple(dict.fromkeys(one.strip().rstrip("/") for one in text.split(",")))
    if len(found) > ADDRESSES_LIMIT:
        raise BadInput(f"{len(found)} addresses of servers", remedy=f"name at most {ADDRESSES_LIMIT}")
    for one in found:
        check_address(one, insecure=insecure)
    if len({urlsplit(one).scheme for one in found}) > 1:
        raise BadInput("some of the servers are asked by TLS, others are not", remedy="write https:// for all of them")
    return found


def shown_address(text: str) -> str:
    """The addresses as they may be logged: without the user and password that may stand in them."""
    parts = [urlsplit(one) for one in text.split(",")]
    return ",".join(one._replace(netloc=one.netloc.rpartition("@")[2]).geturl() for one in parts)


def is_loopback(host: str) -> bool:
    """Whether the name or address is that of this very machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def url_origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a server's address; empty where it is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", "", 0


def parse_fingerprint(text: str) -> str:
    """A fingerprint in lower-case hexadecimal digits, from any usual way to write it; ``BadInput``."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if len(digits) != HEX_DIGITS or any(one not in "0123456789abcdef" for one in digits):
        raise BadInput(
            f"{text[:80]!r} is no fingerprint",
            remedy=f"give the {HEX_DIGITS} hexadecimal digits that outlive up prints when it starts",
        )
    return digits


def parse_fingerprints(text: str) -> tuple[str, ...]:
    """One fingerprint, or two with a comma while the server's authority is being replaced; ``BadInput``."""
    return tuple(parse_fingerprint(one) for one in text.split(",", AUTHORITIES))


def first_fingerprint(certificate: str) -> str:
    """Of the first certificate of a PEM text; ``BadInput`` where there is none."""
    return fingerprint_of(parse_certificates(certificate)[0])


def fingerprint_of(certificate: bytes) -> str:
    """Of a certificate (DER)."""
    return hashlib.sha256(certificate).hexdigest()


def pem_of(certificate: bytes) -> str:
    """A certificate (DER) in PEM."""
    return ssl.DER_cert_to_PEM_cert(certificate)


def parse_certificates(text: str) -> tuple[bytes, ...]:
    """The certificates of a PEM text (DER): one, or two while a server's authority is being replaced; ``BadInput``."""
    blocks = text.split(_PEM_BEGIN)[1:]
    if len(blocks) > AUTHORITIES:
        raise BadInput(
            f"{len(blocks)} certificates or keys, where one is compared with a fingerprint",
            remedy="give the certificate of the server's own authority alone, its file ca.pem",
        )
    try:
        ends = [block.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER) for block in blocks]
        found = [ssl.PEM_cert_to_DER_cert(_PEM_BEGIN + block[:end]) for block, end in zip(blocks, ends, strict=True)]
    except ValueError:
        found = []
    if not found:
        raise BadInput("is no certificate in PEM", remedy="give the file ca.pem of the server") from None
    return tuple(found)


def pinned_certificates(text: str, pinned: str) -> tuple[bytes, ...]:
    """Those certificates (DER) of a PEM text that have a pinned fingerprint; ``Forbidden`` where none has."""
    wanted, found = parse_fingerprints(pinned), parse_certificates(text)
    if good := tuple(one for one in found if fingerprint_of(one) in wanted):
        return good
    raise Forbidden(
        f"the authority has the fingerprint {fingerprint_of(found[0])}, and {' or '.join(wanted)} was expected",
        remedy="see what outlive up prints on the server; if that differs as well, somebody else answers",
    )


def make_client_context(authority: str, *, pinned: str = "") -> ssl.SSLContext:
    """A client's context that believes this authority (PEM) alone; ``pinned``: its fingerprint. Then the very bytes
    that have it are believed, and nothing beside them. Where that is a server's own authority, no name is compared.
    ``Forbidden`` where the fingerprint is another's."""
    if pinned:
        return make_pinned_context(pinned_certificates(authority, pinned))
    return _authority_context(authority)


def make_pinned_context(found: Iterable[bytes]) -> ssl.SSLContext:
    """A client's context that believes these authorities (DER) alone; no name is compared where all of them are a
    server's own."""
    context = _authority_context(b"".join(found))
    context.check_hostname = not _is_own_context(context)
    return context


def is_own(certificate: bytes) -> bool:
    """Whether it is a server's own authority: self-signed, and of that unit."""
    try:
        return _is_own_context(_authority_context(certificate))
    except BadInput:
        return False


def _authority_context(authority: str | bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(f"the authority cannot be used: {error}", remedy="give the file ca.pem of the server") from None
    return context


def _is_own_context(context: ssl.SSLContext) -> bool:
    found: list[Any] = context.get_ca_certs()
    return bool(found) and all(
        one["subject"] == one["issuer"]
        and [value for part in one["subject"] for key, value in part if key == "organizationalUnitName"] == [OWN_UNIT]
        for one in found
    )


async def fetch_authority(url: str, pinned: str) -> str:
    """The certificate of the server's own authority, if it has this fingerprint; ``Forbidden`` otherwise.

    ``NotFound`` where the server has a certificate of somebody else's; ``Unavailable``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # what comes is compared with the fingerprint, and nothing else is asked
    from outlive.store.http_calls import BriefCalls

    calls = BriefCalls(url, SystemClock(), answer_bytes=AUTHORITY_BYTES, within_s=ASKED_WITHIN_S)
    try:
        status, raw = await calls.call("GET", url.rstrip("/") + AUTHORITY_PATH, {}, None, context)
    except (Unavailable, LimitExceeded) as error:
        raise Unavailable(
            f"{url} cannot be asked: {error.message}", remedy="check the address, and that it runs"
        ) from None
    finally:
        await calls.close()
    if status != 200:
        raise NotFound(
            f"{url} has no authority of its own (it answered {status})",
            remedy="leave --fingerprint out: its certificate is of an authority that others know; or check the address",
        )
    try:
        found = pinned_certificates(raw.decode("ascii", "replace"), pinned)
        make_pinned_context(found)
    except BadInput as error:
        raise Forbidden(
            f"what {url} calls its authority cannot be believed: {error.message}",
            remedy="somebody else may answer there: check the address, and on the server what outlive up prints",
        ) from None
    return "".join(pem_of(one) for one in found)
