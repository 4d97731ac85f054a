"""What is used of openstacksdk: a cloud of ``clouds.yaml``, its token and its catalogue. Blocks; only for threads."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml  # type: ignore[import-untyped]

from outlive import __version__
from outlive.base import BadInput, Forbidden, NotFound, OutliveError, Unavailable, check_private
from outlive.drivers.bmc.driver import Credential
from outlive.inventory import OpenStackSettings

T = TypeVar("T")

APPLICATION: Final = "v3applicationcredential"
CLOUDS_BYTES: Final = 2**20
"""The largest ``clouds.yaml``."""
SECRET_KEYS: Final = ("password", "application_credential_secret", "token", "passcode")
UNREACHED: Final = "see whether it answers, and docs/how-to/openstack.md"
_INSTALL: Final = "install what it needs: pip install 'outlive[openstack]'"


class Login:
    """A session of keystoneauth for one cloud. ``BadInput`` where the file does not describe it."""

    def __init__(self, settings: OpenStackSettings, credential: Credential | None) -> None:
        try:
            from openstack.config import OpenStackConfig
        except ImportError:
            raise BadInput("openstacksdk is not installed", place="openstack.cloud", remedy=_INSTALL) from None
        path = Path(settings.clouds_file).expanduser()
        self._place = f"cloud {settings.cloud} of {path}"
        entry = _read_cloud(path, settings.cloud, self._place)
        check_clouds_file(path, holds_password=any(as_mapping(entry.get("auth")).get(key) for key in SECRET_KEYS))
        given: dict[str, Any] = {"region_name": settings.region} if settings.region else {}
        if credential is not None:
            given["auth"] = _auth_members(credential, str(entry.get("auth_type", "")))
        named = str(as_mapping(entry.get("auth")).get("username", ""))
        self._user = credential.username if credential is not None else named
        # openstacksdk warns of a library that neither it nor we use here, at every entry that it reads
        warnings.filterwarnings("ignore", message="Support for InfluxDB")
        try:
            config = OpenStackConfig(
                config_files=[str(path)],
                secure_files=[],
                vendor_files=[],
                load_envvars=False,
                app_name="outlive",
                app_version=__version__,
            )
            self._region = config.get_one(cloud=settings.cloud, **given)
            self._region.config["api_timeout"] = float(settings.request_limit)
            self._session = self._region.get_session()
        except Exception as error:
            raise BadInput(
                f"cannot be used: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}",
                place=self._place,
                remedy="see docs/how-to/openstack.md",
            ) from error

    def get_token(self) -> str:
        """The token, a new one where the old one is about to end."""
        return str(self._ask(self._session.get_token, "log in") or "")

    def renew(self, refused: str) -> str:
        """A new token, unless another one than ``refused`` is there already."""
        if self.get_token() == refused:
            self._session.invalidate()
        return self.get_token()

    def get_endpoint(self, service: str, interface: str, version: str) -> str:
        """An address in the catalogue; ``version`` as in ``3``: of an address that names none, that version's."""
        wanted: dict[str, Any] = {"skip_discovery": True}
        if version:
            wanted = {"min_version": version, "max_version": f"{version.partition('.')[0]}.latest"}

        def find_endpoint() -> str:
            from keystoneauth1.exceptions import EndpointNotFound

            url = self._session.get_endpoint(
                service_type=service, interface=interface, region_name=self._region.region_name or None, **wanted
            )
            if not url:
                raise EndpointNotFound(f"the catalogue has no {interface} endpoint of {service}")
            return str(url)

        return self._ask(find_endpoint, f"find the {service} endpoint")

    def tls_verification(self) -> ssl.SSLContext | bool:
        """How certificates are checked, for other clients."""
        verify, certificate = self._region.get_requests_verify_args()
        if verify is False:
            return False
        if not isinstance(verify, str) and not certificate:
            return True
        try:
            context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
            if certificate:
                context.load_cert_chain(*((certificate,) if isinstance(certificate, str) else certificate))
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"its certificates cannot be read: {error}", place=self._place, remedy="see cacert"
            ) from None
        return context

    def _ask(self, ask: Callable[[], T], what: str) -> T:
        from keystoneauth1.exceptions import ClientException

        try:
            return ask()
        except (ClientException, OSError, ValueError, TypeError) as error:
            raise translate_error(error, what, self._place, self._user) from None


def _read_cloud(path: Path, cloud: str, place: str) -> dict[str, Any]:
    """The entry as the file has it."""
    check_clouds_file(path, holds_password=False)
    try:
        document = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput("is not YAML", place=str(path), remedy="see docs/how-to/openstack.md") from None
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", place=str(path), remedy="see its folder") from None
    clouds = as_mapping(as_mapping(document).get("clouds"))
    if not isinstance(clouds.get(cloud), dict):
        known = ", ".join(sorted(map(str, clouds))) or "none"
        raise BadInput("is not there", place=place, remedy=f"the file has: {known}")
    return as_mapping(clouds[cloud])


def _auth_members(credential: Credential, kind: str) -> dict[str, str]:
    """A secret as the members of ``auth``: user and password, or id and secret of an application credential."""
    if kind == APPLICATION:
        return {
            "application_credential_id": credential.username,
            "application_credential_secret": credential.password,
        }
    named = {"username": credential.username} if credential.username else {}
    return {**named, "password": credential.password}


def check_clouds_file(path: Path, *, holds_password: bool) -> None:
    """``NotFound``, ``BadInput`` or ``Forbidden`` for a file of clouds that is not there, is too large, or holds a
    password and can be read by others."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotFound("no such file", place=str(path), remedy="write it, or set openstack.cloudsFile") from None
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", place=str(path), remedy="see its folder") from None
    if found.st_size > CLOUDS_BYTES:
        raise BadInput("is too large", place=str(path), remedy=f"at most {CLOUDS_BYTES} bytes")
    if not holds_password:
        return
    try:
        check_private(path, limit=CLOUDS_BYTES)
    except Forbidden as error:
        remedy = f"{error.remedy}; or keep the password in a secret (openstack.secret)"
        raise Forbidden(error.message, place=str(path), remedy=remedy) from None


def translate_error(error: BaseException, what: str, place: str, user: str) -> OutliveError:
    """An exception of openstacksdk or keystoneauth as ours, in one line."""
    from keystoneauth1 import exceptions as keystone

    said = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    if isinstance(error, keystone.Unauthorized | keystone.Forbidden):
        remedy = "set the password anew: outlive secret set, or the clouds file"
        return Forbidden(f"Keystone refuses {user or 'the credential'}", place=place, remedy=remedy)
    if isinstance(error, keystone.CatalogException):
        return NotFound(f"cannot {what}: {said}", place=place, remedy="see openstack catalog list")
    return Unavailable(f"cannot {what}: {said}", place=place, remedy=UNREACHED)


def as_mapping(values: Any) -> dict[str, Any]:
    """A mapping, or nothing where it is none."""
    return dict(values) if isinstance(values, Mapping) else {}
