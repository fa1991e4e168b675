"""The nginx of `deploy/`, for a test: its files as they are, but for ports, folders, and what the test shortens."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from harness import until

DEPLOY = Path(__file__).parents[1] / "deploy"
CONF = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
INSTANCES = (DEPLOY / "instances.conf").read_text(encoding="utf-8")

MAIN = """\
daemon off;
worker_processes 2;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
events {{ worker_connections 1024; }}
http {{
    default_type application/octet-stream;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/headrace.conf;
}}
"""


def require_nginx() -> None:
    """Skip the test where nginx or openssl is missing, but never in CI."""
    missing = [name for name in ("nginx", "openssl") if shutil.which(name) is None]
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not installed: {', '.join(missing)}")


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, each another one."""
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def make_certificate(folder: Path) -> None:
    """`tls.crt` and `tls.key` for localhost."""
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(folder / "tls.key")]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *name, *key, "-out", str(folder / "tls.crt")],
        check=True,
        capture_output=True,
    )


def changed(text: str, changes: Mapping[str, str]) -> str:
    """`text` with every change made. What is not there to be changed is an error: the file is no longer what it was."""
    for old, new in changes.items():
        assert old in text, f"deploy/ no longer says {old!r}"
        text = text.replace(old, new)
    return text


def instance_lines(ports: Sequence[int]) -> str:
    """`instances.conf` for other ports: its first line, once for each."""
    (first, *_) = [line for line in INSTANCES.splitlines() if line.startswith("server ")]
    return "".join(f"{first.replace('8321', str(port))}\n" for port in ports)


class Nginx:
    """`async with Nginx(folder, ports) as nginx`: `url` is plain HTTP, `tls_url` as browsers come, `status_url` its
    own count. `changes` are made to `deploy/nginx.conf`, text by text."""

    def __init__(self, folder: Path, instances: Sequence[int], changes: Mapping[str, str] | None = None) -> None:
        require_nginx()
        self.folder = folder
        self._instances = instances
        self._changes = changes or {}
        self._plain, self._tls, self._redirect, self._status = free_ports(4)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._plain}"

    @property
    def tls_url(self) -> str:
        return f"https://localhost:{self._tls}"

    @property
    def redirect_url(self) -> str:
        return f"http://127.0.0.1:{self._redirect}"

    @property
    def status_url(self) -> str:
        return f"http://127.0.0.1:{self._status}/nginx_status"

    @property
    def trust(self) -> ssl.SSLContext:
        """What a client must trust to come to `tls_url`."""
        return ssl.create_default_context(cafile=str(self.folder / "tls.crt"))

    def log(self) -> str:
        """What nginx wrote about the requests so far."""
        return (self.folder / "headrace.log").read_text(encoding="utf-8")

    async def __aenter__(self) -> "Nginx":
        self._write()
        self._process = await asyncio.create_subprocess_exec(
            "nginx", "-p", str(self.folder), "-c", "nginx.conf", stderr=asyncio.subprocess.DEVNULL
        )
        await until(self._listens, deadline=20)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    def reload(self, instances: Sequence[int]) -> None:
        """Take other instances from now on, as `nginx -s reload` does."""
        assert self._process is not None
        (self.folder / "instances.conf").write_text(instance_lines(instances), encoding="utf-8")
        self._process.send_signal(signal.SIGHUP)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, (self.folder / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._plain)) == 0

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        make_certificate(self.folder)
        # The workers of root's nginx would be nobody, who may not enter a test's folder.
        user = f"user {pwd.getpwuid(0).pw_name};" if os.getuid() == 0 else ""
        places = {
            "/etc/nginx/headrace/": f"{self.folder}/",
            "/var/log/nginx/": f"{self.folder}/",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{self._tls} ssl http2; listen 127.0.0.1:{self._plain};",
            "listen [::]:443 ssl http2;": "",
            "listen 80;": f"listen 127.0.0.1:{self._redirect};",
            "listen [::]:80;": "",
            "listen 127.0.0.1:8390;": f"listen 127.0.0.1:{self._status};",
        }
        files = {
            "nginx.conf": MAIN.format(folder=self.folder, user=user),
            "headrace.conf": changed(changed(CONF, self._changes), places),
            "instances.conf": instance_lines(self._instances),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
