"""What makes an answer in the process of transformers: tokens, their choice, the cache, and what is saved of it."""

import math
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, PreTrainedTokenizerFast, Qwen3Config

from headrace.engine.stepped.lines import Generate, Sampling
from headrace.engine.transformers.model.cache import FullLayer, Int8Layer, sees_everything
from headrace.engine.transformers.model.choosing import Chooser
from headrace.engine.transformers.model.loading import quantised
from headrace.engine.transformers.model.states import States, said_before
from headrace.engine.transformers.model.tokenizer import TransformersTokenizer
from headrace.engine.transformers.parameters import Weights

SCORES = torch.tensor([2.0, 1.0, 0.0, -1.0])


def chooser(prompt: tuple[int, ...] = (), **asked: Any) -> Chooser:
    return Chooser(Sampling(**asked), defaults=SimpleNamespace(), prompt=prompt, vocabulary=4, shape=None)


def drawn(times: int = 400, **asked: Any) -> Counter[int | None]:
    choose = chooser(seed=1, **asked)
    return Counter(choose(SCORES) for _ in range(times))


# How the weights are loaded


def linear_weights(model: Path, weights: Weights) -> list[Any]:
    library = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32, **quantised(weights))
    named = library.model.named_modules()  # all but the head, which stays as it is
    layers = [part for _, part in named if isinstance(part, torch.nn.Linear)]
    assert layers
    return [layer.weight for layer in layers]


def test_nf4_weights_have_quantised_constants_too(tiny: Path) -> None:
    for weight in linear_weights(tiny, "nf4"):
        assert weight.dtype == torch.uint8, "two of four bits in a byte"
        assert weight.quant_state.quant_type == "nf4"
        assert weight.quant_state.nested


def test_int8_weights_are_held_in_a_byte_each(tiny: Path) -> None:
    for weight in linear_weights(tiny, "int8"):
        inner = [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]
        assert torch.int8 in {tensor.dtype for tensor in inner}


# How a token is chosen


def test_nothing_asked_of_a_model_that_draws_no_lots_is_greedy() -> None:
    choose = chooser()
    assert {choose(SCORES) for _ in range(50)} == {0}


def test_a_model_that_draws_lots_by_itself_does_so_unless_told_otherwise() -> None:
    warm = SimpleNamespace(do_sample=True, temperature=5.0)
    by_itself = Chooser(Sampling(seed=1), defaults=warm, prompt=(), vocabulary=4, shape=None)
    told = Chooser(Sampling(temperature=0.0), defaults=warm, prompt=(), vocabulary=4, shape=None)
    assert len({by_itself(SCORES) for _ in range(100)}) == 4
    assert {told(SCORES) for _ in range(50)} == {0}


def test_chance_follows_the_scores_and_the_temperature() -> None:
    counts = drawn(4000, temperature=0.5)
    weights = [math.exp(score / 0.5) for score in SCORES.tolist()]
    for token, weight in enumerate(weights):
        assert counts[token] / 4000 == pytest.approx(weight / sum(weights), abs=0.03)


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9, 1e300])
def test_no_temperature_is_too_extreme(temperature: float) -> None:
    choose = chooser(seed=1, temperature=temperature)
    forbidden = torch.tensor([2.0, -math.inf, 0.0, -math.inf])
    assert {choose(forbidden) for _ in range(50)} == ({0} if temperature < 1 else {0, 2})


def test_scores_that_are_no_numbers_end_the_answer() -> None:
    assert chooser()(torch.full((4,), math.nan)) is None


def test_top_k_top_p_and_min_p_leave_only_likely_tokens() -> None:
    assert set(drawn(temperature=3.0, top_k=2)) == {0, 1}
    assert set(drawn(temperature=3.0, top_k=0)) == {0, 1, 2, 3}
    assert set(drawn(temperature=1.0, top_p=0.6)) == {0}
    assert set(drawn(temperature=1.0, top_p=0.7)) == {0, 1}
    assert set(drawn(temperature=1.0, top_p=0.0)) == {0}
    assert set(drawn(temperature=1.0, min_p=0.2)) == {0, 1}


def test_penalties_count_what_was_said_and_a_repetition_the_prompt_too() -> None:
    presence, frequency = chooser(presence_penalty=1.5), chooser(frequency_penalty=0.6)
    assert [presence(SCORES) for _ in range(3)] == [0, 1, 0]
    assert [frequency(SCORES) for _ in range(4)] == [0, 0, 1, 0]
    assert chooser((0,), repetition_penalty=3.0)(SCORES) == 1
    assert chooser((0,), presence_penalty=3.0)(SCORES) == 0


def test_the_scores_of_the_model_are_left_as_they_are() -> None:
    before = SCORES.clone()
    chooser((0,), repetition_penalty=2.0, logit_bias={1: 5.0}, temperature=0.7, top_p=0.5)(SCORES)
    assert torch.equal(SCORES, before)


# The cache


def states(tokens: int) -> torch.Tensor:
    return torch.randn(1, 2, tokens, 16, generator=torch.Generator().manual_seed(tokens))


def test_a_cache_of_8_bits_is_the_same_however_the_text_came_in() -> None:
    """Else an answer that goes on from its text would be another one than the uncut one."""
    keys, values = states(40), -states(40)
    at_once, in_parts = Int8Layer(), Int8Layer()
    whole = at_once.update(keys, values)
    for start, end in ((0, 7), (7, 8), (8, 40)):
        parts = in_parts.update(keys[:, :, start:end], values[:, :, start:end])
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
    assert in_parts.get_seq_length() == 40
    half_a_step = keys.abs().amax(-1, keepdim=True) / 127 / 2
    assert bool(((whole[0] - keys).abs() <= half_a_step * 1.01).all())


def test_a_model_that_forgets_is_not_taken_for_one_that_sees_everything() -> None:
    assert sees_everything(Qwen3Config(num_hidden_layers=2))
    assert not sees_everything(MistralConfig(num_hidden_layers=2, sliding_window=16))


def test_a_cache_of_8_bits_takes_a_third_of_the_memory_or_less() -> None:
    layer = Int8Layer()
    layer.update(states(100), states(100))
    assert sum(tensor.nbytes for tensor in layer.state().values()) < 2 * states(100).nbytes / 3


@pytest.mark.parametrize("kind", [FullLayer, Int8Layer])
def test_a_restored_layer_goes_on_as_the_one_that_was_saved(kind: type[FullLayer | Int8Layer], tmp_path: Path) -> None:
    saved, restored = kind(), kind()
    saved.update(states(9), -states(9))
    store = States(tmp_path, model="m")
    place = store.place(Generate(id=1, prompt="p"))
    store.save(place, range(9), [saved.state()])
    [layer] = store.layers(place, 1, tokens=9)
    restored.restore(layer)
    assert restored.get_seq_length() == 9
    one, other = saved.update(states(1), states(1)), restored.update(states(1), states(1))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


# What is saved


def test_a_state_belongs_to_a_conversation_and_a_model_however_much_was_said(tmp_path: Path) -> None:
    store = States(tmp_path, model="m")
    place = store.place(Generate(id=1, prompt="p"))
    assert store.place(Generate(id=2, prompt="p ", continued="so far", max_tokens=3, stop=("s",))) == place
    assert store.place(Generate(id=1, prompt="q")) != place
    assert store.place(Generate(id=1, prompt="p", scope="somebody")) != place
    assert States(tmp_path, model="n").place(Generate(id=1, prompt="p")) != place


def test_a_state_that_is_missing_or_torn_holds_no_tokens(tmp_path: Path) -> None:
    store = States(tmp_path, model="m")
    place = store.place(Generate(id=1, prompt="p"))
    assert store.tokens(place) == []
    store.save(place, [3, 1, 4], [])
    assert store.tokens(place) == [3, 1, 4]
    place.write_bytes(place.read_bytes()[:20])
    assert store.tokens(place) == []


def test_only_the_latest_states_are_kept(tmp_path: Path) -> None:
    store = States(tmp_path, model="m")
    for number in range(40):
        store.save(store.place(Generate(id=1, prompt=str(number))), [number], [])
    store.forget(store.place(Generate(id=1, prompt="39")))
    assert len(list(tmp_path.iterdir())) == 32


def test_a_state_that_nobody_has_come_back_for_is_deleted(tmp_path: Path) -> None:
    store = States(tmp_path, model="m")
    old, new = (store.place(Generate(id=1, prompt=prompt)) for prompt in ("old", "new"))
    for place in (old, new):
        store.save(place, [1], [])
    os.utime(old, (0, 0))
    States(tmp_path, model="m")
    assert (old.exists(), new.exists()) == (False, True)
    os.utime(new, (0, 0))
    store.forget(old)
    assert not new.exists()


PIECES = [b"a", b"b", b"ab", b"\xc3", b"\xa9", b"", b"\xff"]


@pytest.mark.parametrize(
    ("saved", "text", "expected"),
    [
        ([9, 2, 0], "aba", ([2, 0], "")),  # what was said as "ab" stays that
        ([9, 2, 0], "abab", ([2, 0], "b")),
        ([9, 0, 1], "aa", ([0], "a")),  # the state is further than what anybody has seen
        ([9, 0, 3, 4], "aé", ([0, 3, 4], "")),
        ([9, 0, 3], "aé", ([0], "é")),  # half a character has shown nothing yet
        ([9, 0, 6, 1], "a\ufffdb", ([0, 6, 1], "")),  # what was no character is no other one now
        ([9, 5, 1], "b", ([5, 1], "")),
        ([8, 0], "a", ([], "a")),  # another prompt
        ([], "a", ([], "a")),
    ],
)
def test_the_tokens_that_were_said_are_known_again_in_their_text(
    saved: list[int], text: str, expected: tuple[list[int], str]
) -> None:
    assert said_before(saved, [9], text, PIECES) == expected


# Tokens


def with_blanks() -> TransformersTokenizer:
    """As SentencePiece has it: words begin with a blank, which the first one is given; bytes are tokens too."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁Helowrd,is{}Pa", "▁Paris"]
    scores = [(word, -1.0 if word == "▁Paris" else -5.0) for word in dict.fromkeys(words)]
    tokenizer = Tokenizer(models.Unigram(scores, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.Metaspace()
    return TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))


def shown(tokenizer: TransformersTokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.pieces[token] for token in ids).decode()


def test_the_bytes_of_each_token_are_known_in_both_ways_of_writing_them(tiny: Path) -> None:
    text = "Hello, 你好 😀"
    for tokenizer in (TransformersTokenizer(AutoTokenizer.from_pretrained(tiny)), with_blanks()):
        assert shown(tokenizer, tokenizer.encode(text, special=False)).lstrip() == text
        [end] = tokenizer.ends
        assert tokenizer.pieces[end] == b""


@pytest.mark.parametrize("text", ["Paris", " Paris", ", Paris", "\n\nParis"])
def test_an_answer_that_goes_on_is_given_no_blank(text: str, tiny: Path) -> None:
    for tokenizer in (TransformersTokenizer(AutoTokenizer.from_pretrained(tiny)), with_blanks()):
        assert shown(tokenizer, tokenizer.resume(text)) == text


def test_what_a_template_cannot_write_is_a_refusal(tiny: Path) -> None:
    library = AutoTokenizer.from_pretrained(tiny)
    library.chat_template = "{{ raise_exception('no tools here') }}"
    with pytest.raises(ValueError, match="no tools here"):
        TransformersTokenizer(library).write([{"role": "user", "content": "Hi"}])
