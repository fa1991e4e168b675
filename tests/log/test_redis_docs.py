"""What docs/redis.md tells an operator to write is what works."""

import re
from pathlib import Path

from headrace.config import load
from headrace.log.redis.server_check import look_at
from redis_server import RedisServer, require_server

PAGE = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(found, str)
    return found


def test_a_redis_that_is_set_up_as_the_page_says_may_lose_only_what_it_says(tmp_path: Path) -> None:
    require_server()
    options = [word for line in block("conf").splitlines() for word in f"--{line}".split()]
    with RedisServer(tmp_path, *options) as server:
        (remark,) = look_at(server.url)
    assert (remark.level, "everysec" in remark.text) == ("note", True)


def test_the_settings_of_the_page_are_the_defaults_with_a_url(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block("toml"))
    loaded = load(file=file)
    changed = {setting.key for setting in loaded.settings() if setting.value != default(setting.key)}
    assert changed == {"log.url"}


def default(key: str) -> object:
    return next(setting.value for setting in load().settings() if setting.key == key)
