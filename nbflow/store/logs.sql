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
