"""Settings of the product as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from outlive.base.errors import BadInput
from outlive.cli.settings import all_sections, host_sections
from outlive.runtime.config import load_settings
from outlive.runtime.validation import struct_in

STRUCTS = list({**all_sections(), **host_sections()}.items())


def maps_in(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all structs within, its own first."""
    found = [path]
    for field in msgspec.structs.fields(struct):
        inner = struct_in(field.type)
        if inner is not None:
            found += maps_in(inner, (*path, field.encode_name))
    return found


@pytest.mark.parametrize(("section", "struct"), STRUCTS)
def test_a_key_that_is_not_known_is_refused_wherever_it_stands(
    section: str, struct: type[msgspec.Struct], tmp_path: Path
) -> None:
    for path in maps_in(struct):
        text = "".join(f"{'  ' * depth}{word}:\n" for depth, word in enumerate((section, *path)))
        (tmp_path / "outlive.yaml").write_text(f"{text}{'  ' * (len(path) + 1)}nonsense: 1\n")
        with pytest.raises(BadInput, match=r"nonsense.*is not known"):
            load_settings({section: struct}, file=tmp_path / "outlive.yaml", environ={}, flags={})
