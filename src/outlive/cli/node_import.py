"""``outlive import node-config``: the configuration of another node daemon as our own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from outlive.base.errors import BadInput
from outlive.cli.output import write
from outlive.drivers.files import read_input, write_output
from outlive.inventory.node_config import Imported, fencing_lines, read_node_config
from outlive.node.fencing.policy import VALIDATE_FENCING
from outlive.resources.codec import to_builtins
from outlive.runtime.config import FILE_BYTES, parse_settings

NODE_NAME = "node.yaml"
OBJECTS_NAME = "cluster.yaml"


def convert(file: Path, out: Path, host: str) -> None:
    """Write both files, and say what has no place in them; ``host``: whose ``node.yaml``, otherwise this machine's."""
    if not out.is_dir():
        raise BadInput("is no directory", place=str(out), remedy="make it first")
    values, _ = parse_settings(read_input(file, limit=FILE_BYTES), str(file))
    found = read_node_config(values, str(file), host or os.uname().nodename)
    result = VALIDATE_FENCING.function(found.fencing)
    write_output(out / NODE_NAME, _yaml([found.node]))
    write_output(out / OBJECTS_NAME, _yaml([to_builtins(one) for one in (found.cluster, *found.hypervisors)]))
    for line in _lines(found, out, fencing_lines(result)):
        write(f"{line}\n")


def _lines(found: Imported, out: Path, timing: list[str]) -> list[str]:
    return [
        f"{out / NODE_NAME}: for {found.host}; outlive node join adds the server",
        f"{out / OBJECTS_NAME}: {len(found.hypervisors)} hosts and the timing; outlive apply -f writes it",
        f"the password of {found.user} is left out: outlive secret set ipmi",
        *(f"doubtful: {one}" for one in (*timing, *found.warnings)),
        *(f"left out: {one}" for one in found.dropped),
    ]


def _yaml(documents: list[Any]) -> bytes:
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)
    return text.encode()
