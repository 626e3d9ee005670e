-- What bodies printed, logged, warned and displayed.
--
-- Not entries of the history: nothing follows from them, so nothing that is decided has to read past them. One row holds
-- what one attempt put out in about a second; `logs` gives one row for each piece of it, of attempts that count.

create table log_chunks (
  created_seq bigint not null,
  type varchar not null,
  step varchar not null,
  count integer not null,
  key varchar,
  attempt integer not null,
  started_at timestamptz not null,
  part integer not null,
  items varchar not null
);
comment on table log_chunks is 'what attempts put out, in parts; 1 MB of a step is kept';
comment on column log_chunks.started_at is 'when the attempt began: tells it from one of that number before a restart';
comment on column log_chunks.part is 'place among the parts of the attempt, from 0';
comment on column log_chunks.items is 'JSON: a list of stream, at, text and, of displays, mime';

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
  from log_chunks
  where type <> 'rollback'
) as l
join attempts as a
  on a.created_seq = l.created_seq
  and a.name = l.step
  and a.count = l.count
  and a.key is not distinct from l.key
  and a.attempt = l.attempt
  and a.started_at = l.started_at;
comment on view logs is 'one row for each piece of what a step printed, logged, warned and displayed';
