"""What the Redis server decides about leases, in Lua: each script is one step that nobody sees half done.

All keys carry one hash tag, so that a cluster keeps them in one slot:

    leases   ZSET  run_id → when its lease runs out, in ms of the server's clock; 0: nobody holds it
    holders  HASH  run_id → the worker that holds it
    taken    ZSET  "worker run_id" → when somebody else got that run; how a worker that slept through it finds out
    work     channel  a run has become free

KEYS are leases, holders, taken, in this order. ARGV begins with the worker and, where one is given, the lease in ms.
"""

REMEMBERED_MS = 24 * 3600 * 1000
"""How long a worker may sleep and still be told that a run was taken from it."""

_COMMON = f"""
local leases, holders, taken = KEYS[1], KEYS[2], KEYS[3]
local worker = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function note_the_former_holder(run)
    local former = redis.call('HGET', holders, run)
    if former and former ~= worker then
        redis.call('ZREMRANGEBYSCORE', taken, '-inf', now - {REMEMBERED_MS})
        redis.call('ZADD', taken, now, former .. ' ' .. run)
    end
end

local function give_to_this_worker(run, lease)
    note_the_former_holder(run)
    redis.call('ZREM', taken, worker .. ' ' .. run)
    redis.call('HSET', holders, run, worker)
    redis.call('ZADD', leases, now + lease, run)
end
"""

HOLD = f"""{_COMMON}
-- ARGV: worker, lease, run. Whoever held it loses it: the caller has, or is about to raise, the run's fence.
give_to_this_worker(ARGV[3], tonumber(ARGV[2]))
"""

RENEW = f"""{_COMMON}
-- ARGV: worker, lease, '1' to take runs up again that the server has forgotten, runs ...
-- Answers the server's time, the runs that others have got, and those that the server has forgotten.
local lost, forgotten = {{}}, {{}}
for i = 4, #ARGV do
    local run = ARGV[i]
    local holder = redis.call('HGET', holders, run)
    if holder == worker then
        redis.call('ZADD', leases, 'XX', now + tonumber(ARGV[2]), run)
    elseif holder or redis.call('ZSCORE', leases, run) or redis.call('ZSCORE', taken, worker .. ' ' .. run) then
        table.insert(lost, run)
    elseif ARGV[3] == '1' then
        give_to_this_worker(run, tonumber(ARGV[2]))
    else
        table.insert(forgotten, run)
    end
end
return {{now, lost, forgotten}}
"""

ADOPT = f"""{_COMMON}
-- ARGV: worker, lease, limit, until when to obey, '1' to take runs whose lease ran out too. Answers the runs, oldest
-- first. A command that lay in the socket of a stopped server is not obeyed: those whose leases ran out meanwhile
-- have had no chance to renew them.
if now > tonumber(ARGV[4]) then return {{}} end
local latest = ARGV[5] == '1' and now or 0
local runs = redis.call('ZRANGEBYSCORE', leases, '-inf', latest, 'LIMIT', 0, tonumber(ARGV[3]))
for _, run in ipairs(runs) do
    give_to_this_worker(run, tonumber(ARGV[2]))
end
table.sort(runs)
return runs
"""

RELEASE = f"""{_COMMON}
-- ARGV: worker, the channel of free runs, runs ... Those that somebody else holds by now stay as they are.
for i = 3, #ARGV do
    local run = ARGV[i]
    local holder = redis.call('HGET', holders, run)
    if not holder or holder == worker then
        redis.call('HDEL', holders, run)
        redis.call('ZADD', leases, 0, run)
    end
end
redis.call('PUBLISH', ARGV[2], '')
"""

DONE = f"""{_COMMON}
-- ARGV: worker, run. The run has ended, whoever else may still hold it.
note_the_former_holder(ARGV[2])
redis.call('HDEL', holders, ARGV[2])
redis.call('ZREM', leases, ARGV[2])
"""
