"""The SQL that finds, from entries, where instances and steps stand; known.py says when.

It asks none of the macros and views in the file, which a stranger may have made, and bears a body that is no JSON.
`{entries}` is where to look, `{home}` the schema whose tables are filled, `{counting}` a table of what COUNTING selects.
"""

# By these neither an instance's life nor its owner changes.
_ASIDE = "('created', 'claimed', 'released', 'event', 'set_aside', 'interrupted', 'deleted')"

# The text of an error, where it may be shown.
_SHOWN = (
    "case when try(last.body ->> '$.error.message') is not null and last.sensitive then '[REDACTED]' "
    "else try(last.body ->> '$.error.message') end"
)

CAME = f"""
select
  e.created_seq,
  coalesce(bool_or(e.step is not null and e.whole is not true), false),
  coalesce(bool_or(e.kind = 'created'), false),
  coalesce(bool_or(e.step is null and e.kind not in {_ASIDE}), false),
  coalesce(bool_or(e.kind in ('completed', 'errored', 'rolling_back')), false),
  coalesce(bool_or(e.kind = 'deleted'), false),
  coalesce(bool_or(e.kind in ('restarted', 'retried')), false),
  coalesce(min(e.token) filter (e.token > 0), 0),
  coalesce(max(e.token) filter (e.token > 1 and e.kind in ('claimed', 'restarted', 'terminating', 'terminated')), 0)
from nb.entries as e
where e.seq > $1
group by e.created_seq
"""  # noqa: S608 - no text of a user is in it
TOKENS = "select created_seq, token from nb.known_instances where created_seq in (select unnest($1))"

CREATED = """
insert into {home}.known_instances
select
  seq, split_part(key, '/', 1), split_part(key, '/', 2), 'queued', recorded_at, null, null, null,
  try(body ->> '$.code_hash'), coalesce(try(body ->> '$.parent.id'), try(body ->> '$.parent')), 0, 0, 0
from nb.entries
where kind = 'created' and seq > $1
"""
ADD_INSTANCE = """
insert into nb.known_instances
values ($1, $2, $3, 'queued', $4, null, null, null, $5, $6, 0, 0, 0)
"""
ADD_VALUE = "insert into nb.known_values values ($1, try_cast($2 as json), null, null)"
FORGET_DELETED = "delete from nb.known_instances where created_seq in (select unnest($1))"
NOT_DELETED = " and seq not in (select created_seq from nb.entries where kind = 'deleted')"

VALUES = """
insert into {home}.known_values
select
  seq,
  case
    when value is null then null
    when sensitive then '"[REDACTED]"'::json
    when value >= 'j'::blob and value < 'k'::blob then try_cast(try(decode(value))[2:] as json)
    else try_cast(try(body ->> '$.json') as json)
  end,
  case when kind in ('errored', 'rolling_back') then try(body ->> '$.error.type') end,
  case
    when kind not in ('errored', 'rolling_back') then null
    when sensitive and try(body ->> '$.error.message') is not null then '[REDACTED]'
    else try(body ->> '$.error.message')
  end
from nb.entries
where seq > $1 and kind in ('created', 'completed', 'errored', 'rolling_back')
"""

# Owners and claims first: what they make void decides what counts.
OWNED = """
update {home}.known_instances as i
set token = greatest(i.token, f.token), fence_seq = greatest(i.fence_seq, f.seq)
from (
  select created_seq, max(token) as token, max(seq) as seq
  from nb.entries
  where seq > $1 and token > 1 and kind in ('claimed', 'restarted', 'terminating', 'terminated')
  group by created_seq
) as f
where f.created_seq = i.created_seq
"""
OWN = "update nb.known_instances set token = $2, fence_seq = $3 where created_seq = $1"
"""The same for one claim, planned in a third of the time."""

# What an instance's own entries say is folded by known.py.
LIFE = f"""
select
  e.created_seq, e.seq, e.kind, epoch_us(e.recorded_at),
  case when e.kind = 'activated' then try(e.body ->> '$.code_hash') end,
  case when e.kind = 'restarted' then coalesce(try_cast(try(e.body ->> '$.keep_below') as integer), 0) end
from {{entries}} as e
anti join {{home}}.dropped as d on d.seq = e.seq
where e.step is null and e.kind not in {_ASIDE}
order by e.seq
"""  # noqa: S608 - no text of a user is in it
LIVES = """
update {home}.known_instances as i
set
  status = l.status,
  started_at = l.started_at,
  ended_at = l.ended_at,
  ended_seq = l.ended_seq,
  code_hash = coalesce(l.code_hash, i.code_hash),
  anew_seq = l.anew_seq
from (
  select
    unnest($1::bigint[]) as created_seq,
    unnest($2::varchar[]) as status,
    unnest($3::timestamptz[]) as started_at,
    unnest($4::timestamptz[]) as ended_at,
    unnest($5::bigint[]) as ended_seq,
    unnest($6::varchar[]) as code_hash,
    unnest($7::bigint[]) as anew_seq
) as l
where l.created_seq = i.created_seq
"""

# Entries that do not count (any more). Void: they came in under a token when a later fence had ended it. Dropped by a restart
# (from one item of a map: the item, the steps in it, and the map's own); by a retry (failed steps; of maps that it opens again
# their own and those of failed items; all that rollback handlers left; in what was rolled back all from the first undone on,
# of a map that was undone in part its own and those of its undone items).
DROPPED = """
insert into {home}.dropped
with of as materialized (
  select seq, created_seq, token, kind, step, count, key, "order", case when step is null then body end as body
  from {entries}
),
void as materialized (
  select e.seq
  from of as e
  semi join (
    select created_seq, seq, token
    from of
    where token > 1 and kind in ('claimed', 'restarted', 'terminating', 'terminated', 'deleted')
  ) as f on f.created_seq = e.created_seq and f.token > e.token and f.seq < e.seq
  where e.token > 0
),
turns as materialized (
  select
    created_seq,
    seq,
    kind,
    coalesce(try_cast(try(body ->> '$.keep_below') as integer), case when kind = 'restarted' then 0 end) as keep_below,
    body
  from of
  where kind in ('restarted', 'retried') and seq not in (from void)
)
select seq from void
union
select e.seq
from of as e
semi join turns as t on t.created_seq = e.created_seq and t.seq > e.seq and t.keep_below <= coalesce(e."order", 0)
where e.step is not null
union
select e.seq
from (
  select x.created_seq, split_part(x.kind, '.', 1) as type, x.step, x.count, x.key, max(x.seq) as seq
  from (
    select *, from_json(try(json_extract(body, '$.maps')), '["VARCHAR"]') as maps
    from turns
    where kind = 'retried'
  ) as r
  join of as x on x.created_seq = r.created_seq and x.seq < r.seq
  where x.step is not null
    and x.seq not in (from void)
    and (
      starts_with(x.kind, 'rollback.')
      or (split_part(x.kind, '.', 2) = 'failed' and (x.kind <> 'map.failed' or list_contains(r.maps, x.count || ' ' || x.step)))
      or (x.kind = 'map.finished' and x.key is null and list_contains(r.maps, x.count || ' ' || x.step))
    )
  group by all
) as d
join of as e
  on e.created_seq = d.created_seq
  and split_part(e.kind, '.', 1) = d.type
  and e.step = d.step
  and e.count = d.count
  and e.key is not distinct from d.key
  and e.seq <= d.seq
union
select e.seq
from (
  select created_seq, seq, try(body ->> '$.undone.map') as map, unnest(list_append(keys, null)) as key
  from (
    select *, from_json(try(json_extract(body, '$.undone.keys')), '["VARCHAR"]') as keys
    from turns
    where kind = 'retried' and try(body ->> '$.undone.map') is not null
  )
) as u
join of as e on e.created_seq = u.created_seq and e.key is not distinct from u.key and e.seq < u.seq
where starts_with(e.kind, 'map.') and e.count || ' ' || e.step = u.map
union
select e.seq
from (
  select
    created_seq,
    seq,
    try(body ->> '$.item[0]') as step,
    try_cast(try(body ->> '$.item[1]') as integer) as count,
    try(body ->> '$.item[2]') as key
  from turns
  where try(body ->> '$.item') is not null
) as i
join of as e on e.created_seq = i.created_seq and e.seq < i.seq
where e.step is not null
  and case
    when starts_with(e.kind, 'map.') then e.step = i.step and e.count = i.count and (e.key is null or e.key = i.key)
    else e.key = i.step || case when i.count = 1 then '' else '#' || i.count end || '[' || i.key || ']'
  end
"""

# Entries of steps that count, with what the statements below ask of them.
COUNTING = """
select
  e.created_seq,
  split_part(e.kind, '.', 1) as type,
  e.step,
  e.count,
  e.key,
  e.seq,
  e.kind,
  ends_with(e.kind, '.finished') or ends_with(e.kind, '.failed') as is_end,
  e.attempt,
  e.recorded_at,
  coalesce(e.started_at, e.recorded_at) as started_at
from {entries} as e
anti join {home}.dropped as d on d.seq = e.seq
where e.step is not null
"""

# A step stands at its first end, else at its last entry.
ENDED = """
update nb.entries as e
set whole = true, began_at = s.began_at
from (
  select min(seq) filter (is_end) as seq, arg_min(started_at, seq) as began_at
  from {counting}
  group by created_seq, type, step, count, key
) as s
where e.seq = s.seq
"""

# Which entry is the last of each is found first, from short columns; few bodies are read.
OPEN = f"""
insert into {{home}}.known_steps
select
  o.created_seq,
  o.type,
  o.step,
  o.count,
  o.key,
  case
    when not ends_with(last.kind, '.started') then split_part(last.kind, '.', 2)
    when o.type = 'sleep' then 'sleeping'
    when o.type in ('wait', 'child') then 'waiting'
    else 'running'
  end,
  coalesce(last.attempt, 0),
  o.began_at,
  case when ends_with(last.kind, '.cancelled') then last.recorded_at end,
  last.seq,
  try(last.body ->> '$.error.type'),
  {_SHOWN},
  coalesce(try(last.body ->> '$.code_hash'), try(first.body ->> '$.code_hash')),
  case when last.kind = 'wait.started' then try(last.body ->> '$.event_type') end
from (
  select created_seq, type, step, count, key, max(seq) as seq, min(seq) as first_seq, arg_min(started_at, seq) as began_at
  from {{counting}}
  group by created_seq, type, step, count, key
  having not bool_or(is_end)
) as o
join nb.entries as last on last.seq = o.seq
join nb.entries as first on first.seq = o.first_seq
"""  # noqa: S608 - no text of a user is in it

# All but those that ended their step, of which the entry tells all. What came after the end of a step changes nothing.
ATTEMPTS = f"""
insert into {{home}}.known_attempts
select
  t.created_seq,
  t.type,
  t.step,
  t.count,
  t.key,
  t.attempt,
  case
    when ends_with(last.kind, '.started') then 'running'
    when ends_with(last.kind, '.retrying') then 'failed'
    else split_part(last.kind, '.', 2)
  end,
  t.started_at,
  case when not ends_with(last.kind, '.started') then last.recorded_at end,
  last.seq,
  try(last.body ->> '$.error.type'),
  {_SHOWN}
from (
  select a.created_seq, a.type, a.step, a.count, a.key, a.attempt, max(a.seq) as seq, arg_min(a.started_at, a.seq) as started_at
  from {{counting}} as a
  join (
    select created_seq, type, step, count, key, min(seq) filter (is_end) as end_seq
    from {{counting}}
    where type <> 'rollback'
    group by created_seq, type, step, count, key
    having count(*) > 1 or not bool_or(is_end)
  ) as s
    on s.created_seq = a.created_seq
    and s.type = a.type
    and s.step = a.step
    and s.count = a.count
    and s.key is not distinct from a.key
    and (s.end_seq is null or a.seq <= s.end_seq)
  where a.attempt is not null
  group by a.created_seq, a.type, a.step, a.count, a.key, a.attempt
  having not bool_or(a.seq = s.end_seq) or max(s.end_seq) is null
) as t
join nb.entries as last on last.seq = t.seq
"""  # noqa: S608 - no text of a user is in it

EVERYTHING = "nb.entries"
OF_THESE = "(with of as materialized (from nb.entries where created_seq in (select unnest($1))) from of)"
# All entries of the steps of these instances of which something was recorded after $2 that is not whole.
OF_TOUCHED = """(
  with of as materialized (from nb.entries where created_seq in (select unnest($1)) and step is not null)
  from of as e
  semi join (from of where seq > $2 and whole is not true) as t
    on t.created_seq = e.created_seq
    and t.step = e.step
    and t.count = e.count
    and t.key is not distinct from e.key
    and split_part(t.kind, '.', 1) = split_part(e.kind, '.', 1)
)"""
FORGET = """
delete from nb.{table} as k
using temp.touched as t
where t.created_seq = k.created_seq and t.type = k.type and t.step = k.name and t.count = k.count
  and t.key is not distinct from k.key
"""
