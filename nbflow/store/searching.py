"""Which items of a map say a text: one pass over their entries, so that none of 100,000 items is read for itself."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nbflow.core.model import Entry, Kind
from nbflow.core.told import OUTCOME, outcome_text

MOST = 10_000
"""Of more items than these the failed ones are found first."""

_SAYING = (Kind.MAP_FINISHED, Kind.MAP_FAILED, Kind.MAP_RETRYING)

# Texts are looked into only where the whole entry has a piece of what is asked for: taking JSON apart costs more than that.
# The message of what is sensitive is withheld when it is recorded; it is no place to look in all the same.
_QUERY = """
select key, kind
from (
  select
    key,
    arg_max(kind, (token, seq)) as kind,
    arg_max(
      case
        when contains(lower(body), lower($5)) then coalesce(contains(lower(left(
          case
            when kind = 'map.finished' then try(body ->> '$.preview.line')
            when sensitive then try(body ->> '$.error.type')
            else concat(try(body ->> '$.error.type'), ': ', try(body ->> '$.error.message'))
          end, $7)), lower($4)), false)
        else false
      end,
      (token, seq)
    ) as says
  from nb.entries
  where created_seq = $1
    and step = $2
    and count = $3
    and key is not null
    and kind in ('map.finished', 'map.failed', 'map.retrying')
  group by key
)
where says and kind in (select unnest($6))
order by kind = 'map.finished'
limit $8
"""


def in_file(
    rows: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]],
    created_seq: int,
    step: str,
    count: int,
    text: str,
    kinds: Iterable[Kind],
) -> dict[str, Kind]:
    """Keys of the items whose last outcome in the file says *text*, each with the kind of that entry, one of *kinds*."""
    # An error is said as "type: message" and recorded in two fields; in JSON quotes and backslashes are escaped.
    piece = json.dumps(max(text.split(": "), key=len), ensure_ascii=False)[1:-1]
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character is in no text that was recorded
        return {}
    found = rows(_QUERY, [created_seq, step, count, text, piece, [kind.value for kind in kinds], OUTCOME, MOST])
    return {key: Kind(kind) for key, kind in found}


def in_memory(entries: Iterable[Entry], text: str, kinds: Iterable[Kind]) -> dict[str, Kind]:
    """The same of the entries of one map."""
    wanted, last = text.casefold(), dict[str, Entry]()
    for entry in entries:
        if entry.key is None or entry.kind not in _SAYING:
            continue
        if (before := last.get(entry.key)) is None or before.token <= entry.token:
            last[entry.key] = entry
    asked = frozenset(kinds)
    found = [(key, entry.kind) for key, entry in last.items() if entry.kind in asked and wanted in _said(entry).casefold()]
    found.sort(key=lambda pair: pair[1] is Kind.MAP_FINISHED)
    return dict(found[:MOST])


def _said(entry: Entry) -> str:
    body = entry.body
    if entry.kind is Kind.MAP_FINISHED:
        return outcome_text(None, body.get("preview"))
    error = body.get("error") or {}
    return str(error.get("type", "")) if body.get("sensitive") else outcome_text(error, None)
