"""Who a machine is: its installation and its board."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.drivers import HostSection, LinuxMachine

INSTALLATION = "0123456789abcdef0123456789abcdef"
BOARD = "4C4C4544-0042-4A10-8051-B2C04F4E4332"


def _machine_id(path: Path, board: str | None) -> str:
    (path / "machine-id").write_text(INSTALLATION + "\n")
    (path / "board").unlink(missing_ok=True)
    if board is not None:
        (path / "board").write_text(board + "\n")
    files = {"machine_id_file": str(path / "machine-id"), "board_id_file": str(path / "board")}
    return LinuxMachine(HostSection(state_dir=str(path), **files), "a").machine_id()


def test_machine_is_its_installation_on_its_board(tmp_path: Path) -> None:
    assert _machine_id(tmp_path, BOARD) == f"{INSTALLATION}.4c4c454400424a108051b2c04f4e4332"


@pytest.mark.parametrize("board", [None, "", "Not Specified", "03000200-0400-0500-0006-000700080009", "0" * 32])
def test_board_without_an_identity_is_none(tmp_path: Path, board: str | None) -> None:
    assert _machine_id(tmp_path, board) == INSTALLATION
