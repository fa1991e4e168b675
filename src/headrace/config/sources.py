"""Where settings come from, read once at the edge.

Precedence: flag > environment > file > default. The environment is `HEADRACE_SECTION__KEY`
(`HEADRACE_SERVER__PORT=9000`), and for the engine what everybody has set already: `OPENAI_BASE_URL` and
`OPENAI_API_KEY`, or the variables of the server that `engine.preset` names or whose address is known. The file is
TOML, `headrace.toml` in the working directory or the one named by `--config`.
"""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from headrace.config.shown import Setting
from headrace.config.tree import Config, listed
from headrace.engine.presets import Preset, preset, preset_at
from headrace.errors import ConfigError

ENV_PREFIX = "HEADRACE_"
DEFAULT_FILE = "headrace.toml"
_ALIASES: dict[str | None, str] = {"OPENAI_BASE_URL": "engine.url", "OPENAI_API_KEY": "engine.api_key"}
_EXPECTED = {"engine.concurrency": "expected a number, or one for each server with commas between them"}
"""Of settings that are written in a way which msgspec could show as a pattern only."""
_HINTS = {
    "engine.concurrency": "Write 8, or 4,8 for two servers; each is 1 or more.",
    "log.url": "It is like redis://localhost:6379, rediss://… with TLS, or unix:///run/redis.sock.",
}


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
            raise _unknown_key(section, str(path))
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
    urls = listed(named.get("url"))
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
        raise _unknown_key(key, source)
    try:
        return msgspec.convert(_from_text(wanted, value), wanted, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as exc:
        reason = _EXPECTED.get(key, f"{str(exc)[:1].lower()}{str(exc)[1:]}")
        message = f"{key} from {source} is not valid: {reason}."
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


def _build(values: Mapping[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    fields = {field.name: field.type for field in msgspec.structs.fields(Config)}
    return Config(**{name: fields[name](**entries) for name, entries in sections.items()})


def _unknown_key(key: str, source: str) -> ConfigError:
    """The error for a key that is not one, naming the nearest that is."""
    known = list(_types())
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    same_name = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    hint = (
        "".join(f"Did you mean {nearest}?" for nearest in (same_name or near)[:1])
        or "`headrace config` lists every key."
    )
    return ConfigError(f"{source} sets {key}, which is not a setting.", hint=hint)
