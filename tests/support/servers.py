"""Servers on loopback for tests of remotes, each started and stopped by the test: S3 (moto), GCS, nginx, a proxy of
faults.

nginx serves http, and https with a certificate that a CA made by the test has signed.

moto answers as S3 does for what is used here, conditional writes included. It differs: a listing is always current, any
credentials are taken, there is no throttling, and a request is as fast as Python. The emulator of GCS differs more: it
knows no conditions, so the last write wins there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

BUCKET = "graphs"


def wait_for(port: int) -> None:
    """Until a server answers on the port."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing answers on port {port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """moto in a process of its own, with a bucket; yields its port."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait(10)


@contextlib.contextmanager
def gcs_server() -> Iterator[str]:
    """An emulator of GCS with the bucket BUCKET; yields what STORAGE_EMULATOR_HOST has to be."""
    from gcp_storage_emulator.server import create_server

    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def use_s3(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """The environment in which s3:// means the server on this port."""
    for name, value in s3_environment(port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def s3_environment(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret-7d1f",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def make_bucket(port: int, name: str) -> str:
    """A new bucket; returns its URL."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()
    return f"s3://{name}/cache"


NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port} {tls}; root {root}; location / {{ {listing} }} }}
}}
"""


@dataclass(frozen=True)
class Web:
    """Where nginx serves, and the file of the CA that its certificate is signed by; None over http."""

    url: str
    ca: Path | None = None


@contextlib.contextmanager
def nginx_server(folder: Path, root: Path, *, listing: bool = True, tls: bool = False) -> Iterator[Web]:
    """nginx that serves `root` read-only. `listing`: whether it lists folders."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not os.path.exists(program):
        pytest.fail("nginx is not installed; ./dev installs it")
    folder.mkdir(parents=True, exist_ok=True)
    # Its worker runs as nobody, who may not pass through pytest's folders.
    for place in (root, *root.parents):
        if place.stat().st_uid == os.geteuid() and str(place).startswith("/tmp/"):
            place.chmod(0o755)
    port, config = free_port(), folder / "nginx.conf"
    ca = folder / "ca.pem" if tls else None
    secure = "" if ca is None else _certificate(folder, ca)
    text = NGINX.format(folder=folder, root=root, port=port, tls=secure, listing="autoindex on;" if listing else "")
    config.write_text(text)
    server = subprocess.Popen([program, "-c", str(config), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield Web(f"{'http' if ca is None else 'https'}://127.0.0.1:{port}", ca)
    finally:
        server.terminate()
        server.wait(10)


def _certificate(folder: Path, ca: Path) -> str:
    """A certificate of 127.0.0.1 in `folder`, whose CA nobody knows but for the file `ca`; nginx's words for it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca))
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(folder / "server.key"))
    made.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    return f"ssl; ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key"


class FaultProxy:
    """Between a client and a server on loopback, a TCP connection at a time. What it does to each is set by attributes.

    fail:     so many requests are answered with this many 503s before any is passed on
    cut:      the answer ends after so many bytes
    silent:   connections are taken and never answered
    delay_secs: before each answer's first byte
    lagging:  a listing that was asked for before is answered as it was then, as by an eventually consistent service
    """

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        self.fail = 0
        self.cut: int | None = None
        self.silent = False
        self.delay_secs = 0.0
        self.lagging = False
        self.requests = 0
        self._listings: dict[bytes, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        wait_for(self.port)
        self.requests = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _serve(self) -> None:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", self.port))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        # All connections are closed while their loop can still do it.
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.05))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection: both sides are told to close."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        if self.silent:
            await asyncio.sleep(600)
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head)
        body = await reader.readexactly(_length(head))
        await asyncio.sleep(self.delay_secs)
        if self.fail > 0:
            self.fail -= 1
            writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        answer = await self._answer(head, body)
        writer.write(answer if self.cut is None else answer[: self.cut])
        await writer.drain()

    async def _answer(self, head: bytes, body: bytes) -> bytes:
        listed = head.partition(b"\r\n")[0] if b"list-type=2" in head else b""
        if self.lagging and listed in self._listings:
            return self._listings[listed]
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            ours.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
            await ours.drain()
            answer = await theirs.read(-1)
        finally:
            ours.close()
        if listed:
            self._listings[listed] = answer
        return answer


def _length(head: bytes) -> int:
    for line in head.decode("latin-1").lower().split("\r\n"):
        if line.startswith("content-length:"):
            return int(line.partition(":")[2])
    return 0
