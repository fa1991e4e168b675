"""Real Redis servers that a test may kill, freeze, empty, fill and fail over.

`redis_url` is one server for the whole session, fast and without persistence: tests share it and stay apart by
`redis_prefix`. `own_redis` is a server for one test, whose appends are on the disk before they are answered. They are
skipped where there is no server to start, and never in CI.
"""

import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import pytest
import redis

VOLATILE = ("--appendonly", "no", "--save", "")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
"""With `everysec` even a killed server may have kept back what it acknowledged: no ground for a test to stand on."""

PATIENCE_S = 10.0
CLUSTER_SLOTS = 16384


def binary() -> str | None:
    """Where the server is, or None."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """`with RedisServer(folder) as server` starts a server and waits for it; leaving kills it.

    The port is the same for its whole life, and so is `folder`, where its append-only file lies.
    """

    def __init__(self, folder: Path, *options: str, replica_of: "RedisServer | None" = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = [*(options or DURABLE)]
        if replica_of is not None:
            self._options += ["--replicaof", "127.0.0.1", str(replica_of.port)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A connection to look behind the scenes with. Who asks for it closes it."""
        return redis.Redis(port=self.port, decode_responses=True)

    def start(self) -> None:
        """Start the server, which may be down, and wait until it answers and has read its file."""
        program = binary()
        assert program is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--logfile", "server.log"]
        place += ["--repl-diskless-sync-delay", "0"]  # a replica is not kept waiting for others that might come
        self._process = subprocess.Popen(
            [program, *place, *self._options],
            stdout=subprocess.DEVNULL,
            restore_signals=False,  # a write over the limit of `fill_disk` fails; with Python's default it would kill
        )
        wait_for(self._answers, "the Redis server does not answer")

    def kill(self) -> None:
        """SIGKILL. Nothing for a server that is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, empty: bool = False) -> None:
        """SIGKILL and start again, with the data of its append-only file or with none."""
        self.kill()
        if empty:
            shutil.rmtree(self.folder)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on no file of this server grows: for it the disk is full. Linux only."""
        sizes = [path.stat().st_size for path in self.folder.rglob("*.aof")]
        self._limit_files(max(sizes))

    def free_disk(self) -> None:
        if not self.has_ended():
            self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        assert self._process is not None, "the server is down"
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        assert self._process is not None, "the server is down"
        return self._process.poll() is not None

    def wait_for_link(self) -> None:
        """Wait until this replica has caught up with its master and follows it."""
        with self.client() as client:
            wait_for(lambda: client.info("replication")["master_link_status"] == "up", "the replica has no link")

    def promote(self) -> None:
        """Make a replica a master of what it has, and let it answer at once."""
        with self.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server is down"
        self._process.send_signal(number)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"the Redis server ended: {(self.folder / 'server.log').read_text()}")
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False


@contextmanager
def cluster_of_three(folder: Path, *options: str) -> Iterator[Sequence[RedisServer]]:
    """Three masters that share the slots, without replicas. Any one's `url` is the cluster's."""
    with ExitStack() as stack:
        nodes = [_ClusterNode(folder / f"node{number}", *options) for number in range(3)]
        for node in nodes:
            stack.enter_context(node)
        clients = [stack.enter_context(node.client()) for node in nodes]
        bounds = [CLUSTER_SLOTS * number // len(nodes) for number in range(len(nodes) + 1)]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, node.bus_port)
        wait_for(lambda: all(map(_is_whole, clients)), "the cluster does not come together")
        yield nodes


class _ClusterNode(RedisServer):
    def __init__(self, folder: Path, *options: str) -> None:
        self.bus_port = free_port()
        cluster = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port))
        super().__init__(folder, *(options or VOLATILE), *cluster)


def _is_whole(client: redis.Redis) -> bool:
    info: dict[str, str] = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3"


def wait_for(condition: Callable[[], object], complaint: str) -> None:
    """Look every few milliseconds until `condition()` is true; fail with `complaint` after ten seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{complaint} within {PATIENCE_S:.0f} s")
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_server() -> None:
    """Skip the test where there is no server to start; fail in CI, where there has to be one."""
    if binary() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "neither redis-server nor valkey-server is here"
        )


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_server()
    with RedisServer(tmp_path_factory.mktemp("redis"), *VOLATILE) as server:
        yield server.url


@pytest.fixture
def redis_prefix() -> str:
    """A name of this test's own within the shared server."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    require_server()
    with RedisServer(tmp_path / "redis") as server:
        yield server
