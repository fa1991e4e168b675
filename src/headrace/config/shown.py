"""A setting as it may be shown: where it came from, and nothing secret in it."""

import re
from typing import Any

import msgspec

_SECRETS = frozenset({"engine.api_key", "engine.fallback_api_key", "auth.keys"})
_URLS = frozenset({"engine.url", "engine.fallback_url", "log.url"})


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


def without_password(url: str) -> str:
    """A URL as it may be shown. Whatever may be a password is masked, even where the URL is not well-formed."""
    named = re.sub(r"(?<=[?&]password=)[^&]*", "***", url, flags=re.IGNORECASE)
    return re.sub(r"(?<=://)(?:([^:@]*):)?.*@", lambda found: f"{found[1] or ''}:***@", named)
