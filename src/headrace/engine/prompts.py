"""How a base model, which only continues text, is brought to answer a chat.

A frame writes the conversation down as a dialogue that begins with a few short turns of example, and lets the model
write the next line. The examples come first and never change, so a server with a prefix cache reads them once.
"""

from collections.abc import AsyncIterator

import msgspec

from headrace.engine.port import Chunk, ModelRequest, Text
from headrace.messages import Message


class PromptFrame(msgspec.Struct, frozen=True, kw_only=True):
    """`preamble` and `examples` (question, answer) open the dialogue; `user` and `assistant` name the speakers."""

    preamble: str
    user: str
    assistant: str
    examples: tuple[tuple[str, str], ...]
    instructions: str
    stop: tuple[str, ...]

    def render(self, messages: tuple[Message, ...]) -> str:
        """The whole dialogue up to where the answer begins."""
        turns = [f"{self.preamble}\n"]
        for question, answer in self.examples:
            turns += [f"{self.user}{question}", f"{self.assistant}{answer}\n"]
        turns += [self._turn(message) for message in messages if message.content]
        return "\n".join([*turns, self.assistant.rstrip()])

    def apply(self, request: ModelRequest) -> ModelRequest:
        """The same request as a raw prompt, with the stops that end its line."""
        stop = (*request.stop, *(s for s in self.stop if s not in request.stop))
        prompt = self.render(request.messages)
        if request.continued is not None:
            prompt += self._blank
        return msgspec.structs.replace(request, messages=(), prompt=prompt, stop=stop)

    @property
    def _blank(self) -> str:
        """What a model writes between the speaker's name and its answer, and `strip_start` takes away."""
        return self.assistant[len(self.assistant.rstrip()) :]

    def _turn(self, message: Message) -> str:
        match message.role:
            case "user":
                return f"{self.user}{_one_line(message.content)}"
            case "assistant":
                return f"{self.assistant}{_one_line(message.content)}\n"
            case "system" | "tool":
                return f"{self.instructions}{_one_line(message.content)}\n"


ENGLISH = PromptFrame(
    preamble="A conversation with a helpful assistant that answers briefly and correctly.",
    user="User: ",
    assistant="Assistant: ",
    examples=(
        ("What is the capital of France?", "The capital of France is Paris."),
        ("How many days has a week?", "A week has seven days."),
        ("Who are you?", "I am a small assistant that runs on your own machine."),
    ),
    instructions="Note: ",
    stop=("\nUser:", "\n\n"),
)

CHINESE = PromptFrame(
    preamble="以下是用户与助手的对话，助手的回答简短、准确。",
    user="用户：",
    assistant="助手：",
    examples=(
        ("法国的首都是哪里？", "法国的首都是巴黎。"),
        ("一个星期有几天？", "一个星期有七天。"),
        ("你是谁？", "我是一个在你自己的电脑上运行的小助手。"),
    ),
    instructions="说明：",
    stop=("\n用户", "\n\n"),
)


def frame_for(messages: tuple[Message, ...]) -> PromptFrame:
    """Chinese when the last question has Chinese characters in it, else English."""
    last = next((message.content for message in reversed(messages) if message.role == "user"), "")
    return CHINESE if _has_chinese(last) else ENGLISH


def _has_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


def _one_line(text: str) -> str:
    """A line break would end the speaker's turn."""
    return " ".join(text.split())


async def strip_start(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Without the blank that separates the speaker's name from what is said."""
    started = False
    async for chunk in chunks:
        if not started and isinstance(chunk, Text):
            text = chunk.text.lstrip()
            if not text:
                continue
            started = True
            yield Text(text)
        else:
            yield chunk
