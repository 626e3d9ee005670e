-- The history of nbflow's workflows.
--
-- A tour. One table matters: `entries`. It is only ever appended to; each row says that one thing happened to one
-- instance of a workflow: it was created, an engine claimed it, `run` was called, an attempt of a step started, a step
-- finished with a value, somebody sent an event. Everything else that can be asked is a view of it:
--
--     from instances              one row per instance: its status, its parameters, its output
--     from steps                  one row per step, sleep, wait and item of a map
--     from attempts               one row per try of a step
--     from events                 one row per event sent
--     from history                the entries themselves, with the name of workflow and instance
--
-- An instance is known by `created_seq`, the `seq` of the entry that created it: an id may be used again after `delete`.
-- Entries of an engine carry the `token` of its claim. When somebody else has claimed, restarted, terminated or deleted
-- the instance meanwhile (a "fence": the token rises), entries that still come in under an older token do not count.
-- What a restart or a retry has dropped stays in `history`, and is left out of the other views.
--
-- What bodies printed is in `logs` (logs.sql). `loaded`, `sources` and `meta` serve nbflow itself. There are no keys and no indexes: rows are found by the order in
-- which they came. Views and macros whose name begins with an underscore are steps on the way to the five above.

create table entries (
  seq bigint not null,
  recorded_at timestamptz not null,
  created_seq bigint not null,
  token integer not null,
  kind varchar not null,
  step varchar,
  count integer,
  key varchar,
  body varchar not null,
  value blob
);
comment on table entries is 'the history: one row for each thing that happened, only ever appended to';
comment on column entries.seq is 'place in the history, 1, 2, 3 … without gaps except for what compact has removed';
comment on column entries.recorded_at is 'when it was recorded';
comment on column entries.created_seq is 'the instance: seq of the entry that created it';
comment on column entries.token is 'the claim under which it was written; 0 for what others say about the instance';
comment on column entries.kind is 'what happened, such as created, completed, do.started, wait.finished';
comment on column entries.step is 'name of the step it is about; empty for the instance itself';
comment on column entries.count is 'which call of that name, 1-based';
comment on column entries.key is 'key of a map item; workflow/id in the entry that created an instance';
comment on column entries.body is 'JSON: what else the kind carries';
comment on column entries.value is 'an encoded value: parameters, output, payload; j and JSON where it is plain JSON';

create table loaded (
  journal varchar not null,
  position bigint not null,
  closed boolean not null
);
comment on table loaded is 'how far the journal of each engine has been loaded; changes in the commit that appends';

create table sources (
  hash varchar not null,
  text varchar not null
);
comment on table sources is 'source text of workflows and steps, once per hash';

create table meta (
  key varchar not null,
  value varchar not null
);
comment on table meta is 'schema version, the id of this store, number of entries purged, folder of the artefacts';

-- Shown instead of a value that its step calls sensitive.
create macro _withheld(body) as coalesce(body ->> '$.sensitive' = 'true', false);

-- The JSON form of a stored value, where it has one.
create macro _json(value, body) as
  case
    when value is null then null
    when _withheld(body) then '"[REDACTED]"'::json
    when value >= 'j'::blob and value < 'k'::blob then try_cast(decode(value)[2:] as json)
    else try_cast(body ->> '$.json' as json)
  end;

create macro _shown(message, body) as case when message is not null and _withheld(body) then '[REDACTED]' else message end;

create view _instances as
select
  e.seq as created_seq,
  split_part(e.key, '/', 1) as workflow,
  split_part(e.key, '/', 2) as instance_id,
  e.recorded_at as created_at,
  e.body,
  e.value
from entries as e
anti join (select created_seq from entries where kind = 'deleted') as d on d.created_seq = e.seq
where e.kind = 'created';

-- Entries that came in under a token when a later fence had ended it: they do not count.
create view _void as
select e.seq
from (
  select
    created_seq,
    token,
    lead(min(seq)) over (partition by created_seq order by token) as until
  from entries
  where kind in ('claimed', 'restarted', 'terminated', 'deleted')
  group by created_seq, token
) as s
join entries as e on e.created_seq = s.created_seq and e.token = s.token and e.seq >= s.until;

-- Entries about instances themselves, that count.
create view _counted as
select e.*
from entries as e
anti join _void as v on v.seq = e.seq
where e.step is null;

-- What begins steps over: all of them (a restart, keep_below 0), or those whose order is not below keep_below.
create view _restarts as
select
  created_seq,
  seq,
  kind,
  coalesce(try_cast(body ->> '$.keep_below' as integer), 0) as keep_below
from _counted
where kind in ('restarted', 'retried')
  and (kind = 'restarted' or body ->> '$.keep_below' is not null);

-- Entries of steps that do not count (any more): void ones, those that a restart dropped, and those that a retry dropped
-- (of failed steps, and all that rollback handlers left).
create view _gone as
select seq
from _void
union
select e.seq
from (
  select
    r.seq as restart,
    o.created_seq,
    split_part(o.kind, '.', 1) as type,
    o.step,
    o.count,
    o.key
  from _restarts as r
  join entries as o on o.created_seq = r.created_seq and o.seq < r.seq
  anti join _void as v on v.seq = o.seq
  where o.step is not null
  group by all
  having max(r.keep_below) = 0
    or coalesce(arg_max(try_cast(o.body ->> '$.order' as integer), o.seq), 0) >= max(r.keep_below)
) as d
join entries as e
  on e.created_seq = d.created_seq
  and split_part(e.kind, '.', 1) = d.type
  and e.step = d.step
  and e.count = d.count
  and e.key is not distinct from d.key
  and e.seq < d.restart
union
select e.seq
from (
  select
    f.created_seq,
    split_part(f.kind, '.', 1) as type,
    f.step,
    f.count,
    f.key,
    max(f.seq) as seq
  from (
    select x.*
    from _counted as r
    join entries as x on x.created_seq = r.created_seq and x.seq < r.seq
    where r.kind = 'retried'
      and x.step is not null
      and (split_part(x.kind, '.', 2) = 'failed' or starts_with(x.kind, 'rollback.'))
  ) as f
  anti join _void as v on v.seq = f.seq
  group by all
) as d
join entries as e
  on e.created_seq = d.created_seq
  and split_part(e.kind, '.', 1) = d.type
  and e.step = d.step
  and e.count = d.count
  and e.key is not distinct from d.key
  and e.seq <= d.seq;

create view _step_entries as
select
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.seq,
  e.recorded_at,
  e.kind,
  split_part(e.kind, '.', 1) as type,
  split_part(e.kind, '.', 2) as what,
  e.step,
  e.count,
  e.key,
  e.body
from entries as e
join _instances as i on i.created_seq = e.created_seq
anti join _gone as g on g.seq = e.seq
where e.step is not null;

-- One row per step: its first entry and the one that says where it stands (an end after the end changes nothing).
create view _steps as
select
  workflow,
  instance_id,
  created_seq,
  type,
  step,
  count,
  key,
  min(seq) as first_seq,
  coalesce(min(seq) filter (what in ('finished', 'failed')), max(seq)) as last_seq
from _step_entries
group by workflow, instance_id, created_seq, type, step, count, key;

-- The last fence of an instance: an attempt that was running before it will never be heard of again.
create view _fences as
select
  created_seq,
  max(seq) as seq
from _counted
where kind in ('claimed', 'restarted', 'terminated')
group by created_seq;

create macro _state(kind, seq, fence) as
  case split_part(kind, '.', 2)
    when 'started' then
      case split_part(kind, '.', 1)
        when 'sleep' then 'sleeping'
        when 'wait' then 'waiting'
        when 'child' then 'waiting'
        else case when seq < fence then 'interrupted' else 'running' end
      end
    else split_part(kind, '.', 2)
  end;

create view _taken as
select
  e.created_seq,
  e.body ->> '$.event_id' as event_id,
  min(e.recorded_at) as taken_at
from entries as e
anti join _gone as g on g.seq = e.seq
where e.kind = 'wait.finished'
group by e.created_seq, event_id;

-- Events that no restart has dropped: one from a step keeps them, free to be taken again where their wait fell.
create view _events as
select
  e.seq,
  e.recorded_at,
  e.created_seq,
  e.body,
  e.value,
  e.body ->> '$.type' as type,
  e.body ->> '$.event_id' as event_id,
  t.taken_at
from _counted as e
left join _taken as t on t.created_seq = e.created_seq and t.event_id = e.body ->> '$.event_id'
left join (
  select
    created_seq,
    max(seq) as seq
  from _restarts
  where kind = 'restarted' and keep_below = 0
  group by created_seq
) as r on r.created_seq = e.created_seq
where e.kind = 'event'
  and (r.seq is null or r.seq < e.seq);

-- Events that a wait may take.
create view _free as
select distinct
  e.created_seq,
  e.type
from _events as e
anti join (
  select
    created_seq,
    body ->> '$.event_id' as event_id
  from _counted
  where kind = 'set_aside'
) as s on s.created_seq = e.created_seq and s.event_id = e.event_id
where e.taken_at is null;

-- The table of nbflow/core/status.py: (status, what happened) -> status; anything else changes nothing.
create macro _after(status, kind) as
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

create view _lives as
select
  e.created_seq,
  list_reduce(list(e.kind order by e.seq), lambda status, kind : _after(status, kind), 'queued') as status,
  min(e.recorded_at) filter (e.kind = 'activated' and e.seq > coalesce(r.seq, 0)) as started_at,
  max(e.seq) filter (e.kind = 'activated') as activated_seq,
  max(e.seq) filter (e.kind in ('completed', 'errored', 'terminated')) as end_seq
from _counted as e
left join (select created_seq, max(seq) as seq from _restarts where kind = 'restarted' group by created_seq) as r
  on r.created_seq = e.created_seq
where e.kind not in ('created', 'claimed', 'released', 'event', 'set_aside')
group by e.created_seq;

-- Running instances of which everything open waits, and not for an event that is there already.
create view _waiting as
select s.created_seq
from (
  select
    e.created_seq,
    arg_max(e.kind, e.seq) as kind,
    max(e.seq) as seq,
    arg_max(e.body ->> '$.event_type', e.seq) as event_type
  from entries as e
  join (select created_seq from _lives where status = 'running') as r on r.created_seq = e.created_seq
  anti join _gone as g on g.seq = e.seq
  where e.step is not null
  group by e.created_seq, split_part(e.kind, '.', 1), e.step, e.count, e.key
  having not bool_or(split_part(e.kind, '.', 2) in ('finished', 'failed'))
) as s
left join _fences as f on f.created_seq = s.created_seq
left join _free as e on e.created_seq = s.created_seq and s.kind = 'wait.started' and e.type = s.event_type
group by s.created_seq
having bool_or(_state(s.kind, s.seq, f.seq) in ('retrying', 'sleeping', 'waiting'))
  and not bool_or(_state(s.kind, s.seq, f.seq) = 'running')
  and count(e.created_seq) = 0;

create view instances as
select
  i.workflow,
  i.instance_id,
  i.created_seq,
  case
    when l.status = 'running' and i.created_seq in (select created_seq from _waiting) then 'waiting'
    else coalesce(l.status, 'queued')
  end as status,
  i.created_at,
  l.started_at,
  case when l.status in ('complete', 'errored', 'terminated') then e.recorded_at end as ended_at,
  _json(i.value, i.body) as params,
  case when l.status = 'complete' and e.kind = 'completed' then _json(e.value, e.body) end as output,
  case when l.status = 'errored' then e.body ->> '$.error.type' end as error_type,
  case when l.status = 'errored' then _shown(e.body ->> '$.error.message', e.body) end as error_message,
  coalesce(a.body ->> '$.code_hash', i.body ->> '$.code_hash') as code_hash,
  coalesce(i.body ->> '$.parent.id', i.body ->> '$.parent') as parent_id
from _instances as i
left join _lives as l on l.created_seq = i.created_seq
left join (select * from entries where kind in ('completed', 'errored', 'terminated')) as e on e.seq = l.end_seq
left join (select * from entries where kind = 'activated') as a on a.seq = l.activated_seq;
comment on view instances is 'one row per instance: status, parameters, output';

create view steps as
select
  s.workflow,
  s.instance_id,
  s.created_seq,
  s.step as name,
  s.count,
  s.key,
  case when s.key is null then s.type else 'map' end as type,
  _state(l.kind, l.seq, n.seq) as status,
  coalesce(try_cast(l.body ->> '$.attempt' as integer), 0) as attempts,
  coalesce(try_cast(f.body ->> '$.started_at' as timestamptz), f.recorded_at) as started_at,
  case when split_part(l.kind, '.', 2) in ('finished', 'failed', 'cancelled') then l.recorded_at end as ended_at,
  date_diff('microsecond', coalesce(try_cast(f.body ->> '$.started_at' as timestamptz), f.recorded_at), ended_at) / 1e6 as duration_s,
  case when split_part(l.kind, '.', 2) = 'finished' then _json(l.value, l.body) end as output,
  l.body ->> '$.output_type' as output_type,
  case
    when not _withheld(l.body) then (select value from meta where key = 'artifacts') || '/' || (l.body ->> '$.uri')
  end as output_uri,
  l.body ->> '$.error.type' as error_type,
  _shown(l.body ->> '$.error.message', l.body) as error_message,
  coalesce(l.body ->> '$.code_hash', f.body ->> '$.code_hash') as code_hash
from _steps as s
join entries as l on l.seq = s.last_seq
join entries as f on f.seq = s.first_seq
left join _fences as n on n.created_seq = s.created_seq;
comment on view steps is 'one row per step, sleep, wait and map item; output_uri is the path of a stored table or array';

create view attempts as
select
  t.workflow,
  t.instance_id,
  t.created_seq,
  t.step as name,
  t.count,
  t.key,
  t.attempt,
  case t.what
    when 'started' then case when t.last_seq < n.seq then 'interrupted' else 'running' end
    when 'retrying' then 'failed'
    else t.what
  end as status,
  t.started_at,
  case when t.what <> 'started' then t.recorded_at end as ended_at,
  l.body ->> '$.error.type' as error_type,
  _shown(l.body ->> '$.error.message', l.body) as error_message
from (
  select
    e.workflow,
    e.instance_id,
    e.created_seq,
    e.step,
    e.count,
    e.key,
    try_cast(e.body ->> '$.attempt' as integer) as attempt,
    max(e.seq) as last_seq,
    arg_max(e.what, e.seq) as what,
    arg_max(e.recorded_at, e.seq) as recorded_at,
    arg_min(coalesce(try_cast(e.body ->> '$.started_at' as timestamptz), e.recorded_at), e.seq) as started_at
  from _step_entries as e
  join _steps as s
    on s.workflow = e.workflow
    and s.instance_id = e.instance_id
    and s.created_seq = e.created_seq
    and s.type = e.type
    and s.step = e.step
    and s.count = e.count
    and s.key is not distinct from e.key
    and e.seq <= s.last_seq
  where e.type <> 'rollback'
  group by all
  having attempt is not null
) as t
join entries as l on l.seq = t.last_seq
left join _fences as n on n.created_seq = t.created_seq;
comment on view attempts is 'one row per try of a step';

create view events as
select
  i.workflow,
  i.instance_id,
  i.created_seq,
  e.type,
  _json(e.value, e.body) as payload,
  e.recorded_at as sent_at,
  e.body ->> '$.by' as sent_by,
  e.taken_at as consumed_at
from _events as e
join _instances as i on i.created_seq = e.created_seq;
comment on view events is 'one row per event sent to an instance; consumed_at is empty until a wait has taken it';

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
  case when not _withheld(e.body) then e.value end as value
from entries as e
join _instances as i on i.created_seq = e.created_seq;
comment on view history is 'the entries of instances that are not deleted, with the names of workflow and instance';
