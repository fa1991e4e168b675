"""What a model needs is told from its header, and what may be had from the machine and its limits."""

import struct
from pathlib import Path

import pytest

from headrace.engine.gguf import Header, read_header
from headrace.engine.llamacpp.memory import need
from headrace.engine.memory import Need, require_fits, room
from headrace.errors import ConfigError

MIB = 1 << 20
LLAMA = Header(
    tensors=272,
    values={
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.vocab_size": 49152,
    },
)
GEMMA = Header(
    tensors=236,
    values={
        "general.architecture": "gemma3",
        "gemma3.block_count": 18,
        "gemma3.embedding_length": 640,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.attention.sliding_window": 512,
        "tokenizer.ggml.tokens": range(262144),
    },
)


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def gguf(*values: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 7, len(values)) + b"".join(values)


HEADER = gguf(
    text("general.architecture") + struct.pack("<I", 8) + text("llama"),
    text("llama.block_count") + struct.pack("<II", 4, 30),
    text("llama.attention.head_count_kv") + struct.pack("<IIQ3i", 9, 5, 3, 4, 2, 4),
    text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2000) + text("día") * 2000,
    text("tokenizer.ggml.scores") + struct.pack("<IIQ2000f", 9, 6, 2000, *range(2000)),
    text("tokenizer.chat_template") + struct.pack("<I", 8) + text("{{ messages }}"),
)


def test_a_header_is_read_without_the_vocabulary_and_the_weights(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(HEADER + b"weights")
    header = read_header(tmp_path / "m.gguf")
    assert (header.tensors, header.architecture, header.vocabulary) == (7, "llama", 2000)
    assert header.number("block_count", 0) == 30
    assert header.per_layer("attention.head_count_kv", 0) == [4, 2, 4]
    assert header.chat_template == "{{ messages }}"


@pytest.mark.parametrize("length", range(4, len(HEADER), 997))
def test_a_header_that_is_cut_off_is_damaged(tmp_path: Path, length: int) -> None:
    (tmp_path / "m.gguf").write_bytes(HEADER[:length])
    with pytest.raises(ConfigError, match="damaged"):
        read_header(tmp_path / "m.gguf")


def test_nonsense_in_a_header_is_damage_and_not_a_huge_allocation(tmp_path: Path) -> None:
    for nonsense in (gguf(struct.pack("<Q", 1 << 60)), gguf(text("a") + struct.pack("<I", 99)), gguf(b"\xff" * 400)):
        (tmp_path / "m.gguf").write_bytes(nonsense)
        with pytest.raises(ConfigError, match="damaged"):
            read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("header", "size", "slots", "context", "kv", "whole", "measured"),
    [
        (LLAMA, 98_362_432, 1, 512, "q8_0", False, 161),
        (LLAMA, 98_362_432, 4, 2048, "q8_0", False, 252),
        (LLAMA, 98_362_432, 4, 8192, "f16", False, 876),
        (LLAMA, 98_362_432, 1, 512, "q4_0", False, 159),
        (GEMMA, 253_113_024, 4, 2048, "f16", False, 421),
        (GEMMA, 253_113_024, 4, 2048, "f16", True, 496),
        (GEMMA, 253_113_024, 4, 2048, "q8_0", False, 385),
    ],
)
def test_the_need_is_what_was_measured(
    header: Header, size: int, slots: int, context: int, kv: str, whole: bool, measured: int
) -> None:
    """Peak memory of the process in MiB, as the kernel had it."""
    wanted = need(header, file_size=size, context=context, slots=slots, kv=kv, whole_window=whole)
    assert wanted.total / MIB == pytest.approx(measured, rel=0.05)


def test_a_slot_takes_a_multiple_of_256_tokens() -> None:
    """16 slots of 257 tokens took 336 MiB, as 16 of 512 did; llama.cpp says so of its slots too."""
    caches = [need(LLAMA, file_size=0, context=tokens, slots=16, kv="f16").cache for tokens in (256, 257, 512)]
    assert caches[1] == caches[2] == 2 * caches[0]


def test_q8_0_takes_little_more_than_half_of_f16() -> None:
    half, full = (need(LLAMA, file_size=0, context=2048, slots=4, kv=kv).cache for kv in ("q8_0", "f16"))
    assert half / full < 0.55


def test_layers_with_different_heads_are_summed() -> None:
    mixed = Header(tensors=1, values={**LLAMA.values, "llama.attention.head_count_kv": [*[3] * 15, *[1] * 15]})
    whole = need(LLAMA, file_size=0, context=2048, slots=1, kv="f16").cache
    assert need(mixed, file_size=0, context=2048, slots=1, kv="f16").cache == pytest.approx(whole * 2 / 3)


def test_what_does_not_fit_says_how_much_is_missing_and_what_to_lower() -> None:
    wanted = Need(weights=100 * MIB, cache=300 * MIB, working=50 * MIB)
    require_fits("m", wanted, 450 * MIB)
    require_fits("m", wanted, None)
    with pytest.raises(ConfigError, match=r"m needs at least 450 MiB .*context 300 MiB.* 449 MiB are free") as caught:
        require_fits("m", wanted, 449 * MIB)
    assert "engine.context_tokens" in (caught.value.hint or "")
    with pytest.raises(ConfigError) as caught:
        require_fits("m", Need(weights=900 * MIB, cache=300 * MIB, working=50 * MIB), 449 * MIB)
    assert "smaller model" in (caught.value.hint or "")


def write(root: Path, name: str, words: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)


def test_the_narrowest_limit_counts_machine_or_any_group_around_us(tmp_path: Path) -> None:
    assert room(tmp_path) is None
    write(tmp_path, "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 2097152 kB\n")
    assert room(tmp_path) == 2048 * MIB
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    for group, limit in (("a/b", "max"), ("a", str(1024 * MIB))):
        write(tmp_path, f"sys/fs/cgroup/{group}/memory.max", limit + "\n")
        write(tmp_path, f"sys/fs/cgroup/{group}/memory.current", f"{600 * MIB}\n")
        write(tmp_path, f"sys/fs/cgroup/{group}/memory.stat", f"anon 5\ninactive_file {100 * MIB}\n")
    assert room(tmp_path) == 524 * MIB, "files that nobody has open are given back"
    write(tmp_path, "sys/fs/cgroup/a/b/memory.max", f"{700 * MIB}\n")
    assert room(tmp_path) == 200 * MIB


def test_groups_of_the_first_version_count_too_and_their_unlimited_is_a_huge_number(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable: 2097152 kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/g\n3:cpuset:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n")
    assert room(tmp_path) == 2048 * MIB
    write(tmp_path, "sys/fs/cgroup/memory/g/memory.limit_in_bytes", f"{512 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/g/memory.usage_in_bytes", f"{500 * MIB}\n")
    assert room(tmp_path) == 12 * MIB
