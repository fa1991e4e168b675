"""Who waits, who is answered and what comes of a step: the batch, on a model that says what it is told."""

import pytest

from headrace.engine.stepped.batch import Batch
from headrace.engine.stepped.lines import (
    Cancel,
    Ended,
    Generate,
    Look,
    Piece,
    Refused,
    Said,
    Sampling,
    Seen,
)

ALPHABET = [bytes([value]) for value in range(256)]


class FakeGeneration:
    cached_tokens = 0

    def __init__(self, tokens: list[int], max_tokens: int) -> None:
        self.left = tokens[:max_tokens]
        self.reason = "stop" if len(tokens) <= max_tokens else "length"
        self.cancelled = False
        self.out: list[int] = []
        self.over: str | None = None

    def read(self) -> tuple[list[int], str | None]:
        out, self.out = self.out, []
        return out, self.over

    def cancel(self) -> None:
        self.cancelled = True


class FakeModel:
    """Says `script`, a byte for a token."""

    pieces = ALPHABET

    def __init__(self, script: str = "abcdefghij") -> None:
        self.script = script
        self.generations: list[FakeGeneration] = []
        self.broken = False

    def tokens(self, request: Generate) -> list[int]:
        if request.prompt == "unreadable":
            raise ValueError("it cannot be read")
        return list((request.prompt or "").encode() + request.continued.encode())

    def add(self, tokens: list[int], request: Generate, *, max_tokens: int) -> FakeGeneration:
        if request.sampling.temperature == -1:
            raise ValueError("at generation_config.cpp:12\ntemperature must be positive\n")
        generation = FakeGeneration(list(self.script.encode()), max_tokens)
        self.generations.append(generation)
        return generation

    def step(self) -> None:
        self.generations = [g for g in self.generations if not g.cancelled and g.over is None]
        if self.broken:
            raise RuntimeError("called in the scheduling phase")
        for generation in self.generations:
            generation.out.append(generation.left.pop(0))
            if not generation.left:
                generation.over = generation.reason


def ask(number: int, *, prompt: str = "?", max_tokens: int | None = None, **more: object) -> Generate:
    return Generate(id=number, prompt=prompt, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def play(batch: Batch, *orders: Generate, steps: int = 1000) -> list[Said]:
    said = [message for order in orders for message in batch.obey(order)] + batch.admit()
    while batch.busy and steps:
        said += [*batch.step(), *batch.admit()]
        steps -= 1
    return said


def text_for(number: int, said: list[Said]) -> str:
    return "".join(message.text for message in said if isinstance(message, Piece) and message.id == number)


def end_of(number: int, said: list[Said]) -> Ended:
    (end,) = (message for message in said if isinstance(message, Ended) and message.id == number)
    return end


def refusals(said: list[Said]) -> list[tuple[int, str, str]]:
    return [(message.id, message.why, message.reason) for message in said if isinstance(message, Refused)]


def test_an_answer_is_its_text_its_end_and_what_it_used() -> None:
    said = play(Batch(FakeModel("día"), slots=1, context=99), ask(7, prompt="four"))
    assert text_for(7, said) == "día"
    end = end_of(7, said)
    assert (end.reason, end.input_tokens, end.output_tokens) == ("stop", 4, 4)
    assert end.prefill_ms >= 0 <= end.decode_ms


def test_the_limit_of_tokens_and_the_room_in_the_context_end_an_answer_by_length() -> None:
    assert end_of(1, play(Batch(FakeModel(), slots=1, context=99), ask(1, max_tokens=3))).output_tokens == 3
    end = end_of(1, play(Batch(FakeModel(), slots=1, context=10), ask(1, prompt="prompt", max_tokens=50)))
    assert (end.reason, end.output_tokens) == ("length", 4)


def test_a_prompt_that_leaves_no_room_is_refused_and_said_to_be_too_long() -> None:
    ((number, why, reason),) = refusals(Batch(FakeModel(), slots=1, context=6).obey(ask(1, prompt="prompt")))
    assert (number, why) == (1, "overflow")
    assert "6 tokens" in reason


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_stop_is_found_across_tokens_and_nothing_of_it_is_shown(cut: int) -> None:
    stop = "abcdefghij"[cut:]
    model = FakeModel("abcdefghij and on and on")
    batch = Batch(model, slots=1, context=99)
    said = play(batch, ask(1, stop=(stop, "never")))
    assert text_for(1, said) == "abcdefghij"[:cut]
    assert end_of(1, said).reason == "stop"
    assert not batch.busy
    assert not [g for g in model.generations if not g.cancelled]


def test_what_only_begins_like_a_stop_is_shown_at_the_end() -> None:
    assert text_for(1, play(Batch(FakeModel("say a\nU"), slots=1, context=99), ask(1, stop=("\nUser",)))) == "say a\nU"


def test_those_for_whom_there_is_no_place_are_answered_in_order_of_arrival() -> None:
    batch = Batch(FakeModel("ab"), slots=1, context=99)
    for number in (1, 2, 3):
        assert batch.obey(ask(number)) == []
    assert batch.obey(Look()) == [Seen(0, 3)]
    assert batch.admit() == []
    assert batch.obey(Look()) == [Seen(1, 2)]
    assert [message.id for message in play(batch) if isinstance(message, Ended)] == [1, 2, 3]


def test_who_leaves_before_there_is_a_place_is_never_answered() -> None:
    batch = Batch(FakeModel(), slots=1, context=99)
    for number in (1, 2, 3):
        batch.obey(ask(number))
    batch.admit()
    assert batch.obey(Cancel(2)) == []
    said = play(batch)
    assert text_for(2, said) == ""
    assert text_for(3, said) == "abcdefghij"


def test_cancelling_frees_the_place_with_the_next_step_and_nothing_more_is_said() -> None:
    model = FakeModel("abc" * 100)
    batch = Batch(model, slots=1, context=999)
    play(batch, ask(1), steps=2)
    assert batch.obey(Cancel(1)) == []
    assert batch.obey(Look()) == [Seen(1, 0)]
    assert batch.step() == []
    assert not batch.busy
    assert batch.obey(Look()) == [Seen(0, 0)]


def test_cancelling_what_is_over_or_was_never_there_changes_nothing() -> None:
    batch = Batch(FakeModel("a"), slots=1, context=99)
    play(batch, ask(1))
    assert batch.obey(Cancel(1)) == []
    assert batch.obey(Cancel(99)) == []
    assert not batch.busy


def test_what_the_model_cannot_read_or_will_not_do_is_refused_in_its_last_words() -> None:
    batch = Batch(FakeModel(), slots=1, context=99)
    assert refusals(batch.obey(ask(1, prompt="unreadable"))) == [(1, "rejected", "it cannot be read")]
    said = play(batch, ask(2, sampling=Sampling(temperature=-1)), ask(3))
    assert refusals(said) == [(2, "rejected", "temperature must be positive")]
    assert text_for(3, said) == "abcdefghij"


def test_a_step_that_fails_is_the_end_of_the_process() -> None:
    model = FakeModel()
    batch = Batch(model, slots=4, context=99)
    play(batch, ask(1), steps=2)
    model.broken = True
    with pytest.raises(RuntimeError, match="scheduling phase"):
        batch.step()
