"""The databases that a rival needs, as processes that may be killed."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from chaos.process import Process, environment, free_port


def missing() -> str | None:
    """What is not installed here, and how to get it."""
    if shutil.which("redis-server") is None:
        return "redis-server is missing (apt install redis-server)"
    programs = (_program("postgres"), _program("initdb"))
    if not all(map(shutil.which, programs)) or (_is_root() and not _has_postgres_user()):
        return "Postgres is missing, or its user is (apt install postgresql; stop the service that Debian starts)"
    return None


def redis(folder: Path) -> Process:
    """Every write is on disk before it is answered: the strongest setting, as Headrace's Redis has it."""
    port = free_port()
    flags = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), *flags]
    return Process("redis", "store", command, port=port, folder=folder, env=environment())


class Postgres:
    """A new, empty database cluster; the superuser `chaos` needs no password. `clear` deletes it."""

    def __init__(self, folder: Path) -> None:
        self._home = _home(folder)
        as_user = _as_postgres()
        data = self._home / "data"
        initdb = [*as_user, _program("initdb"), "-D", str(data), "-U", "chaos", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, timeout=60, cwd="/")
        port = free_port()
        flags = ("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300")
        command = [*as_user, _program("postgres"), "-D", str(data), "-p", str(port), *flags]
        self.process = Process("postgres", "store", command, port=port, folder=folder, env=environment())

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://chaos@127.0.0.1:{self.process.port}/postgres"

    def clear(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


def _home(folder: Path) -> Path:
    """Where the server's user may write: Postgres does not run as root, and `folder` may lie where only root can go."""
    if not _is_root():
        home = folder / "postgres"
        home.mkdir()
        return home
    home = Path(tempfile.mkdtemp(prefix="chaos-postgres-"))
    shutil.chown(home, "postgres", "postgres")
    return home


def _as_postgres() -> tuple[str, ...]:
    return ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups") if _is_root() else ()


def _is_root() -> bool:
    return os.geteuid() == 0


def _has_postgres_user() -> bool:
    return any(user.pw_name == "postgres" for user in pwd.getpwall())


def _program(name: str) -> str:
    """Debian keeps the server's programs out of the PATH. The bare name where there is none."""
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, kept))) or name
