-- The views over `entries` and what is known of them. This text is run again over every store that an older nbflow has made.
--
-- What is on the way to the five views is in the schema `internal`. They are thin: where instances and steps stand is kept in
-- the tables of known.sql, and the entry of a step's end tells all of it, so that a condition reaches the scans and a column
-- which nobody asks for costs nothing.

create schema internal;

-- The JSON form of a stored value, where it has one; what its step calls sensitive is not shown.
create macro internal.json(value, body, hidden) as
  case
    when value is null then null
    when hidden then '"[REDACTED]"'::json
    when value >= 'j'::blob and value < 'k'::blob then try_cast(try(decode(value))[2:] as json)
    else try_cast(body ->> '$.json' as json)
  end;

-- A path may be joined to the folder of artefacts only where it stays in there.
create macro internal.is_inside(uri) as
  regexp_full_match(uri, '[\w\-][\w.\-]*/[\w\-][\w.\-]*/[\w\-][\w.\-]*');

create macro internal.shown(message, hidden) as
  case when message is not null and hidden then '[REDACTED]' else message end;

-- A condition on rare kinds is written so that the scan itself tests it and reads no other column of the rest: a list of words
-- or equalities would be tested after it.
create macro internal.is_of_events(kind) as
  (starts_with(kind, 'event') or starts_with(kind, 'set_aside') or starts_with(kind, 'wait.finished'));

-- Events that no restart has dropped: one from a step keeps them, free to be taken again where their wait fell.
create view internal.events as
select
  * exclude (anew_seq),
  body ->> '$.type' as type
from (
  select  -- joined before it is grouped, so that a question about one instance groups only its own
    i.workflow,
    i.instance_id,
    i.anew_seq,
    h.created_seq,
    h.body ->> '$.event_id' as event_id,
    min(h.seq) filter (h.kind = 'event') as seq,
    arg_min(h.recorded_at, h.seq) filter (h.kind = 'event') as sent_at,
    arg_min(h.sensitive, h.seq) filter (h.kind = 'event') as sensitive,
    arg_min(h.body, h.seq) filter (h.kind = 'event') as body,
    arg_min(h.value, h.seq) filter (h.kind = 'event') as value,
    min(h.recorded_at) filter (h.kind = 'wait.finished') as taken_at
  from main.entries as h
  join main.known_instances as i on i.created_seq = h.created_seq
  anti join main.dropped as d on d.seq = h.seq
  where internal.is_of_events(h.kind)
  group by i.workflow, i.instance_id, i.anew_seq, h.created_seq, event_id
) as e
where seq > anew_seq;

-- Open waits for which an event is there that nothing has taken or set aside.
create view internal.wanted as
select distinct
  s.created_seq,
  s.seq
from main.known_steps as s
join (
  select
    h.created_seq,
    max(h.seq) filter (h.kind = 'event') as seq,
    max(h.body ->> '$.type') as type
  from main.entries as h
  semi join main.known_steps as w on w.created_seq = h.created_seq and w.event_type is not null
  anti join main.dropped as d on d.seq = h.seq
  where internal.is_of_events(h.kind)
  group by h.created_seq, h.body ->> '$.event_id'
  having bool_and(h.kind = 'event')
) as e on e.created_seq = s.created_seq and e.type = s.event_type
join main.known_instances as i on i.created_seq = s.created_seq
where e.seq > i.anew_seq;

-- Maps that have not ended, and those whose stream `run` has left: what was open of their items is cancelled with them (S21).
create view internal.open_maps as
select created_seq, name, count, state, ended_at
from main.known_steps
where type = 'map' and key is null;

-- Items that have not ended, with where their map stands, if it has not.
create view internal.open_items as
select s.created_seq, s.name, s.count, s.key, s.attempts, m.state as map_state, m.ended_at
from main.known_steps as s
left join internal.open_maps as m on m.created_seq = s.created_seq and m.name = s.name and m.count = s.count
where s.type = 'map' and s.key is not null;

-- Maps of which every open item waits for its next attempt: they wait too (S5).
create view internal.resting_maps as
select created_seq, name, count
from main.known_steps
where type = 'map' and key is not null and state in ('running', 'retrying', 'interrupted')
group by created_seq, name, count
having bool_and(state = 'retrying');

-- Instances of which everything open waits, and not for an event that is there already. Of those that are over some are in it.
-- The row of a map says what its items do, which may stand open when it has ended.
create view internal.waiting as
select s.created_seq
from main.known_steps as s
join main.known_instances as i on i.created_seq = s.created_seq
left join internal.wanted as w on w.seq = s.seq
left join internal.resting_maps as m
  on m.created_seq = s.created_seq
  and m.name = s.name
  and m.count = s.count
  and s.type = 'map'
  and s.key is null
where s.state in ('running', 'retrying', 'sleeping', 'waiting')
  and (s.type <> 'map' or s.key is null)
  and (s.state <> 'running' or m.name is not null or s.seq > i.fence_seq)
group by s.created_seq
having bool_and(m.name is not null or s.state <> 'running')
  and count(w.seq) = 0;

create view instances as
select
  i.workflow,
  i.instance_id,
  i.created_seq,
  case when i.status = 'running' and w.created_seq is not null then 'waiting' else i.status end as status,
  i.created_at,
  i.started_at,
  i.ended_at,
  p.json as params,
  case when i.status = 'complete' then o.json end as output,
  case when i.status in ('errored', 'rollingBack') then o.error_type end as error_type,
  case when i.status in ('errored', 'rollingBack') then o.error_message end as error_message,
  i.code_hash,
  i.parent_id
from main.known_instances as i
left join internal.waiting as w on w.created_seq = i.created_seq
left join main.known_values as p on p.seq = i.created_seq
left join main.known_values as o on o.seq = i.ended_seq;
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
comment on column instances.error_type is 'class of the error that ended it, or for which it is being rolled back';
comment on column instances.error_message is 'text of that error';
comment on column instances.code_hash is 'source of the workflow it ran last: hash in sources';
comment on column instances.parent_id is 'id of the instance that made it';

-- Of a step that has ended one entry tells all. One that stands open when its instance ends, or the map whose item it is, is told
-- as ended with it (core/told.py): what is kept of it is where it goes on, should the instance be resumed.
create view steps as
select
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.step as name,
  e.count,
  e.key,
  split_part(e.kind, '.', 1) as type,
  case when ends_with(e.kind, '.failed') then 'failed' else 'finished' end as status,
  coalesce(e.attempt, 0) as attempts,
  coalesce(e.began_at, e.started_at) as started_at,
  e.recorded_at as ended_at,
  date_diff('microsecond', coalesce(e.began_at, e.started_at), e.recorded_at) / 1e6 as duration_s,
  case
    when e.kind = 'map.finished' and e.key is null then null  -- its value is the list of its keys
    when ends_with(e.kind, '.finished') then internal.json(e.value, e.body, e.sensitive)
  end as output,
  e.body ->> '$.output_type' as output_type,
  case
    when e.sensitive is not true and internal.is_inside(e.uri)
      then (select value from main.meta where key = 'artifacts') || '/' || e.uri
  end as output_uri,
  case when ends_with(e.kind, '.failed') then e.body ->> '$.error.type' end as error_type,
  case when ends_with(e.kind, '.failed') then internal.shown(e.body ->> '$.error.message', e.sensitive) end as error_message,
  e.body ->> '$.code_hash' as code_hash
from main.entries as e
join main.known_instances as i on i.created_seq = e.created_seq
where e.whole
union all
select
  i.workflow,
  i.instance_id,
  s.created_seq,
  s.name,
  s.count,
  s.key,
  s.type,
  case
    when s.ended_at is not null then s.state
    when l.state = 'cancelled' then l.state
    when i.ended_at is not null or (s.type = 'map' and s.key is not null and l.name is null) then 'interrupted'
    when s.state = 'running' and m.name is not null then 'retrying'
    when s.state = 'running' and s.seq < i.fence_seq then 'interrupted'
    else s.state
  end,
  s.attempts,
  s.started_at,
  coalesce(s.ended_at, l.ended_at, i.ended_at) as over_at,
  date_diff('microsecond', s.started_at, over_at) / 1e6,
  null,
  null,
  null,
  s.error_type,
  s.error_message,
  s.code_hash
from main.known_steps as s
join main.known_instances as i on i.created_seq = s.created_seq
left join internal.resting_maps as m
  on m.created_seq = s.created_seq
  and m.name = s.name
  and m.count = s.count
  and s.type = 'map'
  and s.key is null
left join internal.open_maps as l
  on l.created_seq = s.created_seq
  and l.name = s.name
  and l.count = s.count
  and s.type = 'map'
  and s.key is not null;
comment on view steps is 'one row per step, sleep, wait and map item; output_uri is the path of a stored table or array';
comment on column steps.workflow is 'name of the workflow';
comment on column steps.instance_id is 'id of the instance';
comment on column steps.created_seq is 'the instance, the key to join by';
comment on column steps.name is 'name of the step';
comment on column steps.count is 'which call of that name, 1-based';
comment on column steps.key is 'key of a map item; of a step in the body of another, that body; empty for others';
comment on column steps.type is 'do, sleep, wait, child, map (with a key: an item of it) or rollback';
comment on column steps.status is 'running, retrying, sleeping, waiting, finished, failed, cancelled or interrupted';
comment on column steps.attempts is 'tries so far; 0 where there are none';
comment on column steps.started_at is 'when it began';
comment on column steps.ended_at is 'when it ended, or what it was open in; empty before';
comment on column steps.duration_s is 'seconds from begin to end, waits between tries counted in';
comment on column steps.output is 'JSON of the result, where it has a JSON form; of a map its items have theirs';
comment on column steps.output_type is 'type of the result';
comment on column steps.output_uri is 'path of the file that holds a table, an array or a large result: read_parquet(output_uri)';
comment on column steps.error_type is 'class of the last error';
comment on column steps.error_message is 'text of the last error';
comment on column steps.code_hash is 'code of the body';

create view attempts as
select
  i.workflow,
  i.instance_id,
  e.created_seq,
  e.step as name,
  e.count,
  e.key,
  e.attempt,
  case when ends_with(e.kind, '.failed') then 'failed' else 'finished' end as status,
  coalesce(e.started_at, e.began_at) as started_at,
  e.recorded_at as ended_at,
  case when ends_with(e.kind, '.failed') then e.body ->> '$.error.type' end as error_type,
  case when ends_with(e.kind, '.failed') then internal.shown(e.body ->> '$.error.message', e.sensitive) end as error_message
from main.entries as e
join main.known_instances as i on i.created_seq = e.created_seq
where e.whole and e.attempt is not null and not starts_with(e.kind, 'rollback.')
union all
select
  i.workflow,
  i.instance_id,
  t.created_seq,
  t.name,
  t.count,
  t.key,
  t.attempt,
  case
    when t.ended_at is not null then t.state
    when l.map_state = 'cancelled' and l.attempts = t.attempt then 'cancelled'
    when i.ended_at is not null or t.seq < i.fence_seq then 'interrupted'
    when t.type = 'map' and (l.map_state is null or t.attempt < l.attempts) then 'interrupted'
    else t.state
  end,
  t.started_at,
  coalesce(t.ended_at, case when l.attempts = t.attempt then l.ended_at end, i.ended_at),
  t.error_type,
  t.error_message
from main.known_attempts as t
join main.known_instances as i on i.created_seq = t.created_seq
left join internal.open_items as l
  on l.created_seq = t.created_seq
  and l.name = t.name
  and l.count = t.count
  and l.key = t.key
  and t.type = 'map';
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
  e.workflow,
  e.instance_id,
  e.created_seq,
  e.type,
  internal.json(e.value, e.body, e.sensitive) as payload,
  e.sent_at,
  e.body ->> '$.by' as sent_by,
  e.taken_at as consumed_at
from internal.events as e;
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
  e.kind,
  e.token,
  e.step,
  e.count,
  case when e.kind <> 'created' then e.key end as key,
  e.body,
  case when e.sensitive is not true then e.value end as value
from main.entries as e
join main.known_instances as i on i.created_seq = e.created_seq;
comment on view history is 'the entries of instances that are not deleted, with the names of workflow and instance';
comment on column history.seq is 'place in the history';
comment on column history.recorded_at is 'when it was recorded';
comment on column history.workflow is 'name of the workflow';
comment on column history.instance_id is 'id of the instance';
comment on column history.created_seq is 'the instance, the key to join by';
comment on column history.kind is 'what happened, such as created, do.finished, event';
comment on column history.token is 'the claim under which it was written; 0 for what others say';
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
