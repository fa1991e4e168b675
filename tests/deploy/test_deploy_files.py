"""The unit, the image and the compose file: what can be told of them without systemd and without a container engine."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from headrace.cli.arguments import parser
from headrace.client.session import HEARTBEAT_S, SILENT_HEARTBEATS
from headrace.config import Config, load
from headrace.http.api import MAX_WAIT_S
from headrace.server import LEAVE_S, LINGER_S
from nginx import CONF, DEPLOY, INSTANCES, require_nginx

UNIT = (DEPLOY / "headrace@.service").read_text(encoding="utf-8")
ENVIRONMENT = (DEPLOY / "headrace.env").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
COMPOSE_INSTANCES = (DEPLOY / "compose" / "instances.conf").read_text(encoding="utf-8")
INSTANCE_SERVICES = ("headrace-1", "headrace-2")
DEFAULTS = Config()


def unit_values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def seconds(text: str, pattern: str) -> list[float]:
    """The times that `pattern` finds in a file, written as `40s`."""
    found = [float(value) for value in re.findall(rf"{pattern}\s+(\d+)s;", text)]
    assert found, pattern
    return found


def assignments(text: str) -> dict[str, str]:
    """NAME=value, one a line, those in comments too."""
    return dict(re.findall(r"^(?:# )?(HEADRACE_\w+)=(.*)$", text, re.MULTILINE))


def location(name: str) -> str:
    """The block of `deploy/nginx.conf` that begins with `location NAME`."""
    return CONF[CONF.index(f"    location {name}") :].split("\n    }\n")[0]


def test_every_timeout_is_longer_than_what_it_waits_for() -> None:
    (silence,) = seconds(CONF, r"\n    proxy_read_timeout")  # the server's own; a location's stands deeper
    assert DEFAULTS.server.heartbeat == HEARTBEAT_S
    assert silence > SILENT_HEARTBEATS * HEARTBEAT_S
    assert seconds(location("= /v1/runs"), "proxy_read_timeout") > [MAX_WAIT_S]
    assert DEFAULTS.run.deadline is not None
    for name in ("~ ^/v1/(responses", "@repeatable"):
        assert seconds(location(name), "proxy_read_timeout") > [DEFAULTS.run.deadline]
    (stop,) = unit_values("TimeoutStopSec")
    assert float(stop) > DEFAULTS.server.drain_grace + LINGER_S + LEAVE_S


def test_nginx_leaves_an_instance_that_refuses_alone_until_that_one_has_closed() -> None:
    (away,) = {float(value) for value in re.findall(r"fail_timeout=(\d+)s", INSTANCES + COMPOSE_INSTANCES)}
    assert away > LINGER_S


def test_nginx_lets_go_of_an_idle_connection_before_the_instance_does() -> None:
    (idle,) = seconds(CONF, r"\bkeepalive_timeout")
    assert idle < uvicorn.Config("app").timeout_keep_alive


def test_nginx_takes_the_bodies_that_the_server_takes() -> None:
    (size,) = re.findall(r"client_max_body_size (\d+)m;", CONF)
    assert int(size) * 1024 * 1024 == DEFAULTS.limits.body_bytes


def test_the_unit_starts_a_command_that_exists_with_settings_that_exist() -> None:
    (start,) = unit_values("ExecStart")
    program, *arguments = shlex.split(start.replace("$HEADRACE_APP", "my_app:app"))
    assert Path(program).name == "headrace"
    assert parser().parse_args(arguments).app == "my_app:app"
    (line,) = unit_values("Environment")
    environment = dict(item.split("=", 1) for item in line.replace("%i", "8321").split())
    loaded = load(environment={**environment, **assignments(ENVIRONMENT)}, file=None)
    assert loaded.config.server.port == 8321
    assert loaded.config.log.path == "/var/lib/headrace/8321"
    assert loaded.config.auth.keys == {"first-tenant": "change-this-key"}
    ports = re.findall(r"server 127\.0\.0\.1:(\d+) ", INSTANCES)
    assert all(f"headrace@{port}" in UNIT for port in ports)


def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "headrace@8321.service"
    unit.write_text(UNIT.replace("/opt/headrace/venv/bin/headrace", sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "headrace" in line] == []


@pytest.mark.parametrize("name", INSTANCE_SERVICES)
def test_an_instance_of_the_compose_file_has_settings_that_exist_and_time_to_leave(name: str) -> None:
    service = COMPOSE["services"][name]
    image = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", DOCKERFILE))
    config = load(environment={**image, **service["environment"]}, file=None).config
    assert config.server.host == "0.0.0.0"
    assert float(service["stop_grace_period"].removesuffix("s")) > config.server.drain_grace + LINGER_S + LEAVE_S


def test_the_settings_that_the_compose_file_proposes_exist() -> None:
    proposed = re.findall(r"# (HEADRACE_\w+): (\S+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert len(proposed) == 2
    load(environment=dict(proposed), file=None)


def test_every_file_that_the_compose_file_mounts_is_there_or_made_by_its_first_lines() -> None:
    mounts = [mount.split(":")[0] for service in COMPOSE["services"].values() for mount in service.get("volumes", [])]
    files = {mount for mount in mounts if mount.startswith("./")}
    missing = {name for name in files if not (DEPLOY / name).is_file() and not name.startswith("./tls/")}
    assert files
    assert not missing
    assert {mount for mount in mounts if not mount.startswith("./")} == set(COMPOSE["volumes"])


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)).split()
    assert "src" in copied
    for name in copied:
        assert (DEPLOY.parent / name).exists()
        assert f"\n!{name}\n" in ignored


def test_nginx_s_instances_are_those_of_the_compose_file() -> None:
    addresses = [COMPOSE["services"][name]["networks"]["default"]["ipv4_address"] for name in INSTANCE_SERVICES]
    assert re.findall(r"^server ([\d.]+):8321 ", COMPOSE_INSTANCES, re.MULTILINE) == addresses


def test_prometheus_asks_an_exporter_that_asks_nginx_where_it_answers() -> None:
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text(encoding="utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": ["nginx:9113"]}]
    exporter = COMPOSE["services"]["nginx-exporter"]
    assert exporter["network_mode"] == "service:nginx"
    assert exporter["command"] == ["--nginx.scrape-uri=http://127.0.0.1:8390/nginx_status"]
    assert "listen 127.0.0.1:8390;" in CONF
    assert "location = /nginx_status" in CONF


def test_nginx_takes_the_compose_file_s_instances(tmp_path: Path) -> None:
    require_nginx()
    upstream = f"upstream headrace {{ zone headrace 64k; {COMPOSE_INSTANCES} }}"
    conf = f"events {{}}\npid {tmp_path}/pid;\nhttp {{ {upstream} }}\n"
    (tmp_path / "nginx.conf").write_text(conf, encoding="utf-8")
    subprocess.run(["nginx", "-t", "-q", "-c", str(tmp_path / "nginx.conf")], check=True, timeout=60)
