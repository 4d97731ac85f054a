"""``outlive import node-config``: the configuration of another node daemon, and a dump of its tree, as our files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped]

from outlive.base import BadInput
from outlive.cli.output import write
from outlive.drivers import read_input, write_output
from outlive.inventory import fencing_lines, is_dump, read_network_dump, read_node_config
from outlive.node.fencing import VALIDATE_FENCING
from outlive.resources import decode_as, to_builtins
from outlive.runtime import FILE_BYTES, parse_settings

if TYPE_CHECKING:
    pass

NODE_NAME: Final = "node.yaml"
OBJECTS_NAME: Final = "cluster.yaml"
NETWORKS_NAME: Final = "networks.yaml"
DUMP_BYTES: Final = 64 << 20
FILES_LIMIT: Final = 16
"""Files of one folder that are read."""


def convert_node_config(source: Path, out: Path, host: str) -> None:
    """Write what was read, and say what has no place here; ``host``: whose ``node.yaml``, otherwise this machine's."""
    if not out.is_dir():
        raise BadInput("is no directory", place=str(out), remedy="make it first")
    configs: list[tuple[Path, Mapping[str, Any]]] = []
    dumps: list[tuple[Path, Mapping[str, Any]]] = []
    files = [source]
    if source.is_dir():
        files = sorted(one for one in source.iterdir() if one.suffix in (".yaml", ".yml", ".json") and one.is_file())
        if not files or len(files) > FILES_LIMIT:
            remedy = "give a folder with that daemon's configuration and a dump of its tree"
            raise BadInput(f"has {len(files)} files that could be read", place=str(source), remedy=remedy)
    for file in files:
        document = _read(file)
        (dumps if is_dump(document) else configs).append((file, document))
    if len(configs) > 1 or len(dumps) > 1:
        twice = configs if len(configs) > 1 else dumps
        what = f"has {twice[0][0].name} and {twice[1][0].name}, which are of one kind"
        raise BadInput(what, place=str(source), remedy="leave one configuration and one dump there")
    # everything is read before anything is written
    found = [(file, read_node_config(document, str(file), host or os.uname().nodename)) for file, document in configs]
    networks = [(file, read_network_dump(document, str(file))) for file, document in dumps]
    for _, imported in found:
        result = VALIDATE_FENCING.function(imported.fencing)
        objects = [to_builtins(one) for one in (imported.cluster, *imported.hypervisors)]
        write_output(out / NODE_NAME, _dump_yaml([imported.node]))
        write_output(out / OBJECTS_NAME, _dump_yaml(objects))
        _print(
            [
                f"{out / NODE_NAME}: for {imported.host}; outlive node join adds the server",
                f"{out / OBJECTS_NAME}: {len(imported.hypervisors)} hosts and the timing; outlive apply -f writes it",
                f"the password of {imported.user} is left out: outlive secret set ipmi",
                *(f"doubtful: {one}" for one in (*fencing_lines(result), *imported.warnings)),
                *(f"left out: {one}" for one in imported.dropped),
            ]
        )
    for _, read in networks:
        write_output(out / NETWORKS_NAME, _dump_yaml([to_builtins(one) for one in read.networks]))
        count = len(read.networks)
        head = f"{out / NETWORKS_NAME}: {count} network{'' if count == 1 else 's'}; outlive apply -f writes it"
        _print([head, *(f"left out: {one}" for one in read.dropped)])


def _read(file: Path) -> Mapping[str, Any]:
    raw = read_input(file, limit=DUMP_BYTES)
    if file.suffix == ".json":
        try:
            found: dict[str, Any] = decode_as(dict[str, Any], raw)
        except BadInput as error:
            raise BadInput(error.message, place=str(file), remedy="write an object of paths and their texts") from None
        return found
    if len(raw) > FILE_BYTES:
        remedy = f"at most {FILE_BYTES} bytes; write a dump in JSON"
        raise BadInput(f"has {len(raw)} bytes", place=str(file), remedy=remedy)
    values: dict[str, Any] = parse_settings(raw, str(file))[0]
    return values


def _print(lines: list[str]) -> None:
    for line in lines:
        write(f"{line}\n")


def _dump_yaml(documents: list[Any]) -> bytes:
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)
    return text.encode()
