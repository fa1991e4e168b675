"""The databases that a rival needs, as processes that may be killed."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from chaos.process import Process, environment, free_port


class NotInstalled(RuntimeError):
    """A program is missing; the message says which, and how to get it."""


def redis(folder: Path) -> Process:
    """Every write is on disk before it is answered: the strongest setting, as Headrace's Redis has it."""
    program = shutil.which("redis-server")
    if program is None:
        raise NotInstalled("redis-server is missing (apt install redis-server)")
    port = free_port()
    flags = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), *flags]
    return Process("redis", "store", command, port=port, folder=folder, env=environment())


class Postgres:
    """A new, empty database cluster; the superuser `chaos` needs no password. `clear` deletes it."""

    def __init__(self, folder: Path) -> None:
        """Raises NotInstalled."""
        self._home = _home(folder)
        as_user = _as_postgres()
        data = self._home / "data"
        initdb = [*as_user, str(_program("initdb")), "-D", str(data), "-U", "chaos", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, timeout=60, cwd="/")
        port = free_port()
        flags = ("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300")
        command = [*as_user, str(_program("postgres")), "-D", str(data), "-p", str(port), *flags]
        self.process = Process("postgres", "store", command, port=port, folder=folder, env=environment())

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://chaos@127.0.0.1:{self.process.port}/postgres"

    def clear(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


def _home(folder: Path) -> Path:
    """Where the server's user may write: Postgres does not run as root, and `folder` may lie where only root can go."""
    if os.geteuid() != 0:
        home = folder / "postgres"
        home.mkdir()
        return home
    home = Path(tempfile.mkdtemp(prefix="chaos-postgres-"))
    try:
        shutil.chown(home, "postgres", "postgres")
    except LookupError:
        raise NotInstalled("Postgres is missing, or its user is (apt install postgresql)") from None
    return home


def _as_postgres() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")


def _program(name: str) -> Path:
    """Debian keeps the server's programs out of the PATH."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    for version in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (version / name).exists():
            return version / name
    raise NotInstalled("Postgres is missing (apt install postgresql; stop the service that Debian starts)")
