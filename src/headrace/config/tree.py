"""Every setting there is, with its default: a frozen tree. What a field means stands at its section."""

from typing import Annotated, Any, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.log.ports import Durability

Count = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Grace = Annotated[float, msgspec.Meta(ge=0)]
KvType = Literal["f32", "f16", "q8_0", "q4_0"]
Counts = Annotated[str, msgspec.Meta(pattern="^ *[1-9][0-9]*( *, *[1-9][0-9]*)* *$")]
RedisUrl = Annotated[str, msgspec.Meta(pattern="^(redis|rediss|unix)://.")]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`heartbeat` and `drain_grace` are seconds. Port 0 takes any free one."""

    host: str = "127.0.0.1"
    port: Port = 8321
    heartbeat: Span = 15.0
    drain_grace: Grace = 30.0
    cors_origins: tuple[str, ...] = ()


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path` is a directory. A run keeps its latest `retain_records` records, all of them until `retain_hours` after
    its end; its final state is kept for `retain_days`.

    With `url` the log is in Redis and not in `path`, and `replay_minutes` counts instead of `retain_hours`. Instances
    with the same `prefix` share their runs; `lease` is how many seconds after an instance's death others go on.
    """

    url: RedisUrl | None = None
    prefix: str = "headrace"
    lease: Span = 3.0
    replay_minutes: Grace = 5.0
    path: str = "~/.local/share/headrace"
    durability: Durability = "journal"
    retain_records: Count = 100_000
    retain_hours: Grace = 24.0
    retain_days: Grace = 30.0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `url` and `preset` the embedded engine answers. `preset` says which model server it is (`vllm`, `ollama`,
    `anthropic` …), and where, if there is no `url`; None to ask it. `continuation` says whether it goes on with an
    answer that was cut, None for what is known of it.

    Several URLs, in a list or with commas between them, are replicas of one model. Each server gives at most
    `concurrency` answers at once, and more requests wait: one number for all of them, or one for each URL, in a list or
    with commas between them. With `fallback_url`, `fallback_preset` or `fallback_model`
    another model answers when none of these servers can: at other servers, or the embedded one.

    The rest is for the embedded one: llama.cpp; for many streams on a CPU, OpenVINO; for weights that no other reads,
    transformers, which keeps them as `weights`. `slots` answers at once have `context_tokens` each, kept as `kv`, None
    for what suits the engine; `threads` None takes both of two cores, and of more all but one. `linger` is how many
    seconds llama.cpp's process waits for the next server after SIGTERM or a crash, 0 not to outlive this one. `tools`
    is how the model calls them, None for what its chat template says. With `ngram` or a `draft_model` it guesses
    ahead, which changes the speed and nothing else. The state of a long answer is saved every `snapshot_tokens`.
    """

    url: str | tuple[str, ...] | None = None
    preset: str | None = None
    model: str | None = None
    api_key: str | None = None
    continuation: bool | None = None
    concurrency: Count | Counts | tuple[Count, ...] | None = None
    fallback_url: str | tuple[str, ...] | None = None
    fallback_preset: str | None = None
    fallback_model: str | None = None
    fallback_api_key: str | None = None
    embedded: Literal["llamacpp", "openvino", "transformers"] = "llamacpp"
    slots: Count | None = None
    context_tokens: Count | None = None
    threads: Count | None = None
    kv: KvType | None = None
    weights: Literal["full", "int8", "nf4"] = "full"
    linger: Grace = 60.0
    tools: Literal["none", "native", "schema"] | None = None
    ngram: bool = False
    draft_model: str | None = None
    snapshot_tokens: Count | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Each server once."""
        return tuple(dict.fromkeys(listed(self.url)))

    @property
    def limits(self) -> tuple[int | None, ...]:
        """How many answers each server gives at once, in the order of `urls`; None for as many as it has slots.

        Raises:
            ConfigError: there are several numbers, and not one for each server.
        """
        servers, named = len(self.urls or (None,)), _numbers(self.concurrency)
        if len(named) > 1 and len(named) != servers:
            raise ConfigError(
                f"engine.concurrency has {len(named)} numbers, and engine.url names {servers} servers.",
                hint="Give one number for all of them, or one for each, in the order of engine.url.",
            )
        return named if len(named) > 1 else (named or (None,)) * servers

    @property
    def fallback(self) -> "EngineConfig | None":
        """The same for the model that stands in, None if there is none. Numbers for each server are these servers'."""
        instead = {"url": self.fallback_url, "preset": self.fallback_preset, "model": self.fallback_model}
        if not any(instead.values()):
            return None
        none = {f"fallback_{name}": None for name in instead}
        for_all = self.concurrency if len(_numbers(self.concurrency)) == 1 else None
        return msgspec.structs.replace(
            self, **instead, **none, api_key=self.fallback_api_key, continuation=None, concurrency=for_all
        )


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`deadline` is in seconds, None for no limit; more than `max_active` runs wait in the queue. A run that crashes
    its process `max_crashes` times in a row without getting further is not tried again."""

    deadline: Span | None = 600.0
    max_active: Count = 256
    max_crashes: Count = 3


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key for each name, which is the tenant. Without keys everybody may call. `operators` are those of the
    names that may look at the model servers and take them out of service; without any, nobody may.

    Raises:
        ConfigError: an operator has no key, a key is empty, or two names have the same one.
    """

    keys: dict[str, str] = msgspec.field(default_factory=dict)
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.operators if name not in self.keys]
        if unknown:
            raise ConfigError(
                f"auth.operators names {', '.join(unknown)}, and auth.keys has no such name.",
                hint="Operators are names of auth.keys, not the keys themselves.",
            )
        names: dict[str, list[str]] = {}
        for name, key in self.keys.items():
            names.setdefault(key.strip(), []).append(name)  # what a caller sends is read without outer spaces
        if "" in names:
            raise ConfigError(
                f"auth.keys gives {_all_of(names[''])} an empty key, with which anybody might call.",
                hint="Give each name a long random key: `openssl rand -hex 32` makes one.",
            )
        if (shared := next((each for each in names.values() if len(each) > 1), None)) is not None:
            raise ConfigError(
                f"auth.keys gives {_all_of(shared)} the same key, and a key says who calls.",
                hint="Give each name a key of its own.",
            )


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body_bytes: Count = 4 * 1024 * 1024
    frame_bytes: Count = 1024 * 1024


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    engine: EngineConfig = EngineConfig()
    run: RunConfig = RunConfig()
    auth: AuthConfig = msgspec.field(default_factory=AuthConfig)
    limits: LimitsConfig = LimitsConfig()


def _all_of(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def listed(urls: Any) -> list[str]:
    """One URL, several with commas between them, or a list."""
    each = urls.split(",") if isinstance(urls, str) else urls or ()
    return [url.strip() for url in each if isinstance(url, str) and url.strip()]


def _numbers(concurrency: int | str | tuple[int, ...] | None) -> tuple[int, ...]:
    """The numbers of `engine.concurrency`, however they are written."""
    if concurrency is None:
        return ()
    if isinstance(concurrency, str):
        return tuple(int(number) for number in concurrency.split(","))
    return (concurrency,) if isinstance(concurrency, int) else concurrency
