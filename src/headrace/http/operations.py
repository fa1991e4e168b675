"""What an operator and a load balancer ask: alive, ready."""

from collections.abc import Callable, Mapping

from headrace.http.app import Route
from headrace.http.exchange import Exchange


class Operations:
    """`checks` are the reasons not to send traffic here: a name, and a function that says whether all is well."""

    def __init__(self, checks: Mapping[str, Callable[[], bool]]) -> None:
        self._checks = checks

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/healthz", self.healthz, public=True),
            Route("GET", "/readyz", self.readyz, public=True),
        ]

    async def healthz(self, exchange: Exchange) -> None:
        await exchange.answer({"status": "ok"})

    async def readyz(self, exchange: Exchange) -> None:
        """503 with every failing check while this instance should get no new runs."""
        failing = [name for name, well in self._checks.items() if not well()]
        if failing:
            await exchange.answer(
                {"status": "unready", "failing": failing}, status=503, headers=[(b"retry-after", b"1")]
            )
        else:
            await exchange.answer({"status": "ready"})
