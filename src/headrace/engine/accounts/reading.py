"""Reading what a server says without trusting it to say anything: what is not there, or is something else, is empty."""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_SERIES = re.compile(r"^(?P<name>[a-zA-Z_][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """A page of Prometheus metrics. Those that are not there are 0, or have no labels."""

    def __init__(self, page: bytes) -> None:
        text = page.decode("utf-8", "replace")
        self._series = [
            (found["name"], dict(_LABEL.findall(found["labels"] or "")), number(found["value"]))
            for found in _SERIES.finditer(text)
        ]

    def total(self, name: str) -> float:
        return number(sum(value for series, _, value in self._series if series == name))

    def labels(self, name: str) -> Mapping[str, str]:
        return next((labels for series, labels, _ in self._series if series == name), {})

    def by(self, label: str, name: str) -> dict[str, float]:
        """The values of one metric, by one of its labels."""
        return {labels[label]: value for series, labels, value in self._series if series == name and label in labels}


def decode(body: bytes) -> object:
    """None for what is no JSON, or is nested deeper than anything that is read here."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def fields(value: object) -> dict[str, Any]:
    """An object's fields; none of what is no object."""
    return value if isinstance(value, dict) else {}


def entries(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none of what is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def number(value: object) -> float:
    """A finite one; 0 for what is none."""
    try:
        found = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def count(value: object) -> int | None:
    """A whole number from 1 to 2**53, beyond which JSON means none that is exact; None for what is none."""
    return value if type(value) is int and 0 < value <= 2**53 else None
