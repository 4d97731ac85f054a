"""The guard stands apart: nothing of ours is in it, and nothing is imported before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import outlive.guard

MODULES = sorted(Path(outlive.guard.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_guard_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("outlive.guard"), name


def test_outlive_guard_is_dispatched_before_anything_else_of_ours_is_imported() -> None:
    script = (
        "import sys; sys.argv = ['outlive', 'guard', '--help']\n"
        "from outlive.__main__ import main\n"
        "assert main() == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    ours = {name for name in loaded if name.startswith("outlive.") and not name.startswith("outlive.guard")}
    assert ours == {"outlive.__main__"}
    assert not loaded & {"typer", "click", "msgspec", "numpy", "structlog", "asyncio", "threading"}
