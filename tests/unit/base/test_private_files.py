"""Files with secrets are read only where nobody else can read or replace them: one check for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from outlive.api import ApiSettings, ServerTls, ensure_token, read_tokens, tls_context
from outlive.base import BadInput, Forbidden, NotFound, SystemClock, SystemIds, read_private, rename_whole, write_whole
from outlive.base.files import _find_exposure
from outlive.cli import Access
from outlive.drivers import ClusterKey, read_host_token
from outlive.drivers.openstack import check_clouds_file
from outlive.runtime import load_settings

SECRET = "s" * 20


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A section with what may hold a secret, and what may not."""

    database_url: str = ""
    data_sources: dict[str, str] = {}
    scheduler_token: str = ""
    scheduler_token_file: str = ""
    secret: str = ""
    auth: str = ""


def settings(path: Path) -> None:
    load_settings({"x": Section}, file=path, environ={}, flags={})


def _authority(path: Path) -> None:
    ServerTls(path.parent, [], SystemClock())


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tokens": (f"viewer {SECRET}\n", read_tokens),
    "token": (SECRET, lambda path: ensure_token(path, SystemIds())),
    "given-token": (SECRET, lambda path: Access(token=f"@{path}")._choose_token("http://127.0.0.1:1", None)),
    "node.token": (SECRET, read_host_token),
    "cluster-key": (ClusterKey.generate().text, ClusterKey.read),
    "clouds.yaml": ("clouds: {}", lambda path: check_clouds_file(path, holds_password=True)),
    "ca.key": ("", _authority),
    "tls.key": ("", lambda path: tls_context(ApiSettings(tls_certificate=str(path), tls_key=str(path)))),
    "outlive.yaml": ("x: {databaseUrl: 'postgresql://outlive:hunter2@db/sync'}", settings),
}


@pytest.fixture(params=READERS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], object]]:
    """A file with a secret, of mode 600, and who reads it."""
    content, reader = READERS[request.param]
    path = tmp_path / "folder" / request.param
    path.parent.mkdir(mode=0o700)
    if request.param == "ca.key":
        ServerTls(path.parent, [], SystemClock())
    else:
        write_whole(path, content.encode())
    return path, reader


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(
    file: tuple[Path, Callable[[Path], object]], mode: int
) -> None:
    path, reader = file
    path.chmod(mode)
    with pytest.raises(Forbidden) as caught:
        reader(path)
    assert f"chmod 600 {path}" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_file_that_others_may_replace_is_refused(file: tuple[Path, Callable[[Path], object]]) -> None:
    path, reader = file
    path.parent.chmod(0o777)
    with pytest.raises(Forbidden, match="others may replace it"):
        reader(path)
    path.parent.chmod(0o1777)
    try:
        reader(path)
    except BadInput:
        assert path.name == "tls.key"  # it is no key, but it was read


def test_a_link_to_a_secret_is_refused(file: tuple[Path, Callable[[Path], object]]) -> None:
    path, reader = file
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")
    if path.name == "tls.key":  # certbot's are links: what they lead to is looked at
        with pytest.raises(BadInput):
            reader(path)
        return
    with pytest.raises(Forbidden, match="is a link"):
        reader(path)


def test_a_file_of_another_user_is_refused_and_root_reads_that_of_the_folder_s_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_whole(path, SECRET.encode())
    mine, folder = path.stat(), tmp_path.stat()

    def owned(found: os.stat_result, owner: int) -> os.stat_result:
        return os.stat_result([*found[:4], owner, *found[5:10]])

    assert _find_exposure(owned(mine, 1000), owned(folder, 1000), 1000, path) is None
    assert _find_exposure(owned(mine, 0), owned(folder, 0), 1000, path) is None
    assert _find_exposure(owned(mine, 1000), owned(folder, 1000), 0, path) is None
    for owner, of_folder, me in ((1001, 1001, 1000), (1001, 0, 0), (1001, 1000, 0)):
        why = _find_exposure(owned(mine, owner), owned(folder, of_folder), me, path)
        assert why is not None
        assert "belongs to user 1001" in why[0]


def test_a_service_is_told_that_it_has_to_own_its_file(tmp_path: Path) -> None:
    path = tmp_path / "outlive.yaml"
    path.write_text("x")
    path.chmod(0o644)
    mine = path.stat()
    why = _find_exposure(os.stat_result([*mine[:4], 0, *mine[5:10]]), tmp_path.stat(), 998, path)
    assert why is not None
    assert why[1] == f"chown 998 {path}, and chmod 600 {path}"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Forbidden, match="no ordinary file"):
        read_private(tmp_path / "pipe", limit=10)
    with pytest.raises(BadInput, match="is a directory"):
        read_private(tmp_path, limit=10)
    with pytest.raises(NotFound):
        read_private(tmp_path / "none", limit=10)
    write_whole(tmp_path / "large", b"x" * 11)
    with pytest.raises(BadInput, match="larger than 10 bytes"):
        read_private(tmp_path / "large", limit=10)


@pytest.mark.parametrize(
    "text",
    [
        "x: {databaseUrl: 'postgresql://outlive@db/sync'}",
        "x: {databaseUrl: 'sqlite:///var/lib/x.db'}",
        "x: {schedulerTokenFile: /etc/outlive/scheduler.token, secret: keystone, auth: token}",
        "x: {schedulerToken: ''}",
    ],
)
def test_settings_without_a_secret_may_be_read_by_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "outlive.yaml"
    path.write_text(text)
    path.chmod(0o644)
    settings(path)


@pytest.mark.parametrize(
    "text",
    [
        "x: {dataSources: {a: 'mysql://o:p@db/x'}}",
        "x: {databaseUrl: 'postgresql://db/x?user=o&password=p'}",
        f"x: {{schedulerToken: {SECRET}}}",
    ],
)
def test_settings_with_a_secret_may_not(tmp_path: Path, text: str) -> None:
    path = tmp_path / "outlive.yaml"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(Forbidden, match="others may read it"):
        settings(path)
    path.chmod(0o600)
    settings(path)


def test_a_file_gets_another_name_for_good(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"1")
    rename_whole(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
