"""The server's own authority and certificate, made at the first start and renewed in time.

``ca.pem`` and ``ca.key`` (mode 600) in the state directory are the authority, whose fingerprint clients pin. It is
replaced in two steps: ``rotate`` makes ``ca-next.pem`` and ``ca-next.key`` and publishes both authorities, hosts come
to believe both, and ``finish`` has the next one take the place of the first. ``server.pem`` and ``server.key`` are the
certificate that the server shows; it names the addresses on which it listens, and is made anew when these change or a
third of its time is left. The context takes a new certificate while the server runs (docs/reference/http-api.md#tls).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outlive.api.config import AUTHORITY_FILE
from outlive.base import BadInput, Clock, Refused, as_datetime, get_logger, read_private, rename_whole, write_whole
from outlive.runtime import Periodic
from outlive.store import OWN_UNIT, first_fingerprint

AUTHORITY_KEY_FILE: Final = "ca.key"
CERTIFICATE_FILE: Final = "server.pem"
CERTIFICATE_KEY_FILE: Final = "server.key"
NEXT_FILE: Final = "ca-next.pem"
NEXT_KEY_FILE: Final = "ca-next.key"
AUTHORITY_LASTS: Final = timedelta(days=10 * 365)
AUTHORITY_WARNED_BEFORE: Final = timedelta(days=365)
"""So long before its end the authority is a fault."""
CERTIFICATE_LASTS: Final = timedelta(days=365)
RENEWED_BEFORE: Final = timedelta(days=120)
"""So long before its end the certificate is made anew."""
BEFORE: Final = timedelta(days=1)
"""Certificates count from so long before they are made, for machines whose clocks are behind."""
LOOK_S: Final = 6 * 3600.0
"""How often a running server looks at the age of its certificate."""
NAMES_LIMIT: Final = 100
FILE_BYTES: Final = 64 * 1024

_Key = ec.EllipticCurvePrivateKey
_log = get_logger("api.tls")


class ServerTls:
    """The certificate of one state directory; ``context`` is what the server listens with."""

    def __init__(self, directory: Path, names: Iterable[str], clock: Clock) -> None:
        self._directory = directory
        self._names = tuple(dict.fromkeys(names))[:NAMES_LIMIT]
        self._clock = clock
        self._authority, self._key = self._load_authority()
        following = directory / NEXT_FILE, directory / NEXT_KEY_FILE
        self._next = self._load_pair(*following) if all(path.exists() for path in following) else None
        self.changed: Callable[[], None] = lambda: None
        """Called when another authority takes the place of the present one."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.renew()
        self._load_context()

    @property
    def authority(self) -> str:
        """The authority's certificate in PEM."""
        return self._authority.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def published(self) -> str:
        """What clients may believe: the authority, and the one that is to follow it (PEM)."""
        return self.authority + (_encode_pem(self._next[0]).decode() if self._next is not None else "")

    @property
    def fingerprint(self) -> str:
        """Of the authority."""
        return first_fingerprint(self.authority)

    @property
    def next_fingerprint(self) -> str:
        """Of the authority that is to follow; empty where there is none."""
        return first_fingerprint(_encode_pem(self._next[0]).decode()) if self._next is not None else ""

    def near_end(self) -> str:
        """The day on which the authority ends; empty until ``AUTHORITY_WARNED_BEFORE`` that day."""
        end = self._authority.not_valid_after_utc
        return f"{end:%Y-%m-%d}" if end - as_datetime(self._clock.now()) <= AUTHORITY_WARNED_BEFORE else ""

    def expiry_times(self) -> dict[str, datetime]:
        """When the authority and the server's certificate end, as they are used now."""
        found = self._load_certificate()
        served = {"server": found.not_valid_after_utc} if found is not None else {}
        return {"authority": self._authority.not_valid_after_utc, **served}

    def rotate(self) -> None:
        """Make the authority that is to follow, unless it is there."""
        if self._next is None:
            self._next = self._make_authority(NEXT_FILE, NEXT_KEY_FILE)

    def finish(self) -> None:
        """Have the next authority take the place of the present one; ``Refused`` where there is none.

        The key goes first: a start in between finds that it fits the next certificate, and ends this.
        """
        if self._next is None:
            raise Refused("there is no new authority", remedy="first: outlive tls rotate")
        rename_whole(self._directory / NEXT_KEY_FILE, self._directory / AUTHORITY_KEY_FILE)
        rename_whole(self._directory / NEXT_FILE, self._directory / AUTHORITY_FILE)
        (self._authority, self._key), self._next = self._next, None
        self.renew()
        _log.info("tls.authority_replaced", fingerprint=self.fingerprint)
        self.changed()

    def renew(self) -> bool:
        """Make the certificate anew where it is due; whether it was."""
        now = as_datetime(self._clock.now())
        found = self._load_certificate()
        if found is not None and found.not_valid_after_utc - now > RENEWED_BEFORE and self._fits(found):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue_certificate(key, now)
        write_whole(self._directory / CERTIFICATE_KEY_FILE, _key_text(key))
        write_whole(self._directory / CERTIFICATE_FILE, _encode_pem(certificate) + _encode_pem(self._authority))
        _log.info("tls.certificate_made", names=self._names, until=certificate.not_valid_after_utc.isoformat())
        if found is not None:
            self._load_context()
        return True

    async def run(self) -> None:
        """Renew it in time, until cancelled."""

        async def renew() -> None:
            try:
                self.renew()
            except (OSError, BadInput) as error:
                _log.error("tls.not_renewed", error=str(error))

        await Periodic(renew, LOOK_S, clock=self._clock, wait_first=True).run()

    def _load_context(self) -> None:
        """New connections see the certificate of the files."""
        files = self._directory / CERTIFICATE_FILE, self._directory / CERTIFICATE_KEY_FILE
        try:
            self.context.load_cert_chain(*files)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"cannot be used with {CERTIFICATE_KEY_FILE}: {error}", place=str(files[0]), remedy="delete both"
            ) from None

    def _load_authority(self) -> tuple[x509.Certificate, _Key]:
        paths = self._directory / AUTHORITY_FILE, self._directory / AUTHORITY_KEY_FILE
        following = self._directory / NEXT_FILE, self._directory / NEXT_KEY_FILE
        if following[0].exists() and not following[1].exists():  # ``finish`` was interrupted, or ``rotate``
            if paths[1].exists() and self._is_pair(paths[1], following[0]):
                rename_whole(following[0], paths[0])
            else:
                following[0].unlink()
        used = (self._directory / CERTIFICATE_FILE).exists()
        missing = next((path for path in paths if not path.exists()), None)
        if missing is not None and not used:
            return self._make_authority(AUTHORITY_FILE, AUTHORITY_KEY_FILE)
        if missing is not None:
            again = f"put it back from a backup, or delete {CERTIFICATE_FILE}: then all hosts have to join again"
            raise BadInput("this part of the server's authority is missing", place=str(missing), remedy=again)
        return self._load_pair(*paths)

    def _load_pair(self, file: Path, key_file: Path) -> tuple[x509.Certificate, _Key]:
        try:
            certificate = x509.load_pem_x509_certificate(_read(file))
            key = serialization.load_pem_private_key(read_private(key_file, limit=FILE_BYTES), password=None)
        except ValueError:
            raise BadInput("is no certificate with its key", place=str(file), remedy="put both back") from None
        if not isinstance(key, _Key) or key.public_key() != certificate.public_key():
            raise BadInput(f"does not fit {key_file.name}", place=str(file), remedy="put both back")
        return certificate, key

    def _is_pair(self, key_file: Path, file: Path) -> bool:
        try:
            self._load_pair(file, key_file)
        except BadInput:
            return False
        return True

    def _make_authority(self, file: str, key_file: str) -> tuple[x509.Certificate, _Key]:
        now, key = as_datetime(self._clock.now()), ec.generate_private_key(ec.SECP256R1())
        unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, OWN_UNIT)
        name = x509.Name([unit, x509.NameAttribute(NameOID.COMMON_NAME, f"Outlive {socket.gethostname()}"[:64])])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + AUTHORITY_LASTS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        # The certificate first: once the key is there, neither is ever made again.
        write_whole(self._directory / file, _encode_pem(certificate), mode=0o644)
        write_whole(self._directory / key_file, _key_text(key))
        _log.info("tls.authority_made", fingerprint=first_fingerprint(_encode_pem(certificate).decode()))
        return certificate, key

    def _load_certificate(self) -> x509.Certificate | None:
        path = self._directory / CERTIFICATE_FILE
        if not path.exists() or not (self._directory / CERTIFICATE_KEY_FILE).exists():
            return None
        try:
            return x509.load_pem_x509_certificate(_read(path))
        except ValueError:
            return None

    def _fits(self, certificate: x509.Certificate) -> bool:
        """Whether it is of this authority and has all names."""
        try:
            certificate.verify_directly_issued_by(self._authority)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return False
        return all(name in list(names) for name in _general_names(self._names))

    def _issue_certificate(self, key: _Key, now: datetime) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outlive")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + CERTIFICATE_LASTS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(_general_names(self._names)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def names_of(listen: str, further: Iterable[str] = ()) -> tuple[str, ...]:
    """Names and addresses by which a server may be asked that listens there; ``further`` ones are the operator's."""
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    found = [listen]
    try:
        everywhere = ipaddress.ip_address(listen).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        found = [socket.getfqdn(), *_local_addresses()]
    return tuple(dict.fromkeys(one for one in (*found, *further, *own) if one))


def _local_addresses() -> list[str]:
    """Addresses of this machine, as far as its name and its routes tell; nothing is sent."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(socket.gethostname(), None)]
    for family, there in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asked:
                asked.connect((there, 9))
                found.append(str(asked.getsockname()[0]))
        except OSError:
            continue
    return found


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name.encode("idna").decode()))
    return found


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _encode_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_text(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", place=str(path), remedy="check the file") from None
