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
-- What a kind carries is in `body`. What views group, join and sort by is in columns too, so that they need not look into it.
--
-- What bodies printed is in `logs` (its table in logs.sql). `loaded`, `sources` and `meta` serve nbflow itself. There are no
-- keys and no indexes: rows are found by the order in which they came. The views are in views.sql.

create table entries (
  seq bigint not null,
  recorded_at timestamptz not null,
  created_seq bigint not null,
  token integer not null,
  kind varchar not null,
  step varchar,
  count integer,
  key varchar,
  "order" integer,
  attempt integer,
  started_at timestamptz,
  whole boolean,
  uri varchar,
  sensitive boolean,
  body varchar not null,
  value blob,
  began_at timestamptz
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
comment on column entries."order" is 'number of the call of the step in its instance, from body';
comment on column entries.attempt is 'which try of the step, from body';
comment on column entries.started_at is 'when that try began, or the step where it has no tries, from body';
comment on column entries.whole is 'true where this alone tells all of a step: its first end, as long as it counts';
comment on column entries.uri is 'file that holds the value, from body';
comment on column entries.sensitive is 'true where the value is to be shown nowhere, from body';
comment on column entries.body is 'JSON: all that the kind carries';
comment on column entries.value is 'an encoded value: parameters, output, payload; j and JSON where it is plain JSON';
comment on column entries.began_at is 'when a step that is whole began, where that is not started_at';
