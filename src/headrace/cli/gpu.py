"""`headrace doctor` on a machine with NVIDIA GPUs: may several processes compute at once on one of them (MPS), and can
other machines reach their memory past the CPUs (GPUDirect RDMA). Linux says both in files; nothing is started or asked.

MPS: https://docs.nvidia.com/deploy/mps/ (the control daemon, its pipe directory)
RDMA: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html (DMA-BUF or peermem)
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.cli.finding import Finding

PIPES = "/tmp/nvidia-mps"
_DAEMON = "nvidia-cuda-mps-control"
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF_SINCE = (5, 12)
"""The Linux from which on a network card can be given a GPU's memory as a DMA-BUF."""


def gpu(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Nothing where no NVIDIA GPU is. `root` is where the files of the system are."""
    count = len(_names(root / "proc/driver/nvidia/gpus"))
    if not count:
        return
    yield Finding("ok", f"{count} NVIDIA GPU{'s' if count > 1 else ''} on this machine")
    yield _mps(root, environment.get("CUDA_MPS_PIPE_DIRECTORY") or PIPES)
    cards = _names(root / "sys/class/infiniband")
    if cards:
        yield from _rdma(root, cards)


def _mps(root: Path, pipes: str) -> Finding:
    runs = any(_is_daemon(process) for process in (root / "proc").glob("[0-9]*/cmdline"))
    listens = (root / pipes.lstrip("/") / "control").exists()
    if runs and not listens:
        hint = "Programs find it with the CUDA_MPS_PIPE_DIRECTORY that it was started with."
        return Finding("note", f"The MPS daemon runs, but not with its pipes in {pipes}. {hint}")
    if runs:
        return Finding("ok", f"MPS runs: several processes compute at once on one GPU (pipes in {pipes})")
    if listens:
        return Finding("ok", f"MPS: pipes in {pipes}, of a daemon that has ended or is in another container")
    return Finding("ok", "MPS does not run: processes that share a GPU take turns, one alone needs none")


def _is_daemon(process: Path) -> bool:
    try:
        return Path(process.read_bytes().split(b"\0")[0].decode("utf-8", "replace")).name == _DAEMON
    except OSError:  # it has ended meanwhile
        return False


def _rdma(root: Path, cards: list[str]) -> Iterator[Finding]:
    named = ", ".join(cards)
    ports = list((root / "sys/class/infiniband").glob("*/ports/*/state"))
    if not any("ACTIVE" in _read(port) for port in ports):
        yield Finding("note", f"RDMA: no port of {named} is active. Look at its cable, its switch, its subnet manager.")
        return
    if way := _way_to_the_memory(root):
        yield Finding("ok", f"GPUDirect RDMA: {named} can reach the memory of the GPUs, by {way}")
        return
    hint = "Take NVIDIA's open kernel modules with Linux 5.12 or newer, or: modprobe nvidia-peermem"
    text = f"{named} cannot reach the memory of the GPUs, so the CPUs carry what goes between machines."
    yield Finding("note", f"{text} {hint}")


def _way_to_the_memory(root: Path) -> str | None:
    loaded = {line.split(" ")[0] for line in _read(root / "proc/modules").splitlines()}
    if "Open Kernel Module" in _read(root / "proc/driver/nvidia/version") and _linux(root) >= _DMA_BUF_SINCE:
        return "DMA-BUF"
    return next((module for module in _PEERMEM if module in loaded), None)


def _linux(root: Path) -> tuple[int, ...]:
    """Of 5.15.0-1071-nvidia: 5, 15."""
    return tuple(int(part) for part in re.findall(r"\d+", _read(root / "proc/sys/kernel/osrelease"))[:2])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
