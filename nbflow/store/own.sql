-- What nbflow keeps for itself.

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
