"""A worker that holds runs until it is killed: `lease_child.py URL PREFIX LEASE_S BLOCKED_S RUN …`.

Says `held` once it holds them, and `lost RUN` for each that it loses. BLOCKED_S: how long its loop stands still then.
"""

import asyncio
import sys
import time

from headrace.log.redis.keys import Keys
from headrace.log.redis.leases import Leases, this_worker


async def main(url: str, prefix: str, lease_s: str, blocked_s: str, *runs: str) -> None:
    def lost(run_id: str) -> None:
        print("lost", run_id, flush=True)

    leases = Leases(url, Keys(prefix), worker=this_worker(), lease_s=float(lease_s), lost=lost, work=lambda: None)
    async with leases:
        for run_id in runs:
            await leases.hold(run_id)
        print("held", flush=True)
        time.sleep(float(blocked_s))  # noqa: ASYNC251  (the loop is to stand still)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
