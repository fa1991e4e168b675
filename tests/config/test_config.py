from pathlib import Path
from typing import Any

import pytest

from headrace.config import Config, Setting, load
from headrace.errors import ConfigError


def settings(**sources: Any) -> dict[str, Setting]:
    return {setting.key: setting for setting in load(**sources).settings()}


def write(folder: Path, text: str) -> Path:
    file = folder / "headrace.toml"
    file.write_text(text)
    return file


def test_without_any_source_everything_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().config == Config()
    assert {setting.source for setting in load().settings()} == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[server]\nport = 1\nhost = "file"\nheartbeat = 3')
    environment = {"HEADRACE_SERVER__PORT": "2", "HEADRACE_SERVER__HOST": "env"}
    found = settings(file=file, environment=environment, flags={"server.port": 3, "server.host": None})
    assert (found["server.port"].value, found["server.port"].source) == (3, "--port")
    assert (found["server.host"].value, found["server.host"].source) == ("env", "HEADRACE_SERVER__HOST")
    assert (found["server.heartbeat"].value, found["server.heartbeat"].source) == (3.0, str(file))


def test_headrace_toml_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[run]\nmax_active = 7")
    monkeypatch.chdir(tmp_path)
    assert load().config.run.max_active == 7


def test_the_openai_variables_name_the_engine_and_our_own_win() -> None:
    openai = {"OPENAI_BASE_URL": "http://a/v1", "OPENAI_API_KEY": "sk-1"}
    assert load(environment=openai).config.engine.url == "http://a/v1"
    both = load(environment={"HEADRACE_ENGINE__URL": "http://b/v1", **openai}).config.engine
    assert (both.url, both.api_key) == ("http://b/v1", "sk-1")


ALL_KEYS = {
    "OPENAI_BASE_URL": "http://a/v1",
    "OPENAI_API_KEY": "sk-openai",
    "ANTHROPIC_API_KEY": "sk-anthropic",
    "GEMINI_API_KEY": "sk-gemini",
}


@pytest.mark.parametrize(
    ("flags", "url", "api_key"),
    [
        ({"engine.preset": "anthropic"}, None, "sk-anthropic"),
        ({"engine.preset": "openai"}, "http://a/v1", "sk-openai"),
        ({"engine.preset": "ollama"}, None, None),
        ({"engine.url": "https://api.anthropic.com"}, "https://api.anthropic.com", "sk-anthropic"),
        ({"engine.preset": "gemini", "engine.api_key": "mine"}, None, "mine"),
    ],
)
def test_a_key_for_one_service_is_never_given_to_another(flags: dict[str, str], url: str | None, api_key: str) -> None:
    engine = load(environment=ALL_KEYS, flags=flags).config.engine
    assert (engine.url, engine.api_key) == (url, api_key)


def test_a_preset_in_the_file_names_the_variables_too_and_none_is_none(tmp_path: Path) -> None:
    file = write(tmp_path, '[engine]\npreset = "gemini"')
    assert load(file=file, environment=ALL_KEYS).config.engine.api_key == "sk-gemini"
    none = load(file=file, environment={"HEADRACE_ENGINE__PRESET": "none", **ALL_KEYS}).config.engine
    assert (none.preset, none.api_key) == (None, "sk-openai")


def test_a_preset_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags={"engine.preset": "vlm"})
    assert "vllm" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [("HEADRACE_SERVER__PROT", "server.port"), ("HEADRACE_SERVER__DURABILITY", "log.durability")],
)
def test_an_unknown_variable_is_refused_with_the_nearest_key(variable: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(environment={variable: "1"})
    assert variable in refused.value.message
    assert refused.value.hint is not None
    assert nearest in refused.value.hint


@pytest.mark.parametrize("text", ["[server]\nprot = 1", "[sever]\nport = 1", "port = 1"])
def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_key(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(file=write(tmp_path, text))
    assert refused.value.hint is not None
    assert "server.port" in refused.value.hint


@pytest.mark.parametrize(
    ("key", "value"), [("server.port", "many"), ("log.durability", "sometimes"), ("auth.keys", "novalue")]
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(flags={key: value})


def test_a_file_that_is_not_there_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="not TOML"):
        load(file=write(tmp_path, "[server"))


def test_lists_tables_and_none_can_be_written_as_text() -> None:
    loaded = load(
        environment={
            "HEADRACE_AUTH__KEYS": "alice=a,bob=b=b",
            "HEADRACE_SERVER__CORS_ORIGINS": "http://a, http://b",
            "HEADRACE_RUN__DEADLINE": "none",
        }
    ).config
    assert loaded.auth.keys == {"alice": "a", "bob": "b=b"}
    assert loaded.server.cors_origins == ("http://a", "http://b")
    assert loaded.run.deadline is None
    assert load(environment={"HEADRACE_AUTH__KEYS": '{"c":"d"}'}).config.auth.keys == {"c": "d"}


def test_secrets_are_masked_and_only_their_names_shown() -> None:
    found = settings(flags={"engine.api_key": "sk-secret", "auth.keys": "alice=secret"})
    assert "secret" not in found["engine.api_key"].shown + found["auth.keys"].shown
    assert "alice" in found["auth.keys"].shown
    assert found["server.port"].shown == "8321"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/1", "redis://cache:6379/1"),
        ("redis://:secret@cache", "redis://:***@cache"),
        ("rediss://app:secret@cache:6380", "rediss://app:***@cache:6380"),
        ("redis://secret@cache", "redis://:***@cache"),
        ("redis://app:sec:ret/sec@ret@cache", "redis://app:***@cache"),
        ("unix:///run/redis.sock?password=secret&db=1", "unix:///run/redis.sock?password=***&db=1"),
    ],
)
def test_a_password_in_a_url_is_never_shown(url: str, shown: str) -> None:
    assert settings(flags={"log.url": url})["log.url"].shown == f'"{shown}"'


@pytest.mark.parametrize("url", ["cache:6379", "http://:secret@cache", "redis://"])
def test_a_log_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.url from --log-url") as refused:
        load(flags={"log.url": url})
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("listed", ['"http://a/v1, http://b/v1,"', '["http://a/v1", "http://b/v1", "http://a/v1"]'])
def test_several_model_servers_are_a_list_or_have_commas_between_them(tmp_path: Path, listed: str) -> None:
    file = write(tmp_path, f"[engine]\nurl = {listed}\nconcurrency = 8")
    assert load(file=file).config.engine.urls == ("http://a/v1", "http://b/v1")
    flagged = load(file=file, flags={"engine.url": "http://c/v1"}).config.engine
    assert flagged.urls == ("http://c/v1",)


def test_the_fallback_is_a_server_of_its_own_with_a_key_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path, '[engine]\nurl = "http://gpu/v1"\nmodel = "large"\nfallback_model = "smollm2"')
    engine = load(file=file, environment={"HEADRACE_ENGINE__API_KEY": "sk-gpu"}).config.engine
    assert engine.fallback is not None
    assert (engine.fallback.urls, engine.fallback.model, engine.fallback.api_key) == ((), "smollm2", None)
    assert engine.fallback.fallback is None
    hosted = {"HEADRACE_ENGINE__FALLBACK_PRESET": "openai", "OPENAI_API_KEY": "sk-openai"}
    engine = load(file=file, environment={**hosted, "HEADRACE_ENGINE__PRESET": "vllm"}).config.engine
    assert (engine.api_key, engine.fallback_api_key) == (None, "sk-openai")


def test_passwords_in_the_addresses_of_several_servers_are_masked() -> None:
    flags = {"engine.url": "http://me:secret@a/v1,http://me:secret@b/v1", "engine.fallback_url": "http://x:secret@c"}
    found = settings(flags={**flags, "engine.fallback_api_key": "secret"})
    for key in ("engine.url", "engine.fallback_url", "engine.fallback_api_key"):
        assert "secret" not in found[key].shown


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("8", (8, 8)),
        ('"8"', (8, 8)),
        ('"4, 8"', (4, 8)),
        ("[4, 8]", (4, 8)),
        ("[]", (None, None)),
    ],
)
def test_concurrency_is_one_number_for_all_servers_or_one_for_each(
    tmp_path: Path, written: str, limits: tuple[int | None, ...]
) -> None:
    file = write(tmp_path, f'[engine]\nurl = "http://a/v1,http://b/v1"\nconcurrency = {written}')
    assert load(file=file).config.engine.limits == limits


def test_concurrency_can_be_set_in_the_environment_and_taken_back_there(tmp_path: Path) -> None:
    file = write(tmp_path, '[engine]\nurl = ["http://a/v1", "http://b/v1"]\nconcurrency = [1, 2]')
    variable = "HEADRACE_ENGINE__CONCURRENCY"
    for written, limits in (("4,8", (4, 8)), ("3", (3, 3)), ("none", (None, None))):
        assert load(file=file, environment={variable: written}).config.engine.limits == limits
    assert load(environment={}).config.engine.limits == (None,)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 2)])
def test_numbers_that_are_not_one_for_each_server_are_refused(numbers: tuple[int, ...]) -> None:
    servers = "http://a/v1" if len(numbers) == 2 else "http://a/v1,http://b/v1"
    engine = load(flags={"engine.url": servers, "engine.concurrency": numbers}).config.engine
    with pytest.raises(ConfigError, match=f"{len(numbers)} numbers, and engine.url names {len(numbers) - 1} server"):
        assert engine.limits


@pytest.mark.parametrize("written", ["0", "-1", "4,", "4,0", "many", "4;8"])
def test_concurrency_that_is_no_count_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.concurrency"):
        load(environment={"HEADRACE_ENGINE__CONCURRENCY": written})


def test_numbers_for_each_server_are_not_for_those_of_the_model_that_stands_in() -> None:
    flags = {"engine.url": "http://a/v1,http://b/v1", "engine.fallback_url": "http://c/v1"}
    for written, limits in (("4", (4,)), ("4,8", (None,))):
        fallback = load(flags={**flags, "engine.concurrency": written}).config.engine.fallback
        assert fallback is not None
        assert fallback.limits == limits


def test_operators_are_names_that_have_a_key(tmp_path: Path) -> None:
    file = write(tmp_path, '[auth]\nkeys = {ann = "a", bob = "b"}\noperators = ["ann"]')
    assert load(file=file).config.auth.operators == ("ann",)
    environment = {"HEADRACE_AUTH__KEYS": "ann=a,bob=b", "HEADRACE_AUTH__OPERATORS": "ann, bob"}
    assert load(environment=environment).config.auth.operators == ("ann", "bob")
    with pytest.raises(ConfigError, match="names eve"):
        load(file=file, environment={"HEADRACE_AUTH__OPERATORS": "ann,eve"})
    with pytest.raises(ConfigError, match="names ann"):
        load(environment={"HEADRACE_AUTH__OPERATORS": "ann"})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("ann=", "gives ann an empty key"),
        ('{"ann": "  ", "bob": "b", "eve": ""}', "gives ann and eve an empty key"),
        ("ann=hush,bob=b,eve=hush", "gives ann and eve the same key"),
        ('{"ann": "hush", "bob": "hush ", "eve": "hush"}', "gives ann, bob and eve the same key"),
    ],
)
def test_an_empty_key_and_a_shared_one_are_refused_and_not_printed(keys: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load(environment={"HEADRACE_AUTH__KEYS": keys})
    assert "hush" not in f"{refused.value} {refused.value.hint}"
