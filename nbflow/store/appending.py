"""The SQL that appends lines of journals to the tables: one bound string of JSON lines, parsed and placed by DuckDB."""

_SHAPE = (
    '{"kind":"VARCHAR","created_seq":"BIGINT","token":"INTEGER","recorded_at":"TIMESTAMPTZ","step":"VARCHAR",'
    '"count":"INTEGER","key":"VARCHAR","order":"INTEGER","attempt":"INTEGER","started_at":"TIMESTAMPTZ",'
    '"uri":"VARCHAR","sensitive":"BOOLEAN",'
    '"body":"VARCHAR","value":"VARCHAR","value64":"VARCHAR"}'
)
_PARSED = f"""
with lines as materialized (
  select unnest(l) as line, generate_subscripts(l, 1) as ord
  from (select string_split($1, chr(10)) as l)
),
parsed as materialized (
  select ord, from_json(line, '{_SHAPE}') as e
  from lines
  where line <> ''
),
rows as materialized (
  select ord, e.*
  from parsed
  where e.kind is not null
)"""  # noqa: S608 - no text of a user is in it
# A start whose end comes with it is absorbed: one row per step.
_ABSORBED = """,
ends as (
  select created_seq, token, split_part(kind, '.', 1) as type, step, count, coalesce(key, '') as key, max(ord) as last
  from rows
  where ends_with(kind, '.finished')
  group by all
),
absorbed as materialized (
  select s.ord, e.last
  from rows as s
  join ends as e
    on e.created_seq = s.created_seq
    and e.token = s.token
    and e.type = split_part(s.kind, '.', 1)
    and e.step = s.step
    and e.count = s.count
    and e.key = coalesce(s.key, '')
  where ends_with(s.kind, '.started') and s.ord < e.last
)"""


SAID = {
    "order": "integer",
    "attempt": "integer",
    "started_at": "timestamptz",
    "uri": "varchar",
    "sensitive": "boolean",
}
"""Columns of `entries` that repeat what the body says."""


def _values(whole: str) -> str:
    """What to append.

    Lines about steps say what has columns beside their body; those of an older nbflow and those about an instance do not.
    """
    order, attempt, started_at, *rest = (
        f'case when "order" is null and json_valid(body) then try_cast(body ->> \'$.{column}\' as {kind}) else "{column}" end'
        for column, kind in SAID.items()
    )
    return f"""
select
  $2 + row_number() over (), recorded_at, created_seq, token, kind, step, count, key,
  {order}, {attempt}, {started_at}, {whole}, {", ".join(rest)},
  body, coalesce(encode(value), from_base64(value64)), null
from rows as r
"""  # noqa: S608 - no text of a user is in it


_WHOLE = "attempt = 1 and started_at is not null and ord in (select last from absorbed)"
LOAD = (
    f"insert into nb.entries {_PARSED}{_ABSORBED}{_values(_WHOLE)} "  # noqa: S608 - no text of a user is in it
    "where ord not in (select ord from absorbed)"
)
"""Of a connection of one thread, which keeps the order of the lines; sorting them would cost a tenth of the load."""

_BOUND = {
    "seq": "bigint", "recorded_at": "timestamptz", "created_seq": "bigint", "token": "integer", "kind": "varchar",
    "step": "varchar", "count": "integer", "key": "varchar", **SAID, "body": "varchar", "value": "blob",
}  # fmt: skip
WRITE = f"""
insert into nb.entries ({", ".join(f'"{column}"' for column in _BOUND)}, whole)
select {", ".join(f"unnest(${place}::{kind}[])" for place, kind in enumerate(_BOUND.values(), 1))}, false
"""
"""Of a list for each column: a few entries are planned and placed in a third of the time that lines of them would take."""
SOURCES = """
insert into nb.sources
with parsed as materialized (
  select from_json(line, '{"source":"VARCHAR","text":"VARCHAR"}') as s
  from (select unnest(string_split($1, chr(10))) as line)
  where line <> ''
)
select s.source, any_value(s.text)
from parsed
where s.source is not null and s.source not in (select hash from nb.sources)
group by s.source
"""

_LOG_SHAPE = (
    '{"created_seq":"BIGINT","type":"VARCHAR","step":"VARCHAR","count":"INTEGER","key":"VARCHAR","attempt":"INTEGER",'
    '"started_at":"TIMESTAMPTZ","part":"INTEGER","items":"VARCHAR"}'
)
LOGS = f"""
insert into nb.log_chunks
with parsed as materialized (
  select from_json(line, '{{"log":{_LOG_SHAPE}}}') as l
  from (select unnest(string_split($1, chr(10))) as line)
  where contains(line, '"log":')
)
select unnest(l.log)
from parsed
where l.log is not null
"""  # noqa: S608 - no text of a user is in it
