"""The configuration, read once at the edge into a frozen tree. Inside, nobody reads the environment.

Precedence: flag > environment > file > default. The environment is `HEADRACE_SECTION__KEY`
(`HEADRACE_SERVER__PORT=9000`), and for the engine what everybody has set already: `OPENAI_BASE_URL` and
`OPENAI_API_KEY`, or the variables of the server that `engine.preset` names or whose address is known. The file is
TOML, `headrace.toml` in the working directory or the one named by `--config`.
Where each value came from is kept, and `headrace config` prints it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from headrace.engine.presets import Preset, preset, preset_at
from headrace.errors import ConfigError
from headrace.log.ports import Durability

ENV_PREFIX = "HEADRACE_"
DEFAULT_FILE = "headrace.toml"
_ALIASES: dict[str | None, str] = {"OPENAI_BASE_URL": "engine.url", "OPENAI_API_KEY": "engine.api_key"}
_SECRETS = frozenset({"engine.api_key", "engine.fallback_api_key", "auth.keys"})
_URLS = frozenset({"engine.url", "engine.fallback_url", "log.url"})
_HINTS = {"log.url": "It is like redis://localhost:6379, rediss://… with TLS, or unix:///run/redis.sock."}

Count = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Grace = Annotated[float, msgspec.Meta(ge=0)]
KvType = Literal["f16", "q8_0", "q4_0"]
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
    `concurrency` answers at once, and more requests wait. With `fallback_url`, `fallback_preset` or `fallback_model`
    another model answers when none of these servers can: at other servers, or the embedded one.

    The rest is for the embedded one, llama.cpp or, for many streams on a CPU, OpenVINO. `slots` answers at once have
    `context_tokens` each, kept as `kv`; `threads` None leaves the event loop a core. `linger` is how many seconds
    llama.cpp's process waits for the next server after SIGTERM or a crash, 0 not to outlive this one. `tools` is how
    the model calls them, None for what its chat template says. With `ngram` or a `draft_model` it guesses ahead, which
    changes the speed and nothing else. The state of a long answer is saved every `snapshot_tokens`.
    """

    url: str | tuple[str, ...] | None = None
    preset: str | None = None
    model: str | None = None
    api_key: str | None = None
    continuation: bool | None = None
    concurrency: Count | None = None
    fallback_url: str | tuple[str, ...] | None = None
    fallback_preset: str | None = None
    fallback_model: str | None = None
    fallback_api_key: str | None = None
    embedded: Literal["llamacpp", "openvino"] = "llamacpp"
    slots: Count | None = None
    context_tokens: Count | None = None
    threads: Count | None = None
    kv: KvType = "q8_0"
    linger: Grace = 60.0
    tools: Literal["none", "native", "schema"] | None = None
    ngram: bool = False
    draft_model: str | None = None
    snapshot_tokens: Count | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Each server once."""
        return tuple(dict.fromkeys(_listed(self.url)))

    @property
    def fallback(self) -> "EngineConfig | None":
        """The same for the model that stands in, None if there is none."""
        instead = {"url": self.fallback_url, "preset": self.fallback_preset, "model": self.fallback_model}
        if not any(instead.values()):
            return None
        none = {f"fallback_{name}": None for name in instead}
        return msgspec.structs.replace(self, **instead, **none, api_key=self.fallback_api_key, continuation=None)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`deadline` is in seconds, None for no limit; more than `max_active` runs wait in the queue. A run that crashes
    its process `max_crashes` times in a row without getting further is not tried again."""

    deadline: Span | None = 600.0
    max_active: Count = 256
    max_crashes: Count = 3


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name (the tenant) for each API key. Without keys everybody may call."""

    keys: dict[str, str] = msgspec.field(default_factory=dict)


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


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One value and where it came from, as `headrace config` shows it."""

    key: str
    value: Any
    source: str

    @property
    def shown(self) -> str:
        """The value as text, secrets masked."""
        if self.key in _SECRETS and self.value:
            names = f" ({', '.join(self.value)})" if isinstance(self.value, dict) else ""
            return f"***{names}"
        value = self.value
        if self.key in _URLS and value:
            value = without_password(value) if isinstance(value, str) else [without_password(url) for url in value]
        return msgspec.json.encode(value).decode()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    sources: dict[str, str]

    def settings(self) -> Iterator[Setting]:
        """Every value, in the order of the tree."""
        for key in _types():
            section, name = key.split(".")
            value = getattr(getattr(self.config, section), name)
            yield Setting(key=key, value=value, source=self.sources.get(key, "default"))


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    """Read all sources. `flags` are `section.key` → value, None meaning not given; `file` None means the default one,
    if it is there.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or a file that cannot be read.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    environment = environment or {}
    in_file = _from_file(file)
    ours = [*_from_environment(environment), *_from_flags(flags or {})]
    known = [*_from_known_variables(environment, [*in_file, *ours])]
    for key, value, source in (*in_file, *known, *ours):
        values[key] = _convert(key, value, source)
        sources[key] = source
    return Loaded(config=_build(values), sources=sources)


_Found = tuple[str, Any, str]


def _from_file(file: Path | None) -> list[_Found]:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.is_file():
        return []
    return [(f"{section}.{key}", value, str(path)) for section, key, value in _entries(path, _parse(path))]


def _parse(path: Path) -> dict[str, Any]:
    import tomllib  # only for those who have a file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.", hint="Check --config.") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}.", hint="See the example in the README.") from exc


def _entries(path: Path, tree: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for section, entries in tree.items():
        if not isinstance(entries, dict):
            raise unknown_key(section, str(path))
        for key, value in entries.items():
            yield section, key, value


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Found]:
    for variable, value in environment.items():
        if variable.startswith(ENV_PREFIX) and "__" in variable:
            section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
            yield f"{section}.{key}", value, variable


def _server_of(found: list[_Found], prefix: str) -> Preset | None:
    """The model server that the settings name, or that is known by its address."""
    named = {key.removeprefix(prefix): value for key, value, _ in found if key in (f"{prefix}preset", f"{prefix}url")}
    if isinstance(name := named.get("preset"), str) and name != "none":
        return preset(name)
    urls = _listed(named.get("url"))
    return preset_at(urls[0]) if urls else None


def _from_known_variables(environment: Mapping[str, str], found: list[_Found]) -> Iterator[_Found]:
    """A key for one service is never given to another: the variables of a known server stand in for the usual ones."""
    server, fallback = _server_of(found, "engine."), _server_of(found, "engine.fallback_")
    names = _ALIASES if server is None else {server.url_variable: "engine.url", server.key_variable: "engine.api_key"}
    pairs = [*names.items(), *([(fallback.key_variable, "engine.fallback_api_key")] if fallback is not None else [])]
    for variable, key in pairs:
        if variable is not None and environment.get(variable):
            yield key, environment[variable], variable


def _from_flags(flags: Mapping[str, Any]) -> Iterator[_Found]:
    for key, value in flags.items():
        if value is not None:
            yield key, value, _flag(key)


def _flag(key: str) -> str:
    """The name of a setting's flag: the setting's, with its section's before it where that says too little."""
    section, name = key.split(".")
    return f"--{section}-{name}" if name in ("url", "path", "preset") else f"--{name.replace('_', '-')}"


def _types() -> dict[str, Any]:
    """`section.key` → its type."""
    return {
        f"{section.name}.{field.name}": field.type
        for section in msgspec.structs.fields(Config)
        for field in msgspec.structs.fields(section.type)
    }


def _convert(key: str, value: Any, source: str) -> Any:
    wanted = _types().get(key)
    if wanted is None:
        raise unknown_key(key, source)
    try:
        return msgspec.convert(_from_text(wanted, value), wanted, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as exc:
        message = f"{key} from {source} is not valid: {str(exc)[:1].lower()}{str(exc)[1:]}."
        raise ConfigError(message, hint=_HINTS.get(key, f"`headrace config` shows what {key} is now.")) from exc


def _from_text(wanted: Any, value: Any) -> Any:
    """Flags and the environment hold text: lists are comma-separated, tables `name=value,…`, or JSON."""
    if not isinstance(value, str):
        return value
    if value == "none" and type(None) in get_args(wanted):
        return None
    origin = getattr(wanted, "__origin__", None)
    if origin in (tuple, dict) and value[:1] in "[{":
        return msgspec.json.decode(value) if value else origin()
    if origin is tuple:
        return [part.strip() for part in value.split(",")]
    if origin is dict:
        return dict(part.strip().split("=", 1) for part in value.split(","))
    return value


def _listed(urls: Any) -> list[str]:
    """One URL, several with commas between them, or a list."""
    each = urls.split(",") if isinstance(urls, str) else urls or ()
    return [url.strip() for url in each if isinstance(url, str) and url.strip()]


def _build(values: Mapping[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    fields = {field.name: field.type for field in msgspec.structs.fields(Config)}
    return Config(**{name: fields[name](**entries) for name, entries in sections.items()})


def without_password(url: str) -> str:
    """A URL as it may be shown. Whatever may be a password is masked, even where the URL is not well-formed."""
    named = re.sub(r"(?<=[?&]password=)[^&]*", "***", url, flags=re.IGNORECASE)
    return re.sub(r"(?<=://)(?:([^:@]*):)?.*@", lambda found: f"{found[1] or ''}:***@", named)


def unknown_key(key: str, source: str) -> ConfigError:
    """The error for a key that is not one, naming the nearest that is."""
    known = list(_types())
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    same_name = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    hint = (
        "".join(f"Did you mean {nearest}?" for nearest in (same_name or near)[:1])
        or "`headrace config` lists every key."
    )
    return ConfigError(f"{source} sets {key}, which is not a setting.", hint=hint)
