"""nginx in front of the instances, with the configuration that we ship; only what a test cannot have is changed."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from chaos.process import Process, environment, free_port

_SHIPPED = Path(__file__).resolve().parent.parent / "deploy" / "nginx.conf"


def front(instances: Sequence[int], folder: Path) -> Process:
    """`instances` are their ports."""
    port = free_port()
    place = folder / "nginx"
    place.mkdir()
    (place / "instances.conf").write_text(
        "".join(f"server 127.0.0.1:{instance} max_fails=1 fail_timeout=2s;\n" for instance in instances)
    )
    (place / "nginx.conf").write_text(_around(adapted(_SHIPPED.read_text(), place=place, port=port)))
    command = ["nginx", "-p", str(place), "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")]
    return Process("nginx", "front", command, port=port, folder=folder, env=environment())


def adapted(shipped: str, *, place: Path, port: int) -> str:
    """The shipped configuration on one local port: without TLS, the redirect to it, its status page, and without the
    limit on how often one address may ask (all our clients have the same one)."""
    beginning, *servers = re.split(r"^(?=server \{)", shipped, flags=re.MULTILINE)
    (server,) = [server for server in servers if "proxy_pass" in server]
    server = re.sub(r"^ *(?:ssl_\w+|listen \[::\]).*\n", "", server, flags=re.MULTILINE)
    server, listening = re.subn(r"\blisten 443 .*?;", f"listen 127.0.0.1:{port};", server)
    beginning, limits = re.subn(r"rate=\d+r/s", "rate=10000r/s", beginning)
    if not listening or not limits:
        raise ValueError(f"{_SHIPPED.name} no longer has the lines that are changed here")
    text = beginning + server
    return text.replace("/etc/nginx/headrace", str(place)).replace("/var/log/nginx", str(place))


def _around(text: str) -> str:
    user = "user root;" if os.geteuid() == 0 else ""  # its workers must reach a folder that is ours alone
    return f"""\
daemon off;
{user}
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
{text}
}}
"""
