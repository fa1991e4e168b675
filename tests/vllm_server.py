"""A real vLLM on the CPU in a process of its own, and what its own metrics say about it."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

STARTS_WITHIN = 300.0  # seconds; one to load its code on a quiet machine
CONTEXT = 2048
SLOTS = 16

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /server_info
    "PYTHONPATH": str(Path(__file__).parent / "vllm_cpu"),  # for its sampler that dies
}
OPTIONS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
    # A random model likes blanks, and JSON allows as many of them as it likes.
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)


class VllmServer:
    """`url` is the base URL of its API."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"
        self._process = process
        self._log = log

    def metric(self, name: str, **labels: str) -> float:
        """One of its Prometheus metrics, such as `num_requests_running`, over all series that have these labels. `name`
        is a regular expression."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if re.match(rf"vllm:({name})[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found if all(label in line for label in wanted))

    async def until(self, name: str, value: float, *, within: float = 60.0) -> None:
        """Wait until a metric has this value. On a busy machine each look takes seconds, in which others work."""
        async with asyncio.timeout(within):
            while await asyncio.to_thread(self.metric, name) != value:
                pass

    async def until_idle(self) -> None:
        """No request is worked on or waits in it."""
        await self.until("num_requests_running|num_requests_waiting", 0)

    def kill(self) -> None:
        """It and its engine, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


@contextlib.contextmanager
def vllm_server(
    model: Path, log: Path, *options: str, environment: dict[str, str] | None = None, wait: bool = True
) -> Iterator[VllmServer]:
    """Serves `model` under the name `tiny` with this interpreter, which must have vLLM. Of an option that is
    given twice, here and in `OPTIONS`, it takes the second. Without `wait` it is not up yet: several start sooner side
    by side."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), *OPTIONS, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = VllmServer(port, process, log)
        if wait:
            server.wait_until_up()
        yield server
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and its engine, which is a process of the same session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
