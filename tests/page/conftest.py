"""One browser for all tests of the page."""

from collections.abc import Iterator

import pytest

from page_stage import Theatre


@pytest.fixture(scope="session")
def theatre() -> Iterator[Theatre]:
    theatre = Theatre()
    yield theatre
    theatre.close()
