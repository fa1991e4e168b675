"""What a cursor that is ahead of the run means depends on whether the run's head is known."""

import pytest

from headrace.errors import InvalidCursor, LogUnavailable
from headrace.http.stream import check_cursor
from headrace.log.ports import Head

HEAD = Head(seq=84, first=1, closed=False)


def test_a_cursor_ahead_of_the_run_is_another_runs() -> None:
    check_cursor(84, HEAD)
    with pytest.raises(InvalidCursor):
        check_cursor(85, HEAD)


def test_while_the_store_cannot_be_asked_a_cursor_ahead_is_to_be_sent_again() -> None:
    """An instance that stood still knows an old head; another one may have gone on and shown record 85."""
    check_cursor(84, HEAD, certain=False)
    with pytest.raises(LogUnavailable) as refused:
        check_cursor(85, HEAD, certain=False)
    assert refused.value.retryable
