"""The name of everything that a deployment keeps in Redis.

    {prefix}:{<run_id>}:log      stream: entry `<seq>-0`, field `f` = the record's frame without its `id:` line
    {prefix}:{<run_id>}:meta     hash: the run's NewRun, last, first, fence, owner, closed …, see scripts.py
    {prefix}:{<run_id>}:keys     hash: append key → first and last seq of what was appended under it
    {prefix}:{<run_id>}:state    a folded RunState as JSON; covers whatever was trimmed
    {prefix}:runs:<tenant>       sorted set of run ids, all of score 0, so that they stand in the order of time
    {prefix}:thread:<tenant>:<thread>   the same for one thread
    {prefix}:key:<tenant>:<key>  the run that an Idempotency-Key began
    {prefix}:{queue}:leases      sorted set: run id → when its lease runs out, Unix ms of the Redis server
    {prefix}:{queue}:holders     hash: run id → the worker that holds it
    {prefix}:{queue}:taken       sorted set: "worker run_id" → when that run was taken from that worker

Braces are hash tags: what one script touches lies in one slot of a cluster. Channels carry hints and no records:
`{prefix}:follow:<run_id>` the new head, `{prefix}:worker:<worker>` the id of a run to look at, `{prefix}:work` nothing.
"""

from urllib.parse import quote

from headrace.errors import ConfigError


class Keys:
    """`prefix` keeps deployments on one Redis apart. Raises ConfigError for one with braces or spaces in it."""

    def __init__(self, prefix: str = "headrace") -> None:
        if not prefix or not prefix.isascii() or not prefix.isprintable() or set(prefix) & set("{} "):
            raise ConfigError(f"{prefix!r} is no prefix for keys.", hint="Use letters, digits and : . _ - only.")
        self.prefix = prefix
        self.leases = f"{prefix}:{{queue}}:leases"
        self.holders = f"{prefix}:{{queue}}:holders"
        self.taken = f"{prefix}:{{queue}}:taken"
        self.work = f"{prefix}:work"
        self.probe = f"{prefix}:probe"
        self.follow_prefix = f"{prefix}:follow:"
        self.worker_prefix = f"{prefix}:worker:"

    def log(self, run_id: str) -> str:
        return f"{self.prefix}:{{{run_id}}}:log"

    def meta(self, run_id: str) -> str:
        return f"{self.prefix}:{{{run_id}}}:meta"

    def keys(self, run_id: str) -> str:
        return f"{self.prefix}:{{{run_id}}}:keys"

    def state(self, run_id: str) -> str:
        return f"{self.prefix}:{{{run_id}}}:state"

    def runs(self, tenant: str) -> str:
        return f"{self.prefix}:runs:{quote(tenant, safe='')}"

    def thread(self, tenant: str, thread_id: str) -> str:
        return f"{self.prefix}:thread:{quote(tenant, safe='')}:{quote(thread_id, safe='')}"

    def key(self, tenant: str, key: str) -> str:
        return f"{self.prefix}:key:{quote(tenant, safe='')}:{quote(key, safe='')}"

    def follow(self, run_id: str) -> str:
        """The channel that is told the new head after each append."""
        return self.follow_prefix + run_id

    def worker(self, worker: str) -> str:
        """The channel that is told of runs of this worker that others have changed."""
        return self.worker_prefix + worker
