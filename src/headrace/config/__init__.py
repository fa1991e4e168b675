"""The configuration: a frozen tree (`tree.py`), read once at the edge (`sources.py`); no other module reads it.

Where each value came from is kept, and `headrace config` prints it (`shown.py`).
"""

from headrace.config.shown import Setting, without_password
from headrace.config.sources import Loaded, load
from headrace.config.tree import (
    AuthConfig,
    Config,
    EngineConfig,
    LimitsConfig,
    LogConfig,
    RunConfig,
    ServerConfig,
)

__all__ = [
    "AuthConfig",
    "Config",
    "EngineConfig",
    "LimitsConfig",
    "Loaded",
    "LogConfig",
    "RunConfig",
    "ServerConfig",
    "Setting",
    "load",
    "without_password",
]
