"""A wrong `engine.concurrency` is answered in words."""

import pytest

from headrace.config.sources import load
from headrace.errors import ConfigError


@pytest.mark.parametrize("written", ["abc", "0", "4,", "4;8"])
def test_concurrency_that_is_none_is_told_what_was_expected_and_not_a_pattern(written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={"HEADRACE_ENGINE__CONCURRENCY": written})
    error = caught.value
    assert "a number, or one for each server with commas between them" in error.message
    assert error.hint == "Write 8, or 4,8 for two servers; each is 1 or more."
    assert not {*"^[]*$`"} & {*error.message}
