"""What these tests share: an isolated cache, real MNIST where it is, and mirrors on loopback."""

import hashlib
import os
import random
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lib.datasets.registry import ROOT, OutsideFile

BOOK_DATA = os.environ.get("BOOK_DATA", "../shared/data")


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """No folder of data, an empty cache, no proxy between the tests and loopback."""
    monkeypatch.delenv("BOOK_DATA", raising=False)
    monkeypatch.delenv("BOOK_OFFLINE", raising=False)
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


@pytest.fixture(scope="session")
def book_data() -> Path:
    """The folder that has the official files."""
    folder = (ROOT / BOOK_DATA).resolve()
    if not (folder / "mnist").is_dir():
        pytest.skip(f"needs the official MNIST files: none in {folder}; set BOOK_DATA")
    return folder


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory) -> Path:
    """One cache for the tests that unpack MNIST, so that it is unpacked once."""
    return tmp_path_factory.mktemp("shared-cache")


@dataclass
class Mirror:
    """A mirror on loopback that behaves as its attributes say, and what it was asked."""

    content: bytes
    announce: int | None = None  # Content-Length, when it is not the truth
    status: int | None = None
    ranges: bool = True
    pause: float = 0.0  # seconds after each block of 16 KiB
    url: str = ""
    asked: list = field(default_factory=list)  # the Range header of each request


def _answer(handler: BaseHTTPRequestHandler, mirror: Mirror) -> None:
    wanted = handler.headers.get("Range")
    mirror.asked.append(wanted)
    if mirror.status:
        handler.send_error(mirror.status)
        return
    start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and mirror.ranges else 0
    if start and start >= len(mirror.content):
        handler.send_error(416)
        return
    body = mirror.content[start:]
    handler.send_response(206 if start else 200)
    if start:
        end = len(mirror.content)
        handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
    handler.send_header("Content-Length", str(mirror.announce or len(body)))
    handler.end_headers()
    for at in range(0, len(body), 1 << 14):
        handler.wfile.write(body[at : at + (1 << 14)])
        time.sleep(mirror.pause)


@contextmanager
def serving(mirror: Mirror):
    """Serve on a free port of loopback while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                _answer(self, mirror)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    mirror.url = f"http://127.0.0.1:{server.server_port}/some-file"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve():
    """``serve(content, **behaviour)`` starts a mirror; all are stopped at the end of the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda content, **how: stack.enter_context(serving(Mirror(content, **how)))


@pytest.fixture
def dead_url() -> str:
    """An address on loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/some-file"


@pytest.fixture
def content() -> bytes:
    """300 kB of noise."""
    return random.Random(1).randbytes(300_000)


@pytest.fixture
def entry(content):
    """``entry(*mirrors)``: the registry's entry for ``content`` at these addresses."""

    def build(*mirrors: str) -> OutsideFile:
        return OutsideFile(
            name="some-file",
            dataset="some",
            says="noise",
            file="some/file.bin",
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            mirrors=mirrors,
        )

    return build


@pytest.fixture
def flip():
    """``flip(path, at)`` changes one bit of a file."""

    def change(path: Path, at: int) -> None:
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(bytes(data))

    return change
