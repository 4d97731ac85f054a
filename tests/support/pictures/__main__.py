"""Writes docs/pictures, or those pictures that are named."""

from __future__ import annotations

import logging
import sys

import structlog

from tests.support.pictures import FOLDER, PICTURES


def main(names: list[str]) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if unknown := [one for one in names if one not in PICTURES]:
        print(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        (FOLDER / f"{name}.svg").write_text(PICTURES[name]().render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
