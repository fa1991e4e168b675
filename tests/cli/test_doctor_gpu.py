"""What the doctor says of the GPUs of its own machine, from files as Linux and NVIDIA's driver have them."""

from pathlib import Path

import pytest

from headrace.cli.gpu import gpu

DAEMON = b"/usr/bin/nvidia-cuda-mps-control\0-d\0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Thu Apr  3 01:14:19 UTC 2025\n"


def machine(root: Path, **files: str | bytes) -> Path:
    """With one GPU, and these files; a name has `__` for `/`."""
    (root / "proc/driver/nvidia/gpus/0000:65:00.0").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def found(root: Path, **environment: str) -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for finding in gpu(root, environment)]


CARD = {
    "sys__class__infiniband__mlx5_0__ports__1__state": "4: ACTIVE\n",
    "sys__class__infiniband__mlx5_1__ports__1__state": "1: DOWN\n",
    "proc__sys__kernel__osrelease": "5.15.0-1071-nvidia\n",
    "proc__driver__nvidia__version": CLOSED,
    "proc__modules": "nvidia_uvm 1511424 0 - Live 0x0\nmlx5_ib 397312 0 - Live 0x0\n",
}


def test_without_a_gpu_nothing_is_said(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert found(tmp_path) == []


def test_gpus_are_counted_and_a_machine_without_more_is_not_criticised(tmp_path: Path) -> None:
    root = machine(tmp_path)
    (root / "proc/driver/nvidia/gpus/0000:66:00.0").mkdir()
    (count, mps) = found(root)
    assert count == ("ok", "2 NVIDIA GPUs on this machine")
    assert mps[0] == "ok"
    assert mps[1].startswith("MPS does not run")


def test_an_mps_daemon_and_its_pipes_are_found(tmp_path: Path) -> None:
    root = machine(tmp_path, **{"proc__77__cmdline": DAEMON, "tmp__nvidia-mps__control": b""})
    assert found(root)[1] == (
        "ok",
        "MPS runs: several processes compute at once on one GPU (pipes in /tmp/nvidia-mps)",
    )


def test_a_daemon_with_its_pipes_elsewhere_is_noted_unless_they_are_named(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__77__cmdline=DAEMON, run__mps__control=b"")
    level, text = found(root)[1]
    assert level == "note"
    assert "CUDA_MPS_PIPE_DIRECTORY" in text
    named = found(root, CUDA_MPS_PIPE_DIRECTORY="/run/mps")[1]
    assert named == ("ok", "MPS runs: several processes compute at once on one GPU (pipes in /run/mps)")


def test_pipes_without_a_daemon_are_told_as_such(tmp_path: Path) -> None:
    """Its server alone, or a program that only names it, is none."""
    servers = {
        "proc__78__cmdline": b"nvidia-cuda-mps-server\0",
        "proc__79__cmdline": b"grep\0nvidia-cuda-mps-control\0",
    }
    root = machine(tmp_path, run__mps__control=b"", **servers)
    level, text = found(root, CUDA_MPS_PIPE_DIRECTORY="/run/mps")[1]
    assert level == "ok"
    assert text == "MPS: pipes in /run/mps, of a daemon that has ended or is in another container"


@pytest.mark.parametrize(
    ("change", "way"),
    [
        ({"proc__modules": "nvidia_peermem 16384 0 - Live 0x0\n"}, "nvidia_peermem"),
        ({"proc__modules": "nv_peer_mem 16384 0 - Live 0x0\n"}, "nv_peer_mem"),
        ({"proc__driver__nvidia__version": OPEN}, "DMA-BUF"),
        ({"proc__driver__nvidia__version": OPEN, "proc__modules": "nvidia_peermem 16384 0\n"}, "DMA-BUF"),
    ],
)
def test_a_card_that_can_reach_the_gpus_is_told_with_the_way(tmp_path: Path, change: dict[str, str], way: str) -> None:
    told = f"GPUDirect RDMA: mlx5_0, mlx5_1 can reach the memory of the GPUs, by {way}"
    assert found(machine(tmp_path, **{**CARD, **change}))[2:] == [("ok", told)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"proc__driver__nvidia__version": OPEN, "proc__sys__kernel__osrelease": "5.4.0-150-generic\n"},
        {"proc__modules": "nvidia_peermem_of_somebody 16384 0 - Live 0x0\n"},
    ],
)
def test_a_card_that_cannot_reach_the_gpus_is_noted_with_what_to_do(tmp_path: Path, change: dict[str, str]) -> None:
    ((level, text),) = found(machine(tmp_path, **{**CARD, **change}))[2:]
    assert level == "note"
    assert "modprobe nvidia-peermem" in text


def test_a_card_without_an_active_port_is_noted(tmp_path: Path) -> None:
    down = {**CARD, "sys__class__infiniband__mlx5_0__ports__1__state": "2: INIT\n"}
    ((level, text),) = found(machine(tmp_path, **{**down, "proc__driver__nvidia__version": OPEN}))[2:]
    assert (level, text.split(".")[0]) == ("note", "RDMA: no port of mlx5_0, mlx5_1 is active")
