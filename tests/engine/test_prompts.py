"""A base model answers chats through a frame."""

from collections.abc import AsyncIterator

from harness import run_async
from headrace.engine.port import Chunk, Finish, ModelRequest, Text
from headrace.engine.prompts import CHINESE, ENGLISH, frame_for, strip_start
from headrace.messages import Message

ASK = (
    Message(role="system", content="Be\nbrief."),
    Message(role="user", content="Hi"),
    Message(role="assistant", content="Hello!"),
    Message(role="user", content="What is\n\nwater?"),
)


def test_a_conversation_is_a_dialogue_that_ends_where_the_answer_begins() -> None:
    prompt = ENGLISH.render(ASK)
    assert prompt.startswith(ENGLISH.preamble)
    assert prompt.endswith("Note: Be brief.\n\nUser: Hi\nAssistant: Hello!\n\nUser: What is water?\nAssistant:")


def test_the_prefix_is_the_same_for_every_conversation() -> None:
    first, second = ENGLISH.render(ASK), ENGLISH.render(ASK[1:2])
    shared = ENGLISH.render(())
    assert first.startswith(shared.removesuffix("Assistant:"))
    assert second.startswith(shared.removesuffix("Assistant:"))


def test_a_framed_request_is_raw_and_stops_at_the_next_turn() -> None:
    request = CHINESE.apply(ModelRequest(messages=ASK, stop=("。",), max_tokens=9))
    assert request.messages == ()
    assert request.stop == ("。", "\n用户", "\n\n")
    assert request.max_tokens == 9


def test_an_answer_that_goes_on_stands_behind_the_blank_that_it_began_with() -> None:
    english = ENGLISH.apply(ModelRequest(messages=ASK[1:2], continued="He"))
    chinese = CHINESE.apply(ModelRequest(messages=ASK[1:2], continued="你"))
    assert english.prompt is not None
    assert chinese.prompt is not None
    assert (english.prompt + "He").endswith("User: Hi\nAssistant: He")
    assert (chinese.prompt + "你").endswith("用户：Hi\n助手：你")


def test_the_language_of_the_last_question_chooses_the_frame() -> None:
    assert frame_for((*ASK, Message(role="user", content="水是什么？"))) is CHINESE
    assert frame_for(ASK) is ENGLISH
    assert frame_for(()) is ENGLISH


def test_the_blank_after_the_speakers_name_is_not_part_of_the_answer() -> None:
    async def pieces() -> AsyncIterator[Chunk]:
        for piece in (Text(" "), Text(" Hello"), Text(" you"), Finish(reason="stop")):
            yield piece

    async def scenario() -> list[Chunk]:
        return [chunk async for chunk in strip_start(pieces())]

    assert run_async(scenario()) == [Text("Hello"), Text(" you"), Finish(reason="stop")]
