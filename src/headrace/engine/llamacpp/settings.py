"""How the embedded engine is set up, and what can be told before its process is started."""

import hashlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

from headrace import __version__
from headrace.engine.gguf import Header, read_header
from headrace.engine.llamacpp.embeddings import generates, longest_text, pooling_of
from headrace.engine.llamacpp.memory import need, need_to_embed
from headrace.engine.llamacpp.parameters import LlamaCppParameters, fingerprint
from headrace.engine.memory import Need, require_fits, room
from headrace.engine.models import cache_dir
from headrace.errors import ConfigError

Kv = Literal["f16", "q8_0", "q4_0"]

_WORDS_APART = 128  # tokens by which llama.cpp lets two vocabularies differ
_LEAST_BATCH = 8  # tokens; smaller ones take longer for a prompt


class LlamaCppSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As `LlamaCppEngine` has them."""

    model_path: Path
    model: str
    threads: int
    context: int
    slots: int
    kv: Kv
    batch: int | None
    embeddings: bool
    ngram: bool
    draft: Path | None
    snapshot_tokens: int | None
    home: Path | None
    linger: float

    def require_parts(self) -> None:
        """Raises ConfigError: what is missing, and how to get it."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError(
                "The embedded engine is not installed.", hint="Install it: pip install 'headrace[local]'."
            )
        for path in self._files:
            if not path.is_file():
                hint = "Install one: headrace models install smollm2."
                raise ConfigError(f"There is no model file at {path}.", hint=hint)

    def require_draft(self, header: Header) -> None:
        """Raises ConfigError: the draft model has not the words of the model with this header, by their kind and
        number. llama.cpp compares the words themselves too; but it says what it finds in its log only, and then
        guesses nothing."""
        if self.draft is None:
            return
        own, other = _words(header), _words(read_header(self.draft))
        if own[0] != other[0] or abs(own[1] - other[1]) > _WORDS_APART:
            raise ConfigError(
                f"{self.draft.name} cannot guess for {self.model}: its vocabulary is another one "
                f"({other[1]:,} tokens of the kind {other[0]}, not {own[1]:,} of {own[0]}).",
                hint="Take a smaller model of the same family as engine.draft_model, or leave it out.",
            )

    def require_memory(self) -> None:
        """Raises ConfigError: a file is no model, or it does not fit."""
        header = self.header()
        wanted = Need(weights=self.model_path.stat().st_size, cache=0, working=0)
        if generates(header):
            wanted = self._need_to_generate()
        if self.embeds(header):
            wanted += need_to_embed(header, longest=longest_text(header, self.context), pooling=pooling_of(header))
        require_fits(self.model, wanted, room())

    def _need_to_generate(self) -> Need:
        wanted = Need(weights=0, cache=0, working=0)
        for path in self._files:
            wanted += need(
                read_header(path),
                file_size=path.stat().st_size,
                context=self.context,
                slots=self.slots,
                kv=self.kv,
                whole_window=self.snapshot_tokens is not None,
            )
        return wanted

    def header(self) -> Header:
        """Raises ConfigError."""
        return read_header(self.model_path)

    def embeds(self, header: Header) -> bool:
        """Whether it was asked to, or can do nothing else."""
        return self.embeddings or not generates(header)

    def batch_tokens(self) -> int:
        """What a step computes: a token of each answer, and half as many again of the prompts that are read. A CPU
        computes one token after the other, and towards the end of a long prompt each of its tokens takes three to four
        times as long as one of a short answer. So this is what keeps the gaps of the others within three times theirs.

        It follows the slots and not a calibration at the start: a process that comes after one that died must say what
        that would have said, and the width of its steps moves the last digits.
        """
        return self.batch or max(_LEAST_BATCH, self.slots + self.slots // 2)

    def parameters(self, snapshots: Path | None) -> LlamaCppParameters:
        """Of the process. Reads the ends of the model's file. Raises ConfigError."""
        header = self.header()
        self.require_draft(header)
        embeds = self.embeds(header)
        return LlamaCppParameters(
            model_path=str(self.model_path.resolve()),
            model_id=fingerprint(self.model_path),
            alias=self.model,
            threads=self.threads,
            context=self.context,
            slots=self.slots,
            kv=self.kv,
            batch=self.batch_tokens(),
            generates=generates(header),
            pooling=pooling_of(header) if embeds else None,
            longest_text=longest_text(header, self.context) if embeds else 0,
            ngram=self.ngram,
            draft_path=str(self.draft.resolve()) if self.draft is not None else None,
            snapshots=f"{snapshots}/" if snapshots is not None else None,
            linger=self.linger if self.home is not None else 0.0,
            build=_build(),
        )

    def snapshot_folder(self) -> Path | None:
        """For this model, this build and this context. None if none are wanted, and for a model that thinks: nobody
        goes on with half a thought. Reads the model's header. Raises ConfigError."""
        header = self.header() if self.snapshot_tokens is not None else None
        if header is None or "think" in header.chat_template or not generates(header):
            return None
        kind = f"{fingerprint(self.model_path)} {_build()} {self.context} {self.kv}"
        home = self.home or cache_dir() / "llamacpp"
        folder = home / "snapshots" / hashlib.sha256(kind.encode()).hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            hint = "Set HEADRACE_CACHE to another directory, or leave engine.snapshot_tokens out."
            raise ConfigError(f"States cannot be saved in {folder}: {exc}", hint=hint) from exc
        return folder

    @property
    def _files(self) -> list[Path]:
        return [self.model_path, *([self.draft] if self.draft is not None else [])]


def _words(header: Header) -> tuple[str, int]:
    """The kind of a model's vocabulary and how many tokens it has."""
    return str(header.values.get("tokenizer.ggml.model")), header.vocabulary


def _build() -> str:
    """Our version and the engine's: processes of another are not ours."""
    try:
        return f"{__version__} {version('xllamacpp')}"
    except PackageNotFoundError:
        return __version__
