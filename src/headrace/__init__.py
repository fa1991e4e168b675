"""Headrace serves AI agents in real time: a run lives in a log, not in a connection."""

__version__ = "0.1.0"
