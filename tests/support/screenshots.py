"""Screenshots of the status page and of a report, light and dark, from the example cloud.   scripts/screenshots

They are made by hand after these pages change, and no test compares them: fonts differ between machines.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.support.browser import Browser, browser
from tests.support.command import outlive, up
from tests.support.pictures import FOLDER

WIDTH, HEIGHT = 1100, 760
COLOURS: Final = 256
LARGEST_BYTES: Final = 200_000
WAIT_S: Final = 120.0
LOOK_S: Final = 0.2
HEAD: Final = b"\x89PNG\r\n\x1a\n"
BYTES_OF_PIXEL: Final = {2: 3, 6: 4}
"""By the colour type of a PNG of eight bits."""
Pixels = npt.NDArray[np.uint8]


def read_png(raw: bytes) -> Pixels:
    """Height × width × RGB of a PNG as Chromium writes it: eight bits, not interlaced."""
    chunks, at = list[tuple[bytes, bytes]](), len(HEAD)
    while at < len(raw):
        (length,) = struct.unpack_from(">I", raw, at)
        chunks.append((raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]))
        at += 12 + length
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, interlaced) == (8, 0)
    step = BYTES_OF_PIXEL[kind]
    data = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    rows, above = np.empty((height, width * step), np.uint8), np.zeros(width * step, np.uint8)
    for y in range(height):
        start = y * (width * step + 1)
        above = _unfilter(data[start], np.frombuffer(data, np.uint8, width * step, start + 1), above, step)
        rows[y] = above
    return rows.reshape(height, width, step)[:, :, :3]


def _unfilter(kind: int, row: Pixels, above: Pixels, step: int) -> Pixels:
    if kind == 0:
        return row
    if kind == 2:
        return row + above
    line, up_line, out = row.astype(int).tolist(), above.astype(int).tolist(), [0] * len(row)
    for at, value in enumerate(line):
        left, over = (out[at - step], up_line[at - step]) if at >= step else (0, 0)
        top = up_line[at]
        guess = {1: left, 3: (left + top) // 2}.get(kind)
        out[at] = (value + (guess if guess is not None else _paeth(left, top, over))) & 0xFF
    return np.array(out, np.uint8)


def _paeth(left: int, top: int, over: int) -> int:
    guess = left + top - over
    by_left, by_top, by_over = abs(guess - left), abs(guess - top), abs(guess - over)
    if by_left <= by_top and by_left <= by_over:
        return left
    return top if by_top <= by_over else over


def write_png(pixels: Pixels) -> bytes:
    """A PNG with a palette: the most frequent colours, and for any other the nearest of them."""
    height, width, _ = pixels.shape
    flat = pixels.reshape(-1, 3)
    colours, which, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:COLOURS]
    palette = colours[most]
    distances = ((colours[:, None, :].astype(np.int32) - palette[None, :, :].astype(np.int32)) ** 2).sum(axis=2)
    indexes = distances.argmin(axis=1).astype(np.uint8)[which.reshape(-1)].reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), indexes]).tobytes()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    return HEAD + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts
    )


def _await(tab: Browser, expression: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not tab.evaluate(expression):
        if time.monotonic() > deadline:
            raise SystemExit(f"the page never showed: {expression}")
        time.sleep(LOOK_S)


def _keep(tab: Browser, name: str) -> None:
    raw = write_png(read_png(tab.photograph()))
    if len(raw) > LARGEST_BYTES:
        raise SystemExit(f"{name}.png has {len(raw)} bytes, more than {LARGEST_BYTES}: show less of the page")
    (FOLDER / f"{name}.png").write_bytes(raw)


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        state = folder / "state"
        with up(state, "--example") as server, browser(folder / "profile") as tab:
            token = (state / "token").read_text().strip()
            deadline = time.monotonic() + WAIT_S
            while "600 covered" not in outlive("status", "--state-dir", state).out and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            for shade in ("light", "dark"):
                tab.open("about:blank", width=WIDTH)
                tab.open(f"{server.url}/#token={token}", width=WIDTH, height=HEIGHT, dark=shade == "dark")
                _await(tab, "!document.getElementById('cluster').hidden")
                _keep(tab, f"status-page-{shade}")
            report = folder / "coverage.html"
            outlive("failover", "coverage", "--state-dir", state, "--html", report)
            for shade in ("light", "dark"):
                tab.open(report.as_uri(), width=WIDTH, height=HEIGHT, dark=shade == "dark")
                _keep(tab, f"report-{shade}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
