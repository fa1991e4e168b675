"""The state of an answer on disk, so that the next process reads it instead of the prompt and all that was said.

A file for each conversation that is being answered: the tokens that have been read, and what each layer keeps of them.
It is a cache and nothing else. Whatever does not fit the request that comes is not used, token by token, and a file of
another model has another name.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from headrace.engine.answer.detokenise import Detokeniser
from headrace.engine.stepped.lines import Generate
from headrace.engine.transformers.model.cache import Tensors

_KEPT = 32  # files
_KEPT_S = 600.0  # an answer that nobody has taken up by then never goes on here
_TOKENS = "tokens"


class States:
    """Files in `folder`. `model` tells this model, in these types, from every other."""

    def __init__(self, folder: Path, *, model: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._model = model
        self._make_room()

    def place(self, request: Generate) -> Path:
        """Of the state of an answer to this conversation, however much of it was said. A blank at the end of a prompt
        may have been said."""
        prompt = None if request.prompt is None else request.prompt.rstrip()
        asked = Generate(id=0, messages=request.messages, prompt=prompt, scope=request.scope)
        name = hashlib.sha256(self._model.encode() + b"\0" + msgspec.json.encode(asked)).hexdigest()
        return self._folder / f"{name[:32]}.safetensors"

    def tokens(self, place: Path) -> list[int]:
        """Those whose state is in the file; none where there is no file, or a damaged one."""
        try:
            with safe_open(place, "pt") as file:
                ids: list[int] = file.get_tensor(_TOKENS).tolist()
        except (OSError, SafetensorError):
            return []
        return ids

    def layers(self, place: Path, count: int, *, tokens: int) -> list[Tensors]:
        """What each of `count` layers has kept of the first `tokens`. Raises OSError, SafetensorError."""
        with safe_open(place, "pt") as file:
            layers: list[Tensors] = [{} for _ in range(count)]
            for name in set(file.keys()) - {_TOKENS}:
                layer, what = name.split(".")
                layers[int(layer)][what] = file.get_slice(name)[:, :, :tokens]
        return layers

    def save(self, place: Path, tokens: Sequence[int], layers: Sequence[Tensors]) -> None:
        """All of it or, when the process dies on the way, what was there before. Raises OSError, SafetensorError."""
        tensors = {_TOKENS: torch.tensor(tokens)}
        for number, layer in enumerate(layers):
            tensors |= {f"{number}.{what}": tensor.contiguous() for what, tensor in layer.items()}
        new = place.with_suffix(".new")
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o600))
        save_file(tensors, new)
        new.replace(place)

    def forget(self, place: Path) -> None:
        """Its answer is complete."""
        place.unlink(missing_ok=True)
        self._make_room()

    def _make_room(self) -> None:
        """Delete what nobody will come back for."""
        files = sorted(self._folder.iterdir(), key=_age)
        for number, file in enumerate(files):
            if number >= _KEPT or _age(file) > _KEPT_S:
                file.unlink(missing_ok=True)


def said_before(
    saved: Sequence[int], prompt: Sequence[int], text: str, pieces: Sequence[bytes]
) -> tuple[list[int], str]:
    """The saved tokens that `text`, an answer to `prompt`, begins with, and the rest of it. A text that is made tokens
    again may become others than those that were said, and these are what the model would have gone on from."""
    if list(saved[: len(prompt)]) != list(prompt):
        return [], text
    said, shown, whole = saved[len(prompt) :], "", 0
    detokeniser = Detokeniser(pieces)
    for number, token in enumerate(said, start=1):
        more = detokeniser.feed([token])
        if not text.startswith(more, len(shown)):
            break
        if more:  # else it has not shown yet what this token is
            shown, whole = shown + more, number
    return list(said[:whole]), text[len(shown) :]


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
