-- What is known of instances and steps, kept so that a question need not fold a million entries.
--
-- All of it follows from `entries`: it changes in the commit that appends them (store/known.py), and can be made again from
-- them at any time. A step that has ended needs no row here: the entry of its end tells all of it (`whole`, `began_at`). Rows of
-- deleted instances stay, told by nobody, until compact.

create table known_instances (
  created_seq bigint not null,
  workflow varchar not null,
  instance_id varchar not null,
  status varchar not null,
  created_at timestamptz not null,
  started_at timestamptz,
  ended_at timestamptz,
  ended_seq bigint,
  code_hash varchar,
  parent_id varchar,
  token integer not null,
  fence_seq bigint not null,
  anew_seq bigint not null
);
comment on table known_instances is 'instances that are not deleted, as their entries leave them';
comment on column known_instances.status is 'as in instances, save that running may be waiting';
comment on column known_instances.ended_seq is 'the entry that ended it last, or began to roll it back: the error is there';
comment on column known_instances.token is 'the claim that holds';
comment on column known_instances.fence_seq is 'the last claim, restart or termination: an attempt that ran before will never be heard of again';
comment on column known_instances.anew_seq is 'the last restart of all steps: events before it are dropped';

create table known_values (
  seq bigint not null,
  json json,
  error_type varchar,
  error_message varchar
);
comment on table known_values is 'what instances were given and gave, beside each other: in entries they lie far apart';
comment on column known_values.seq is 'the entry: created, completed, errored or rolling_back';
comment on column known_values.json is 'its value, where that has a JSON form';

create table known_steps (
  created_seq bigint not null,
  type varchar not null,
  name varchar not null,
  count integer not null,
  key varchar,
  state varchar not null,
  attempts integer not null,
  started_at timestamptz not null,
  ended_at timestamptz,
  seq bigint not null,
  error_type varchar,
  error_message varchar,
  code_hash varchar,
  event_type varchar
);
comment on table known_steps is 'steps that have not ended, and cancelled ones';
comment on column known_steps.state is 'as status in steps, save that running may be interrupted';
comment on column known_steps.seq is 'the last entry about it';
comment on column known_steps.event_type is 'what an open wait waits for';

create table known_attempts (
  created_seq bigint not null,
  type varchar not null,
  name varchar not null,
  count integer not null,
  key varchar,
  attempt integer not null,
  state varchar not null,
  started_at timestamptz not null,
  ended_at timestamptz,
  seq bigint not null,
  error_type varchar,
  error_message varchar
);
comment on table known_attempts is 'tries of steps that did not end them';
comment on column known_attempts.state is 'as status in attempts, save that running may be interrupted';
comment on column known_attempts.seq is 'the last entry about it';

create table dropped (
  seq bigint not null
);
comment on table dropped is 'entries that do not count (any more): of an owner gone, or dropped by a restart or a retry';
