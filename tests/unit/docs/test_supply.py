"""What is installed: what locks name with hashes, and without them no version with a known hole."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(
    one
    for folder in ("scripts", ".ci", "packaging")
    for one in (ROOT / folder).rglob("*")
    if one.is_file() and one.suffix != ".pyc"
)
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT_HOLES = {
    "aiohttp": (3, 13, 3),
    "cryptography": (46, 0, 5),
    "jinja2": (3, 1, 6),
    "starlette": (0, 49, 1),
}
"""The first versions without a hole that was known when this was written."""


def lines(file: Path) -> list[str]:
    """Of a script or a page, those that go on joined to one."""
    return file.read_text().replace("\\\n", " ").splitlines()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in version.split(".") if one.isdigit())


def bounds() -> dict[str, tuple[int, ...]]:
    """The lower bound of each dependency."""
    found = [re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z]+\])?>=([0-9.]+)", one) for one in PROJECT["dependencies"]]
    assert None not in found, "a dependency without a lower bound"
    return {one[1]: numbers(one[2]) for one in found if one is not None}


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_script_installs_only_what_a_lock_names_with_its_hash(file: Path) -> None:
    for line in lines(file):
        if re.search(r"pip\b.* install\b", line.partition("#")[0]):
            assert "--require-hashes" in line or "--no-deps" in line, line


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_script_writes_under_no_name_that_others_can_guess(file: Path) -> None:
    """Root runs them, and everybody may make a link in /tmp beforehand: ``mktemp``."""
    for line in lines(file):
        assert re.search(r"(/tmp/|\$TMPDIR)", line.partition("#")[0]) is None, line


def test_commands_of_the_manual_install_only_what_a_lock_names_with_its_hash() -> None:
    for page in PAGES:
        for line in lines(page):
            if re.match(r"\S*pip install ", line):
                assert "--require-hashes" in line or "--no-deps" in line, f"{page.name}: {line}"


@pytest.mark.parametrize("name", ["runtime", "build", "dev", "libvirt", "openstack", "checks", "uv"])
def test_every_line_of_a_lock_has_a_version_and_a_hash(name: str) -> None:
    locked = [one for one in lines(ROOT / "requirements" / f"{name}.txt") if one and not one.lstrip().startswith("#")]
    assert locked
    for line in locked:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line


@pytest.mark.parametrize("name", WITHOUT_HOLES)
def test_no_version_with_a_known_hole_is_admitted(name: str) -> None:
    assert bounds()[name] >= WITHOUT_HOLES[name]


def test_what_is_locked_is_admitted() -> None:
    text = (ROOT / "requirements" / "runtime.txt").read_text()
    locked = {one[1].lower(): one[2] for one in re.finditer(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", text, re.M)}
    for name, bound in bounds().items():
        assert numbers(locked[name]) >= bound, name


def test_the_bill_of_materials_is_made_and_compared_with_the_lock_whenever_the_wheel_is_built() -> None:
    script = (ROOT / "scripts" / "check-wheel").read_text()
    assert "cyclonedx-py" in script
    assert "scripts/check-wheel" in (ROOT / "scripts" / "test").read_text()
    assert "cyclonedx-bom==" in (ROOT / "requirements" / "checks.txt").read_text()
