"""The token of a state directory goes to the server that runs on it, whatever address a command is given."""

from __future__ import annotations

import hashlib
import io
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.attacks.conftest import certificate
from tests.support.command import outlive, up

pytestmark = pytest.mark.component("openssl")


@contextmanager
def listener(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Somebody else's server with TLS: its address, its fingerprint, and the tokens that it was sent."""
    heard: list[str] = []
    made, key = certificate(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.extend(self.headers.get_all("Authorization", ()))
            self.send_response(200 if self.path == "/ca" else 404)
            self.end_headers()
            self.wfile.write(made.read_bytes() if self.path == "/ca" else b"")

        do_POST = do_PATCH = do_DELETE = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.read_text())).hexdigest()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}", pin, heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


COMMANDS = (
    ("get", "hypervisors"),
    ("status",),
    ("failover", "plan", "-k", "1"),
    ("drain", "kvm-1"),
    ("token", "list"),
    ("token", "create", "--role", "admin"),
    ("secret", "set", "rack-1"),
)


def test_no_command_sends_it_to_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    with listener(tmp_path) as (url, pin, heard):
        there, place = ("--server", url, "--fingerprint", pin), ("--state-dir", state)
        with up(state):
            for command in COMMANDS:
                monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"password")))
                told = outlive(*command, *there, *place)
                with monkeypatch.context() as environment:
                    environment.setenv("OUTLIVE_SERVER", url)
                    environment.setenv("OUTLIVE_FINGERPRINT", pin)
                    by_environment = outlive(*command, *place)
                assert heard == [], command
                assert (told.code, by_environment.code) == (7, 7), (command, told.err, by_environment.err)
        # nor once the server has ended, and somebody else may have its address
        assert outlive("get", "hypervisors", *there, *place).code == 7
        assert heard == []
        # who says which token it is to get sends that one
        outlive("get", "hypervisors", *there, "--token", "given", *place)
        assert set(heard) == {"Bearer given"}
