"""What Redis decides about runs, in Lua: each script is one step that nobody sees half done.

Every key of a script carries the run's hash tag, so that a cluster keeps them in one slot. Each may be sent twice,
since an answer can be lost on its way: the second time changes nothing and answers as the first.

`meta` is a hash: `run` (NewRun as JSON), `tenant`, `nonce` (of the creation), `last` (seq), `first` (the oldest record
in the stream), `fence`, `owner` (the worker that has it), `claim` (nonce of the latest claim), `batch` and
`batch_first` (the owner's latest batch and its first seq), `closed` (1 after the terminal record), and once the run
is sealed `info` (its row in the list, JSON) and `terminal` (the last record's body).
"""

import hashlib


class Script:
    """A script and the name under which Redis remembers it."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source.encode()
        self.sha = hashlib.sha1(self.source).hexdigest().encode()


CREATE = Script(
    "create",
    """
-- KEYS: log, meta. ARGV: nonce, run, tenant, fence, owner, body
local known = redis.call('HMGET', KEYS[2], 'run', 'nonce')
if known[1] then
    if known[2] == ARGV[1] then return {'created'} end
    return {'known', known[1]}
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2], 'nonce', ARGV[1], 'run', ARGV[2], 'tenant', ARGV[3], 'fence', ARGV[4], 'owner', ARGV[5],
    'first', 1, 'last', 1, 'batch', 0)
redis.call('XADD', KEYS[1], '1-0', 'f', ARGV[6])
return {'created'}
""",
)

APPEND = Script(
    "append",
    """
-- KEYS: log, meta, keys. ARGV: run, worker, channel of followers, channels of workers (a prefix),
--   fence ('' for a client's request), known (the head that the owner knows, '' for others),
--   batch (the owner's, grows; '' for others), expected head or '', key or '', '1' if it ends the run, bodies ...
-- Answers: ok, the first seq, and the bodies that the owner did not know of before that one
--   again, "first-last"   this key was used before        ended      the terminal record is there
--   stale, fence          another worker has the run      conflict, head
--   gone, lost            Redis knows less than the owner: nothing, or not all of it
local run, worker, fence, known, batch, expected, key = ARGV[1], ARGV[2], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local bodies = #ARGV - 10
local meta = redis.call('HMGET', KEYS[2], 'last', 'fence', 'closed', 'batch', 'batch_first', 'owner')
if not meta[1] then return {'gone'} end
local last = tonumber(meta[1])
if key ~= '' then
    local span = redis.call('HGET', KEYS[3], key)
    if span then return {'again', span} end
end
if fence ~= '' and fence ~= meta[2] then
    if known ~= '' and tonumber(fence) > tonumber(meta[2]) then return {'lost'} end
    return {'stale', tonumber(meta[2])}
end
if known ~= '' and last < tonumber(known) then return {'lost'} end
local first = last + 1
if bodies > 0 and batch ~= '' and tonumber(batch) <= tonumber(meta[4]) then
    first = tonumber(meta[5])
elseif bodies > 0 then
    if meta[3] then return {'ended'} end
    if expected ~= '' and tonumber(expected) ~= last then return {'conflict', last} end
    for i = 1, bodies do
        redis.call('XADD', KEYS[1], (last + i) .. '-0', 'f', ARGV[10 + i])
    end
    last = last + bodies
    if batch ~= '' then
        redis.call('HSET', KEYS[2], 'last', last, 'batch', batch, 'batch_first', first)
    else
        redis.call('HSET', KEYS[2], 'last', last)
    end
    if ARGV[10] == '1' then redis.call('HSET', KEYS[2], 'closed', 1) end
    if key ~= '' then redis.call('HSET', KEYS[3], key, first .. '-' .. last) end
    redis.call('PUBLISH', ARGV[3], last)
    if meta[6] ~= worker then redis.call('PUBLISH', ARGV[4] .. meta[6], run) end
end
local answer = {'ok', first}
if known ~= '' and tonumber(known) + 1 < first then
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], (known + 1) .. '-0', (first - 1) .. '-0')) do
        answer[#answer + 1] = entry[2][2]
    end
end
return answer
""",
)

CLAIM = Script(
    "claim",
    """
-- KEYS: meta. ARGV: nonce, run, worker, channels of workers (a prefix)
-- Answers: ok, the new fence; or gone; or ended
local meta = redis.call('HMGET', KEYS[1], 'fence', 'closed', 'owner', 'claim')
if not meta[1] then return {'gone'} end
if meta[4] == ARGV[1] then return {'ok', tonumber(meta[1])} end
if meta[2] then return {'ended'} end
local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'claim', ARGV[1], 'batch', 0)
if meta[3] ~= ARGV[3] then redis.call('PUBLISH', ARGV[4] .. meta[3], ARGV[2]) end
return {'ok', fence}
""",
)

TRIM = Script(
    "trim",
    """
-- KEYS: log, meta, state. ARGV: fence, the first seq to keep, a state that covers what goes
if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[2], 'first', ARGV[2])
return redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2] .. '-0')
""",
)

SEAL = Script(
    "seal",
    """
-- KEYS: log, meta, keys, state. ARGV: row, state, body of the terminal record, ms to keep the records, ms to keep the
--   rest. Again later it changes nothing: a run's time begins once.
local meta = redis.call('HMGET', KEYS[2], 'closed', 'info')
if not meta[1] or meta[2] then return 0 end
redis.call('HSET', KEYS[2], 'info', ARGV[1], 'terminal', ARGV[3])
redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
return 1
""",
)

REBUILD = Script(
    "rebuild",
    """
-- KEYS: log, meta, keys, state. ARGV: channel of followers, run, tenant, fence, known, owner, seq and body of the
--   terminal record, row, state, ms to keep the records, ms to keep the rest
-- Redis has lost records that were durable: end the run behind everything that anybody can have seen.
local fence, known, seq = ARGV[4], tonumber(ARGV[5]), ARGV[7]
local meta = redis.call('HMGET', KEYS[2], 'last', 'fence')
if meta[1] and tonumber(meta[2]) > tonumber(fence) then return {'stale', tonumber(meta[2])} end
if meta[1] and meta[2] == fence and tonumber(meta[1]) >= known then return {'ok'} end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('HSET', KEYS[2], 'nonce', '', 'run', ARGV[2], 'tenant', ARGV[3], 'fence', fence, 'owner', ARGV[6],
    'first', seq, 'last', seq, 'batch', 0, 'closed', 1, 'info', ARGV[9], 'terminal', ARGV[8])
redis.call('XADD', KEYS[1], seq .. '-0', 'f', ARGV[8])
redis.call('SET', KEYS[4], ARGV[10], 'PX', ARGV[12])
redis.call('PEXPIRE', KEYS[1], ARGV[11])
redis.call('PEXPIRE', KEYS[2], ARGV[12])
redis.call('PUBLISH', ARGV[1], seq)
return {'ok'}
""",
)
