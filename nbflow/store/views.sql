-- The views over `entries`. This text is run again over every store that an older nbflow has made.
--
-- What is on the way to the five views is in the schema `internal`. They are written so that a condition on an instance
-- reaches the scan of `entries`, whose rows lie in the order in which they came; so that a column which nobody asks for
-- costs nothing; and so that what seldom is (a restart, a claim after a claim) is found by the few kinds that bring it about.

create schema internal;

-- The JSON form of a stored value, where it has one; what its step calls sensitive is not shown.
create macro internal.json(value, body, hidden) as
  case
    when value is null then null
    when hidden then '"[REDACTED]"'::json
    when value >= 'j'::blob and value < 'k'::blob then try_cast(decode(value)[2:] as json)
    else try_cast(body ->> '$.json' as json)
  end;

-- A path may be joined to the folder of artefacts only where it stays in there.
create macro internal.is_inside(uri) as
  regexp_full_match(uri, '[\w\-][\w.\-]*/[\w\-][\w.\-]*/[\w\-][\w.\-]*');

create macro internal.shown(message, hidden) as
  case when message is not null and hidden then '[REDACTED]' else message end;

create macro internal.type(kind) as split_part(kind, '.', 1);

create macro internal.what(kind) as split_part(kind, '.', 2);

create macro internal.is_end(kind) as (ends_with(kind, '.finished') or ends_with(kind, '.failed'));

-- The one entry of a step that says where it stands has the highest rank: its first end, else its last entry.
create macro internal.rank(kind, seq) as
  case when internal.is_end(kind) then 4611686018427387904 - seq else seq end;

-- Conditions on rare kinds are written so that the scan itself tests them and reads no other column of the rest: a list of
-- words or equalities would be tested after it.
create macro internal.is_over(kind) as
  (starts_with(kind, 'completed') or starts_with(kind, 'errored') or starts_with(kind, 'terminated'));

create macro internal.is_turn(kind) as (starts_with(kind, 'restarted') or starts_with(kind, 'retried'));

create macro internal.is_fence(kind) as
  (starts_with(kind, 'claimed') or starts_with(kind, 'restarted') or starts_with(kind, 'terminated'));

create macro internal.is_of_events(kind) as
  (starts_with(kind, 'event') or starts_with(kind, 'set_aside') or starts_with(kind, 'wait.finished'));

create view internal.instances as
select
  e.seq as created_seq,
  split_part(e.key, '/', 1) as workflow,
  split_part(e.key, '/', 2) as instance_id,
  e.recorded_at as created_at,
  e.sensitive,
  e.body,
  e.value
from main.entries as e
where e.kind = 'created'
  and e.seq not in (select created_seq from main.entries where kind = 'deleted');

-- Entries that came in under a token when a later fence had ended it: they do not count.
create view internal.void as
select e.seq
from main.entries as e
semi join (
  select
    created_seq,
    seq,
    token
  from main.entries
  where token > 1 and (internal.is_fence(kind) or starts_with(kind, 'deleted'))
) as f on f.created_seq = e.created_seq and f.token > e.token and f.seq < e.seq
where e.token > 0;

-- What begins steps over: all of them (a restart, keep_below 0), or those whose order is not below keep_below; a retry may
-- begin some over too, else its keep_below is empty.
create view internal.turns as
select
  e.created_seq,
  e.seq,
  e.kind,
  coalesce(try_cast(e.body ->> '$.keep_below' as integer), case when e.kind = 'restarted' then 0 end) as keep_below,
  e.body
from main.entries as e
where internal.is_turn(e.kind)
  and e.seq not in (select seq from internal.void);

-- Whether a retry opens that map again.
create macro internal.reopens(retry, map, number) as
  coalesce(list_contains(from_json(json_extract(retry, '$.maps'), '["VARCHAR"]'), number || ' ' || map), false);

-- Entries of steps that do not count (any more): void ones, those that a restart dropped (a restart from one item of a map:
-- the item, the steps in it, and the map's own), and those that a retry dropped (of failed steps, of maps that it opens again
-- their own and those of failed items, and all that rollback handlers left).
create view internal.gone as
with void as materialized (from internal.void),
turns as materialized (from internal.turns)
select seq
from void
union all
select e.seq
from main.entries as e
semi join turns as t on t.created_seq = e.created_seq and t.seq > e.seq and t.keep_below <= coalesce(e."order", 0)
where e.step is not null
union all
select e.seq
from (
  select
    x.created_seq,
    internal.type(x.kind) as type,
    x.step,
    x.count,
    x.key,
    max(x.seq) as seq
  from (from turns where kind = 'retried') as r
  join main.entries as x on x.created_seq = r.created_seq and x.seq < r.seq
  where x.step is not null
    and x.seq not in (select seq from void)
    and (
      starts_with(x.kind, 'rollback.')
      or (internal.what(x.kind) = 'failed' and (x.kind <> 'map.failed' or internal.reopens(r.body, x.step, x.count)))
      or (x.kind = 'map.finished' and x.key is null and internal.reopens(r.body, x.step, x.count))
    )
  group by all
) as d
join main.entries as e
  on e.created_seq = d.created_seq
  and internal.type(e.kind) = d.type
  and e.step = d.step
  and e.count = d.count
  and e.key is not distinct from d.key
  and e.seq <= d.seq
union all
select e.seq
from (
  select
    created_seq,
    seq,
    body ->> '$.item[0]' as step,
    try_cast(body ->> '$.item[1]' as integer) as count,
    body ->> '$.item[2]' as key
  from turns
  where body ->> '$.item' is not null
) as i
join main.entries as e on e.created_seq = i.created_seq and e.seq < i.seq
where e.step is not null
  and case
    when starts_with(e.kind, 'map.') then e.step = i.step and e.count = i.count and (e.key is null or e.key = i.key)
    else e.key = i.step || case when i.count = 1 then '' else '#' || i.count end || '[' || i.key || ']'
  end;

-- The last fence of an instance: an attempt that was running before it will never be heard of again.
create view internal.fences as
select
  created_seq,
  max(seq) as seq
from main.entries
where internal.is_fence(kind)
group by created_seq;

create macro internal.state(kind, seq, fence) as
  case internal.what(kind)
    when 'started' then
      case internal.type(kind)
        when 'sleep' then 'sleeping'
        when 'wait' then 'waiting'
        when 'child' then 'waiting'
        else case when seq < fence then 'interrupted' else 'running' end
      end
    else internal.what(kind)
  end;

-- Maps of which every open item waits for its next attempt: they wait too (S5).
create view internal.resting_maps as
select created_seq, step, count
from (
  select
    e.created_seq,
    e.step,
    e.count,
    e.key,
    arg_max(e.kind, internal.rank(e.kind, e.seq)) as kind
  from main.entries as e
  semi join (
    select created_seq, step, count
    from main.entries
    where starts_with(kind, 'map.retrying')
  ) as r on r.created_seq = e.created_seq and r.step = e.step and r.count = e.count
  where e.key is not null
    and starts_with(e.kind, 'map.')
    and e.seq not in (select seq from internal.gone)
  group by e.created_seq, e.step, e.count, e.key
)
where kind in ('map.started', 'map.retrying', 'map.interrupted')
group by created_seq, step, count
having bool_and(kind = 'map.retrying');

-- Events that no restart has dropped: one from a step keeps them, free to be taken again where their wait fell.
create view internal.events as
select
  e.*,
  e.body ->> '$.type' as type
from (
  select
    h.created_seq,
    h.body ->> '$.event_id' as event_id,
    min(h.seq) filter (h.kind = 'event') as seq,
    arg_min(h.recorded_at, h.seq) filter (h.kind = 'event') as sent_at,
    arg_min(h.sensitive, h.seq) filter (h.kind = 'event') as sensitive,
    arg_min(h.body, h.seq) filter (h.kind = 'event') as body,
    arg_min(h.value, h.seq) filter (h.kind = 'event') as value,
    min(h.recorded_at) filter (h.kind = 'wait.finished') as taken_at
  from main.entries as h
  where internal.is_of_events(h.kind) and h.seq not in (select seq from internal.gone)
  group by h.created_seq, event_id
) as e
left join (
  select
    created_seq,
    max(seq) as seq
  from internal.turns
  where kind = 'restarted' and keep_below = 0
  group by created_seq
) as r on r.created_seq = e.created_seq
where e.seq is not null
  and (r.seq is null or r.seq < e.seq);

-- The table of nbflow/core/status.py: (status, what happened) -> status; anything else changes nothing.
create macro internal.after(status, kind) as
  case
    when kind = 'restarted' then 'queued'
    when status in ('queued', 'running') then
      case kind
        when 'activated' then 'running'
        when 'pausing' then 'waitingForPause'
        when 'paused' then 'paused'
        when 'rolling_back' then 'rollingBack'
        when 'completed' then 'complete'
        when 'errored' then 'errored'
        when 'terminated' then 'terminated'
        else status
      end
    when status = 'waitingForPause' then
      case kind
        when 'paused' then 'paused'
        when 'resumed' then 'running'
        when 'rolling_back' then 'rollingBack'
        when 'completed' then 'complete'
        when 'errored' then 'errored'
        when 'terminated' then 'terminated'
        else status
      end
    when status = 'paused' and kind = 'resumed' then 'running'
    when status = 'paused' and kind = 'rolling_back' then 'rollingBack'
    when status = 'paused' and kind = 'terminated' then 'terminated'
    when status = 'rollingBack' and kind = 'errored' then 'errored'
    when status = 'rollingBack' and kind = 'terminated' then 'terminated'
    when status in ('errored', 'complete') and kind = 'retried' then 'running'
    else status
  end;

-- The life of each instance: its status, save whether it waits, and what the last entries about it say.
create view internal.lives as
select
  e.created_seq,
  list_reduce(list(e.kind order by e.seq), lambda status, kind : internal.after(status, kind), 'queued') as status,
  min(e.recorded_at) filter (e.kind = 'activated' and e.seq > coalesce(r.seq, 0)) as started_at,
  arg_max(e.body, e.seq) filter (e.kind = 'activated') as activated,
  max(e.seq) filter (internal.is_over(e.kind)) as end_seq,
  arg_max(e.recorded_at, e.seq) filter (internal.is_over(e.kind)) as ended_at
from main.entries as e
left join (
  select
    created_seq,
    max(seq) as seq
  from main.entries
  where kind = 'restarted'
  group by created_seq
) as r on r.created_seq = e.created_seq
where e.step is null
  and e.kind not in ('created', 'claimed', 'released', 'event', 'set_aside')
  and e.seq not in (select seq from internal.void)
group by e.created_seq;

-- Instances of which everything open waits, and not for an event that is there already. Of those that are over some are in it.
create view internal.waiting as
with gone as materialized (from internal.gone),
turns as materialized (from internal.turns)
select s.created_seq
from (
  select
    e.created_seq,
    internal.type(e.kind) as type,
    e.step,
    e.count,
    e.key,
    internal.type(e.kind) = 'map' and e.key is not null as is_item,  -- the map's own row says what its items do
    arg_max(e.kind, internal.rank(e.kind, e.seq)) as kind,
    max(e.seq) as seq
  from main.entries as e
  semi join (
    select c.seq
    from main.entries as c
    anti join (
      select created_seq
      from main.entries
      where internal.is_over(kind) or internal.is_turn(kind)
      group by created_seq
      having not bool_or(internal.is_turn(kind))
    ) as over on over.created_seq = c.seq
    where c.kind = 'created'
  ) as unfinished on unfinished.seq = e.created_seq
  where e.step is not null and e.seq not in (select seq from gone)
  group by e.created_seq, type, e.step, e.count, e.key, is_item
  having not internal.is_end(arg_max(e.kind, internal.rank(e.kind, e.seq)))
) as s
left join internal.fences as f on f.created_seq = s.created_seq
left join (
  select distinct
    w.created_seq,
    w.seq
  from main.entries as w
  join (
    select
      h.created_seq,
      max(h.seq) filter (h.kind = 'event') as seq,
      max(h.body ->> '$.type') as type
    from main.entries as h
    where internal.is_of_events(h.kind) and h.seq not in (select seq from gone)
    group by h.created_seq, h.body ->> '$.event_id'
    having bool_and(h.kind = 'event')
  ) as e on e.created_seq = w.created_seq and e.type = w.body ->> '$.event_type'
  left join (
    select
      created_seq,
      max(seq) as seq
    from turns
    where kind = 'restarted' and keep_below = 0
    group by created_seq
  ) as r on r.created_seq = w.created_seq
  where w.kind = 'wait.started' and (r.seq is null or r.seq < e.seq)
) as e on e.seq = s.seq
left join internal.resting_maps as m
  on m.created_seq = s.created_seq
  and m.step = s.step
  and m.count = s.count
  and s.key is null
  and s.kind = 'map.started'
group by s.created_seq
having bool_or(m.step is not null or (not s.is_item and internal.state(s.kind, s.seq, f.seq) in ('retrying', 'sleeping', 'waiting')))
  and not bool_or(m.step is null and internal.state(s.kind, s.seq, f.seq) = 'running')
  and count(e.seq) = 0;

create view instances as
select
  i.workflow,
  i.instance_id,
  i.created_seq,
  case when l.status = 'running' and w.created_seq is not null then 'waiting' else coalesce(l.status, 'queued') end as status,
  i.created_at,
  l.started_at,
  case when l.status in ('complete', 'errored', 'terminated') then l.ended_at end as ended_at,
  internal.json(i.value, i.body, i.sensitive) as params,
  case when l.status = 'complete' and e.kind = 'completed' then internal.json(e.value, e.body, e.sensitive) end as output,
  case when l.status = 'errored' then e.body ->> '$.error.type' end as error_type,
  case when l.status = 'errored' then internal.shown(e.body ->> '$.error.message', e.sensitive) end as error_message,
  coalesce(l.activated ->> '$.code_hash', i.body ->> '$.code_hash') as code_hash,
  coalesce(i.body ->> '$.parent.id', i.body ->> '$.parent') as parent_id
from internal.instances as i
left join internal.lives as l on l.created_seq = i.created_seq
left join internal.waiting as w on w.created_seq = i.created_seq
left join (from main.entries where internal.is_over(kind)) as e on e.seq = l.end_seq;
comment on view instances is 'one row per instance: status, parameters, output';
comment on column instances.workflow is 'name of the workflow';
comment on column instances.instance_id is 'id; it may be used again after delete';
comment on column instances.created_seq is 'the instance: seq of the entry that created it, the key to join by';
comment on column instances.status is 'queued, running, waiting, paused, waitingForPause, rollingBack, errored, terminated or complete';
comment on column instances.created_at is 'when it was created';
comment on column instances.started_at is 'when run was first called since the last restart';
comment on column instances.ended_at is 'when it was finished; empty before';
comment on column instances.params is 'JSON of the parameters, where they have a JSON form';
comment on column instances.output is 'JSON of what run returned, where it has a JSON form';
comment on column instances.error_type is 'class of the error that ended it';
comment on column instances.error_message is 'text of the error that ended it';
comment on column instances.code_hash is 'source of the workflow it ran last: hash in sources';
comment on column instances.parent_id is 'id of the instance that made it';

-- Of most steps one entry tells all ("whole"); the entries of the others are put together.
create view steps as
with gone as materialized (from internal.gone)
select
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.step as name,
  e.count,
  e.key,
  internal.type(e.kind) as type,
  'finished' as status,
  e.attempt as attempts,
  e.started_at,
  e.recorded_at as ended_at,
  date_diff('microsecond', e.started_at, e.recorded_at) / 1e6 as duration_s,
  internal.json(e.value, e.body, e.sensitive) as output,
  e.body ->> '$.output_type' as output_type,
  case
    when e.sensitive is not true and internal.is_inside(e.uri)
      then (select value from main.meta where key = 'artifacts') || '/' || e.uri
  end as output_uri,
  null::varchar as error_type,
  null::varchar as error_message,
  e.body ->> '$.code_hash' as code_hash
from main.entries as e
join internal.instances as i on i.created_seq = e.created_seq
where e.whole
  and e.seq not in (select seq from gone)
union all
select
  i.workflow,
  i.instance_id,
  s.created_seq,
  s.step,
  s.count,
  s.key,
  s.type,
  case when m.step is null then internal.state(s.kind, s.seq, n.seq) else 'retrying' end,
  coalesce(s.attempt, 0),
  s.started_at,
  case when internal.is_end(s.kind) or ends_with(s.kind, '.cancelled') then s.recorded_at end as ended_at,
  date_diff('microsecond', s.started_at, ended_at) / 1e6,
  case when ends_with(s.kind, '.finished') then internal.json(s.value, s.body, s.sensitive) end,
  s.body ->> '$.output_type',
  case
    when s.sensitive is not true and internal.is_inside(s.uri)
      then (select value from main.meta where key = 'artifacts') || '/' || s.uri
  end,
  case when not ends_with(s.kind, '.finished') then s.body ->> '$.error.type' end,
  case when not ends_with(s.kind, '.finished') then internal.shown(s.body ->> '$.error.message', s.sensitive) end,
  coalesce(s.body ->> '$.code_hash', s.first_body ->> '$.code_hash')
from (
  select
    e.created_seq,
    internal.type(e.kind) as type,
    e.step,
    e.count,
    e.key,
    arg_max(e.kind, internal.rank(e.kind, e.seq)) as kind,
    arg_max(e.seq, internal.rank(e.kind, e.seq)) as seq,
    arg_max(e.recorded_at, internal.rank(e.kind, e.seq)) as recorded_at,
    arg_max_null(e.attempt, internal.rank(e.kind, e.seq)) as attempt,
    arg_min(coalesce(e.started_at, e.recorded_at), e.seq) as started_at,
    arg_min(e.body, e.seq) as first_body,
    arg_max_null(e.uri, internal.rank(e.kind, e.seq)) as uri,
    arg_max_null(e.sensitive, internal.rank(e.kind, e.seq)) as sensitive,
    arg_max(e.body, internal.rank(e.kind, e.seq)) as body,
    arg_max_null(e.value, internal.rank(e.kind, e.seq)) as value
  from main.entries as e
  where e.step is not null
    and e.whole is not true
    and e.seq not in (select seq from gone)
  group by e.created_seq, internal.type(e.kind), e.step, e.count, e.key
) as s
join internal.instances as i on i.created_seq = s.created_seq
left join internal.fences as n on n.created_seq = s.created_seq
left join internal.resting_maps as m
  on m.created_seq = s.created_seq
  and m.step = s.step
  and m.count = s.count
  and s.key is null
  and s.kind = 'map.started';
comment on view steps is 'one row per step, sleep, wait and map item; output_uri is the path of a stored table or array';
comment on column steps.workflow is 'name of the workflow';
comment on column steps.instance_id is 'id of the instance';
comment on column steps.created_seq is 'the instance, the key to join by';
comment on column steps.name is 'name of the step';
comment on column steps.count is 'which call of that name, 1-based';
comment on column steps.key is 'key of a map item; of a step in an item''s body that item; empty for others';
comment on column steps.type is 'do, sleep, wait, child, map (with a key: an item of it) or rollback';
comment on column steps.status is 'running, retrying, sleeping, waiting, finished, failed, cancelled or interrupted';
comment on column steps.attempts is 'tries so far; 0 where there are none';
comment on column steps.started_at is 'when it began';
comment on column steps.ended_at is 'when it ended; empty before';
comment on column steps.duration_s is 'seconds from begin to end, waits between tries counted in';
comment on column steps.output is 'JSON of the result, where it has a JSON form';
comment on column steps.output_type is 'type of the result';
comment on column steps.output_uri is 'path of the file that holds a table, an array or a large result: read_parquet(output_uri)';
comment on column steps.error_type is 'class of the last error';
comment on column steps.error_message is 'text of the last error';
comment on column steps.code_hash is 'code of the body';

create view attempts as
with gone as materialized (from internal.gone)
select
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.step as name,
  e.count,
  e.key,
  e.attempt,
  'finished' as status,
  e.started_at,
  e.recorded_at as ended_at,
  null::varchar as error_type,
  null::varchar as error_message
from main.entries as e
join internal.instances as i on i.created_seq = e.created_seq
where e.whole
  and not starts_with(e.kind, 'rollback.')
  and e.seq not in (select seq from gone)
union all
select
  i.workflow,
  i.instance_id,
  t.created_seq,
  t.step,
  t.count,
  t.key,
  t.attempt,
  case internal.what(t.kind)
    when 'started' then case when t.seq < n.seq then 'interrupted' else 'running' end
    when 'retrying' then 'failed'
    else internal.what(t.kind)
  end,
  t.started_at,
  case when not ends_with(t.kind, '.started') then t.recorded_at end,
  case when not ends_with(t.kind, '.finished') then t.body ->> '$.error.type' end,
  case when not ends_with(t.kind, '.finished') then internal.shown(t.body ->> '$.error.message', t.sensitive) end
from (
  select
    created_seq,
    type,
    step,
    count,
    key,
    attempt,
    max(seq) as seq,
    arg_max(kind, seq) as kind,
    arg_max(recorded_at, seq) as recorded_at,
    arg_max_null(sensitive, seq) as sensitive,
    arg_max(body, seq) as body,
    arg_min(coalesce(started_at, recorded_at), seq) as started_at
  from (
    select
      e.*,
      internal.type(e.kind) as type,
      min(e.seq) filter (internal.is_end(e.kind)) over (
        partition by e.created_seq, internal.type(e.kind), e.step, e.count, e.key
      ) as end_seq
    from main.entries as e
    where e.step is not null
      and e.whole is not true
      and not starts_with(e.kind, 'rollback.')
      and e.seq not in (select seq from gone)
  )
  where attempt is not null
    and (end_seq is null or seq <= end_seq)  -- what came after the end of its step changes nothing
  group by created_seq, type, step, count, key, attempt
) as t
join internal.instances as i on i.created_seq = t.created_seq
left join internal.fences as n on n.created_seq = t.created_seq;
comment on view attempts is 'one row per try of a step';
comment on column attempts.workflow is 'name of the workflow';
comment on column attempts.instance_id is 'id of the instance';
comment on column attempts.created_seq is 'the instance, the key to join by';
comment on column attempts.name is 'name of the step';
comment on column attempts.count is 'which call of that name, 1-based';
comment on column attempts.key is 'key of a map item; empty for others';
comment on column attempts.attempt is 'which try, 1-based';
comment on column attempts.status is 'running, finished, failed, cancelled or interrupted';
comment on column attempts.started_at is 'when it began';
comment on column attempts.ended_at is 'when it ended; empty before';
comment on column attempts.error_type is 'class of its error';
comment on column attempts.error_message is 'text of its error';

create view events as
select
  i.workflow,
  i.instance_id,
  i.created_seq,
  e.type,
  internal.json(e.value, e.body, e.sensitive) as payload,
  e.sent_at,
  e.body ->> '$.by' as sent_by,
  e.taken_at as consumed_at
from internal.events as e
join internal.instances as i on i.created_seq = e.created_seq;
comment on view events is 'one row per event sent to an instance; consumed_at is empty until a wait has taken it';
comment on column events.workflow is 'name of the workflow';
comment on column events.instance_id is 'id of the instance';
comment on column events.created_seq is 'the instance, the key to join by';
comment on column events.type is 'type of the event';
comment on column events.payload is 'JSON of the payload, where it has a JSON form';
comment on column events.sent_at is 'when it was recorded';
comment on column events.sent_by is 'who sent it';
comment on column events.consumed_at is 'when a wait took it; empty before';

create view history as
select
  e.seq,
  e.recorded_at,
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.token,
  e.kind,
  e.step,
  e.count,
  case when e.kind <> 'created' then e.key end as key,
  e.body,
  case when e.sensitive is not true then e.value end as value
from main.entries as e
join internal.instances as i on i.created_seq = e.created_seq;
comment on view history is 'the entries of instances that are not deleted, with the names of workflow and instance';
comment on column history.seq is 'place in the history';
comment on column history.recorded_at is 'when it was recorded';
comment on column history.workflow is 'name of the workflow';
comment on column history.instance_id is 'id of the instance';
comment on column history.created_seq is 'the instance, the key to join by';
comment on column history.token is 'the claim under which it was written; 0 for what others say';
comment on column history.kind is 'what happened, such as created, do.finished, event';
comment on column history.step is 'name of the step; empty for the instance itself';
comment on column history.count is 'which call of that name, 1-based';
comment on column history.key is 'key of a map item';
comment on column history.body is 'JSON: what else the kind carries';
comment on column history.value is 'the encoded value';

create view logs as
select
  a.workflow,
  a.instance_id,
  a.created_seq,
  a.name,
  a.count,
  a.key,
  a.attempt,
  l.part,
  l.item.at as logged_at,
  l.item.stream as stream,
  l.item.text as text
from (
  select
    *,
    unnest(from_json(items, '[{"stream":"VARCHAR","at":"TIMESTAMPTZ","text":"VARCHAR"}]')) as item
  from main.log_chunks
  where type <> 'rollback'
) as l
join main.attempts as a
  on a.created_seq = l.created_seq
  and a.name = l.step
  and a.count = l.count
  and a.key is not distinct from l.key
  and a.attempt = l.attempt
  and a.started_at = l.started_at;
comment on view logs is 'one row for each piece of what a step printed, logged, warned and displayed';
comment on column logs.workflow is 'name of the workflow';
comment on column logs.instance_id is 'id of the instance';
comment on column logs.created_seq is 'the instance, the key to join by';
comment on column logs.name is 'name of the step';
comment on column logs.count is 'which call of that name, 1-based';
comment on column logs.key is 'key of a map item; empty for others';
comment on column logs.attempt is 'which try, 1-based';
comment on column logs.part is 'place among the parts of the attempt';
comment on column logs.logged_at is 'when it was put out';
comment on column logs.stream is 'stdout, stderr, log, warning, display or note';
comment on column logs.text is 'the text';
