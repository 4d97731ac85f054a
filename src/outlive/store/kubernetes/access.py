"""How an API server is reached, and who calls: from a kubeconfig, or with the service account of a pod.

A token in a file is read again when the file has changed (service accounts' tokens are renewed there), an exec plug-in
is run again when what it gave ends, and both once more after the server has refused what was sent. Client certificates
and plug-ins are those of client-go, and so are the options of a command that count more than the files
(``AccessOverrides``); what is not supported is refused by name instead of being left out
(docs/reference/store.md#kubernetes).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import ssl
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base import BadInput, Clock, Forbidden, Unavailable, as_instant, duration_of_flag, get_logger
from outlive.resources import YamlLimits, read_yaml
from outlive.store.rest import RequestCredentials

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG_BYTES: Final = 4 * 1024 * 1024
FILE_BYTES: Final = 1024 * 1024
"""The largest token, certificate or key."""
PLUGIN_S: Final = 30.0
"""How long an exec plug-in may take."""
PLUGIN_BYTES: Final = 1024 * 1024
REQUEST_TIMEOUT_MOST_S: Final = 86_400
EARLY_S: Final = 30.0
"""How long before its end a token of a plug-in is replaced."""
PLUGIN_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_UNSUPPORTED: Final = {
    "username": "use a token or a client certificate",
    "auth-provider": "use an exec plug-in, as kubectl 1.26 and later do",
    "as-user-extra": "use an account of its own",
}

_log = get_logger("store.kubernetes")


class _KubeconfigPart(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A part of a kubeconfig; what is not read of it is left to others."""


class _Cluster(_KubeconfigPart, frozen=True, kw_only=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A program that prints credentials."""

    api_version: str
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    install_hint: str = ""


class _KubeconfigUser(_KubeconfigPart, frozen=True, kw_only=True):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecPlugin | None = None
    act_as: str = msgspec.field(default="", name="as")
    act_as_uid: str = msgspec.field(default="", name="as-uid")
    act_as_groups: tuple[str, ...] = msgspec.field(default=(), name="as-groups")


class _Context(_KubeconfigPart, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""


class AccessOverrides(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Options of a command, by their names at kubectl, that count more than a kubeconfig or a service account.

    An empty one is not given. Files are relative to the folder in which the command runs.
    """

    server: str = ""
    """Takes the place also of ``tls-server-name`` of the kubeconfig, which is of another server."""
    cluster: str = ""
    user: str = ""
    token: str = ""
    """Instead of a token, a file with one, or an exec plug-in."""
    certificate_authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    act_as: str = msgspec.field(default="", name="as")
    act_as_uid: str = msgspec.field(default="", name="as-uid")
    act_as_groups: tuple[str, ...] = msgspec.field(default=(), name="as-group")
    request_timeout: str = ""
    """Of each request but watches: whole seconds, or a duration; ``0``: as long as it takes."""

    @property
    def request_timeout_s(self) -> float | None:
        """Seconds; 0: no limit; ``None``: not given. ``BadInput``."""
        text = self.request_timeout
        if not text:
            return None
        found = float(text) if text.isascii() and text.isdecimal() else duration_of_flag("--request-timeout", text)
        if not 0 <= found < REQUEST_TIMEOUT_MOST_S:
            remedy = f"from 0 to {REQUEST_TIMEOUT_MOST_S} seconds, such as 30s"
            raise BadInput(f"{text[:80]!r} is out of range", place="--request-timeout", remedy=remedy)
        return found

    def change_cluster(self, cluster: _Cluster) -> _Cluster:
        """The cluster by these options."""
        changes: dict[str, Any] = {}
        if self.server:
            changes["server"] = self.server
        if self.server or self.tls_server_name:
            changes["tls_server_name"] = self.tls_server_name
        if self.insecure_skip_tls_verify or self.certificate_authority:
            changes["insecure_skip_tls_verify"] = self.insecure_skip_tls_verify
            changes["certificate_authority"] = _absolute_path(self.certificate_authority)
            changes["certificate_authority_data"] = ""
        return msgspec.structs.replace(cluster, **changes)

    def change_user(self, user: _KubeconfigUser) -> _KubeconfigUser:
        """The user by these options."""
        changes: dict[str, Any] = {}
        if self.token:
            changes |= {"token": self.token, "token_file": "", "exec": None}
        for name in ("client_certificate", "client_key"):
            if file := getattr(self, name):
                changes |= {name: _absolute_path(file), f"{name}_data": ""}
        for name in ("act_as", "act_as_uid", "act_as_groups"):
            if value := getattr(self, name):
                changes[name] = value
        return msgspec.structs.replace(user, **changes)


class Impersonation(NamedTuple):
    """Whom the server is to take the caller for, if it allows that."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()

    def build_headers(self) -> list[tuple[str, str]]:
        """Of a request; each group has a header of its own."""
        found = [("Impersonate-User", self.user), *(("Impersonate-Group", one) for one in self.groups)]
        return [*found, *([("Impersonate-Uid", self.uid)] if self.uid else [])]


class _Granted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a plug-in gives."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    status: _Granted


class ClusterAccess:
    """An API server, and credentials for it that are always the newest."""

    def __init__(
        self,
        server: str,
        *,
        authority: bytes | Path | None = None,
        verify: bool = True,
        token: str = "",
        token_file: Path | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        plugin: ExecPlugin | None = None,
        folder: Path | None = None,
        act_as: Impersonation | None = None,
        tls_server_name: str = "",
        request_timeout_s: float | None = None,
    ) -> None:
        """``authority``: PEM, or the file that has it now; absent: what the system knows. ``certificate``: the client's
        own, and its key (PEM). ``folder``: from where a plug-in is started. ``tls_server_name``: in the server's
        certificate, instead of its host. ``request_timeout_s``: 0: no limit; ``None``: that of all clients."""
        self.server = server
        self.request_timeout_s = request_timeout_s
        self._act_as = act_as
        self._tls_server_name = tls_server_name
        self._authority = authority
        self._verify = verify
        self._token = token
        self._token_file = token_file
        self._certificate = certificate
        self._plugin = plugin
        self._folder = folder
        self._files: dict[Path, tuple[tuple[int, int, int], bytes]] = {}
        """Of each file that may change: what it was when it was read, and its content."""
        self._granted: _Granted | None = None
        self._granting = asyncio.Lock()
        self._tls: tuple[tuple[bytes, tuple[bytes, bytes] | None], ssl.SSLContext] | None = None

    async def request_credentials(self, clock: Clock) -> RequestCredentials:
        """What the next request is sent with. ``Unavailable`` where a file or a plug-in gives nothing now."""
        token, certificate = self._token, self._certificate
        if self._plugin is not None:
            granted = await self._grant(clock)
            token = granted.token
            if granted.client_certificate_data:
                certificate = granted.client_certificate_data.encode(), granted.client_key_data.encode()
        elif self._token_file is not None:
            token = self._read(self._token_file).decode(errors="replace").strip()
        headers = [("Accept", "application/json"), ("User-Agent", "outlive")]
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        if self._act_as is None:
            return RequestCredentials(dict(headers), self._trust(certificate))
        from multidict import CIMultiDict

        return RequestCredentials(CIMultiDict(headers + self._act_as.build_headers()), self._trust(certificate))

    async def renew(self, refused: RequestCredentials, clock: Clock) -> bool:
        """True if others than the refused credentials are there now."""
        self._files.clear()
        if self._granted is not None and self._granted.token in refused.headers.get("Authorization", ""):
            self._granted = None
        now = await self.request_credentials(clock)
        return (now.headers, now.tls) != (refused.headers, refused.tls)

    def _read(self, path: Path) -> bytes:
        """The content of a file, read again if it has changed."""
        try:
            found = path.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_size)
            kept = self._files.get(path)
            if kept is not None and kept[0] == state:
                return kept[1]
            content = _file_bytes(path)
        except OSError as error:
            raise Unavailable(f"cannot be read: {error.strerror}", place=str(path), remedy="is it mounted?") from None
        self._files[path] = state, content
        return content

    def _trust(self, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        authority = self._read(self._authority) if isinstance(self._authority, Path) else self._authority or b""
        known = authority, certificate
        if self._tls is None or self._tls[0] != known:
            self._tls = known, self._tls_context(authority, certificate)
        return self._tls[1]

    def _tls_context(self, authority: bytes, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise BadInput(f"the certificate authority of {self.server} is none: {error}") from None
        if self._tls_server_name:
            context = _NamedContext.make_like(context, self._tls_server_name, authority.decode("ascii"))
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _load_certificate(context, *certificate)
        return context

    async def _grant(self, clock: Clock) -> _Granted:
        async with self._granting:
            granted = self._granted
            if granted is not None:
                end = granted.expiration_timestamp
                if end is None or as_instant(end) - EARLY_S > clock.now():
                    return granted
            assert self._plugin is not None
            self._granted = await run_plugin(self._plugin, self._folder)
            return self._granted


class _NamedContext(ssl.SSLContext):
    """Expects one name in the server's certificate, whatever host the client connects to."""

    name = ""

    @classmethod
    def make_like(cls, like: ssl.SSLContext, name: str, authority: str) -> _NamedContext:
        """With the rules of that context."""
        made = cls(ssl.PROTOCOL_TLS_CLIENT)
        made.name = name
        made.options, made.verify_flags, made.minimum_version = like.options, like.verify_flags, like.minimum_version
        if authority:
            made.load_verify_locations(cadata=authority)
        else:
            made.load_default_certs()
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As a client with that name."""
        return super().wrap_bio(incoming, outgoing, server_side, self.name, session)


async def run_plugin(plugin: ExecPlugin, folder: Path | None = None) -> _Granted:
    """What an exec plug-in gives; ``Unavailable`` names the plug-in and what it said."""
    said = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, "KUBERNETES_EXEC_INFO": msgspec.json.encode(said).decode()}
    env |= {one.name: one.value for one in plugin.env or ()}
    place, hint = f"exec plug-in {plugin.command}", plugin.install_hint.strip() or "run it by hand"
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=folder,
        )
    except OSError as error:
        raise Unavailable(f"cannot be started: {error.strerror}", place=place, remedy=hint) from None
    try:
        async with asyncio.timeout(PLUGIN_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"gave nothing within {PLUGIN_S:g} s", place=place, remedy=hint) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        text = err[-400:].decode(errors="replace").strip()
        raise Unavailable(f"failed with exit code {process.returncode}: {text}", place=place, remedy=hint)
    try:
        given = msgspec.json.decode(out[:PLUGIN_BYTES], type=_ExecCredential)
    except msgspec.DecodeError as error:
        raise Unavailable(f"printed no ExecCredential: {error}", place=place, remedy=hint) from None
    if given.api_version != plugin.api_version:
        why = f"printed {given.api_version}, and was asked for {plugin.api_version}"
        raise Unavailable(why, place=place, remedy="update it, or the kubeconfig")
    if not (given.status.token or given.status.client_certificate_data):
        raise Unavailable("gave neither a token nor a certificate", place=place, remedy=hint)
    return given.status


def cluster_access(
    kubeconfig: str = "",
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    overrides: AccessOverrides = AccessOverrides(),
) -> ClusterAccess:
    """Access by a kubeconfig: the given one, that of ``KUBECONFIG``, the pod's service account, or ``~/.kube/config``;
    where there is none of them, by the overrides alone if they name a server.

    ``BadInput`` names the file and the entry, or the option, that is wrong or not supported; ``Forbidden`` a file that
    is not readable.
    """
    named = kubeconfig or environ.get("KUBECONFIG", "")
    if not named and environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        _check_needs_no_file(context, overrides)
        return pod_access(environ, overrides=overrides)
    paths = [Path(one).expanduser() for one in named.split(os.pathsep) if one] or [Path("~/.kube/config").expanduser()]
    found = [path for path in paths if path.exists()]
    if found:
        return _from_kubeconfigs([_Kubeconfig(path, _read_document(path)) for path in found], context, overrides)
    place = str(paths[0])
    if kubeconfig or not overrides.server:
        raise BadInput("no such kubeconfig", place=place, remedy="give --kubeconfig FILE, or set KUBECONFIG")
    _check_needs_no_file(context, overrides)
    nowhere = _Kubeconfig(Path("--server"), {})
    return _connect(
        overrides.change_cluster(_Cluster()), overrides.change_user(_KubeconfigUser()), nowhere, nowhere, overrides
    )


def pod_access(
    environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT, overrides: AccessOverrides = AccessOverrides()
) -> ClusterAccess:
    """Access of a pod, by its service account."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    name = f"[{host}]" if ":" in host else host
    cluster = overrides.change_cluster(
        _Cluster(server=f"https://{name}:{port}", certificate_authority=str(folder / "ca.crt"))
    )
    place = _Kubeconfig(folder / "token", {})
    user = overrides.change_user(_KubeconfigUser(token_file=place.path.name))
    return _connect(cluster, user, place, place, overrides, later=True)


def _check_needs_no_file(context: str, overrides: AccessOverrides) -> None:
    for name, value in (("--context", context), ("--cluster", overrides.cluster), ("--user", overrides.user)):
        if value:
            why = f"{value[:80]!r} is the name of an entry of a kubeconfig, and there is none"
            raise BadInput(why, place=name, remedy=f"give --kubeconfig FILE, or leave {name} out")


class _Kubeconfig:
    """One file, its paths relative to its folder."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document

    def find_entry(self, plural: str, name: str) -> Any:
        """The named entry of ``clusters``, ``users`` or ``contexts``; ``None``."""
        singular = plural.removesuffix("s")
        for one in self.document.get(plural) or ():
            if isinstance(one, dict) and one.get("name") == name:
                return one.get(singular) or {}
        return None

    def resolve_path(self, name: str) -> Path:
        return self.path.parent / Path(name).expanduser()

    def read_pem(self, data: str, file: str, what: str) -> bytes:
        """A certificate or key that is given, or in a file; empty: neither."""
        try:
            if data:
                return base64.b64decode(data, validate=True)
            return _file_bytes(self.resolve_path(file)) if file else b""
        except (binascii.Error, ValueError) as error:
            raise BadInput(f"{what}-data is no base64: {error}", place=str(self.path)) from None
        except OSError as error:
            place = str(self.resolve_path(file))
            raise BadInput(f"{what} cannot be read: {error.strerror}", place=place, remedy="check the path") from None


def _from_kubeconfigs(files: list[_Kubeconfig], context: str, overrides: AccessOverrides) -> ClusterAccess:
    """Like kubectl: the first file that has an entry of a name says it."""
    place = str(files[0].path)
    chosen = context or next((one for file in files if (one := file.document.get("current-context"))), "")
    used = _Context()
    if chosen:
        used, _ = _find_entry(files, "contexts", str(chosen), _Context, place)
    elif not (overrides.server or overrides.cluster):
        raise BadInput("has no current-context", place=place, remedy="kubectl config use-context NAME, or --context")
    cluster, of_cluster, user, of_user = _Cluster(), files[0], _KubeconfigUser(), files[0]
    if name := overrides.cluster or used.cluster:
        cluster, of_cluster = _find_entry(files, "clusters", name, _Cluster, place)
        if cluster.proxy_url:
            why, remedy = f"proxy-url of cluster {name!r} is not supported", "reach the server directly"
            raise BadInput(why, place=str(of_cluster.path), remedy=remedy)
    if name := overrides.user or used.user:
        user, of_user = _find_entry(files, "users", name, _KubeconfigUser, place)
    return _connect(overrides.change_cluster(cluster), overrides.change_user(user), of_cluster, of_user, overrides)


def _connect(
    cluster: _Cluster,
    user: _KubeconfigUser,
    of_cluster: _Kubeconfig,
    of_user: _Kubeconfig,
    overrides: AccessOverrides,
    *,
    later: bool = False,
) -> ClusterAccess:
    """Access to that cluster as that user. ``later``: files may be there only when they are needed."""
    if user.exec is not None and user.exec.api_version not in PLUGIN_VERSIONS:
        why = f"exec plug-in of {user.exec.api_version}"
        raise BadInput(f"{why} is not supported", place=str(of_user.path), remedy=f"use {PLUGIN_VERSIONS[0]}")
    certificate = of_user.read_pem(user.client_certificate_data, user.client_certificate, "client-certificate")
    key = of_user.read_pem(user.client_key_data, user.client_key, "client-key")
    if bool(certificate) != bool(key):
        raise BadInput("a client certificate needs its key, and a key its certificate", place=str(of_user.path))
    authority: bytes | Path = of_cluster.resolve_path(cluster.certificate_authority)
    if not later or cluster.certificate_authority_data or not cluster.certificate_authority:
        authority = of_cluster.read_pem(
            cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority"
        )
    if cluster.insecure_skip_tls_verify and authority:
        why = "a certificate authority is given, and that no certificate is verified"
        raise BadInput(why, place=str(of_cluster.path), remedy="leave one of them out")
    if not user.act_as and (user.act_as_uid or user.act_as_groups):
        raise BadInput("a group or uid to act as needs a user to act as", place="--as-group", remedy="give --as USER")
    return ClusterAccess(
        _address_of(cluster, bool(authority or certificate)),
        authority=authority or None,
        verify=not cluster.insecure_skip_tls_verify,
        token=user.token,
        token_file=of_user.resolve_path(user.token_file) if user.token_file and not user.token else None,
        certificate=(certificate, key) if certificate else None,
        plugin=user.exec if not user.token else None,
        folder=of_user.path.parent,
        act_as=Impersonation(user.act_as, user.act_as_uid, user.act_as_groups) if user.act_as else None,
        tls_server_name=cluster.tls_server_name,
        request_timeout_s=overrides.request_timeout_s,
    )


def _address_of(cluster: _Cluster, secured: bool) -> str:
    """The address of its server; one without a scheme is of TLS where anything of TLS is given, as at kubectl."""
    server = cluster.server.rstrip("/")
    if "://" not in server:
        server = f"{'https' if secured or cluster.insecure_skip_tls_verify else 'http'}://{server}"
    if not server.startswith(("http://", "https://")) or server.endswith("://"):
        remedy = "such as --server https://10.0.0.1:6443"
        raise BadInput(f"{cluster.server[:200]!r} is no address of an API server", remedy=remedy)
    return server


def _absolute_path(file: str) -> str:
    return str(Path(file).absolute()) if file else ""


def _find_entry(
    files: list[_Kubeconfig], plural: str, name: str, kind: type[Any], place: str
) -> tuple[Any, _Kubeconfig]:
    for file in files:
        found = file.find_entry(plural, name)
        if found is None:
            continue
        for key, remedy in _UNSUPPORTED.items() if plural == "users" else ():
            if found.get(key):
                raise BadInput(f"{key} of user {name!r} is not supported", place=str(file.path), remedy=remedy)
        try:
            return msgspec.convert(found, kind), file
        except msgspec.ValidationError as error:
            raise BadInput(f"{plural.removesuffix('s')} {name!r}: {error}", place=str(file.path)) from None
    raise BadInput(f"has no {plural.removesuffix('s')} {name!r}", place=place, remedy="kubectl config view")


def _read_document(path: Path) -> dict[str, Any]:
    try:
        raw = _file_bytes(path, KUBECONFIG_BYTES)
    except OSError as error:
        raise Forbidden(f"cannot be read: {error.strerror}", place=str(path), remedy="check its permissions") from None
    documents = [one.value for one in read_yaml(raw, str(path), YamlLimits()) if one is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise BadInput("is no kubeconfig", place=str(path), remedy="kubectl config view --raw shows one")
    return documents[0]


def _file_bytes(path: Path, limit: int = FILE_BYTES) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise BadInput(f"has more than {limit} bytes", place=str(path))
    return content


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes them from a file only, which is the caller's alone and gone at once."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (ssl.SSLError, OSError) as error:
            raise BadInput(f"the client certificate does not fit its key: {error}") from None
