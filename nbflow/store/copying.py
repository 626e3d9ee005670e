"""Where a `copy … to` of the user's writes: told before it runs, so that what a store has stored stays as it was stored.

DuckDB cannot be told to read everywhere and to write only here. So the statement is taken apart by DuckDB's own tokens and put
together again, from a query that is a statement of its own, the real path as a literal, and options that lead nowhere else.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import duckdb

from nbflow.errors import UsageError
from nbflow.store.database import quoted
from nbflow.store.descriptor import named
from nbflow.store.files import open_own
from nbflow.store.layout import DEFAULT, Layout
from nbflow.system import read_at

_MAGIC, _MAGIC_AT = b"DUCK", 8  # as every DuckDB file begins, behind a sum
_FORM = "copy (select …) to 'result.parquet', with options after it in parentheses, such as (format parquet)"
_LITERAL = re.compile(r"'(?:[^']|'')*'", re.S)
_NAME = re.compile(r'"(?:[^"]|"")*"|[^\W\d]\w*', re.S)
_URL = re.compile(r"[a-z][a-z0-9+.\-]*://|file:", re.I)
_FORMATS = frozenset({"csv", "json", "parquet"})
# What names no other file and makes no folder of it.
_OPTIONS = frozenset(
    {
        "array", "bloom_filter_false_positive_ratio", "codec", "compression", "compression_level", "dateformat", "date_format",
        "delim", "delimiter", "dictionary_size_limit", "encoding", "escape", "field_ids", "force_quote", "format", "header",
        "kv_metadata", "null", "nullstr", "parquet_version", "prefix", "preserve_order", "quote", "return_files",
        "row_group_size", "row_group_size_bytes", "sep", "string_dictionary_page_size_limit", "suffix", "timestampformat",
        "timestamp_format", "write_bloom_filter",
    }
)  # fmt: skip


class Token(NamedTuple):
    """One token of a statement; *start* and *end* are places in its UTF-8 bytes."""

    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """As a keyword is written."""
        return self.text.lower()


def tokens(text: str) -> list[Token]:
    """The tokens of a statement, comments left out."""
    whole, found = text.encode(), duckdb.tokenize(text)
    ends = [start for start, _ in found[1:]] + [len(whole)]
    told = [
        Token(whole[start:end].decode().strip(), start, end)
        for (start, kind), end in zip(found, ends, strict=True)
        if not str(kind).endswith("comment")
    ]
    while told and told[-1].text == ";":
        told.pop()
    return told


def explained(text: str) -> tuple[str, str]:
    """How a statement is explained, and that statement."""
    found = tokens(text)
    words, place = [token.word for token in found], 1
    if words[1:2] == ["analyze"]:
        place = 2
    elif words[1:2] == ["("] and words[2:3] and words[2] in {"analyze", "format"}:
        place = 2 + _at_top(found[1:], ")")
    return " ".join(words[:place]), _between(text, found[place:]) if found[place:] else ""


def reads_in(text: str) -> bool:
    """Whether it is a `copy … from`, which changes a table."""
    found = tokens(text)
    try:
        return found[_at_top(found, "from", "to")].word == "from"
    except ValueError:
        return False


def rebuilt(text: str, layout: Layout, query: Callable[[str], str]) -> str:
    """A `copy … to` that writes one file outside of every store, its real path named in full; *query* checks what it asks.

    Raises:
        UsageError: it writes into a store, or where it writes cannot be told for certain.
    """
    found = tokens(text)
    try:
        to = _at_top(found, "to")
        target, rest = found[to + 1], found[to + 2 :]
    except (ValueError, IndexError):
        raise _untold() from None
    if not _LITERAL.fullmatch(target.text):
        raise _untold()
    asked = query(_asked(text, found[1:to]))
    path = _resolved(target.text[1:-1].replace("''", "'"), layout)
    return f"copy (\n{asked}\n) to {quoted(path)} {_options(text, rest)}"


def _at_top(found: Sequence[Token], *words: str) -> int:
    depth = 0
    for place, token in enumerate(found):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.word in words:
            return place
    raise ValueError


def _between(text: str, found: Sequence[Token]) -> str:
    return text.encode()[found[0].start : found[-1].end].decode()


def _asked(text: str, found: Sequence[Token]) -> str:
    """The query of a copy: in parentheses, or a table, of which some columns may be named."""
    if len(found) > 2 and found[0].text == "(" and _at_top(found, ")") == len(found) - 1:
        return _between(text, found[1:-1])
    names = [token.text for token in found]
    opened = names.index("(") if "(" in names else len(names)
    table, columns = names[:opened], names[opened + 1 : -1]
    if not _are_names(table, ".") or (opened < len(names) and (names[-1] != ")" or not _are_names(columns, ","))):
        raise _untold()
    return f"select {''.join(columns) or '*'} from {''.join(table)}"  # noqa: S608 - his own names


def _are_names(parts: Sequence[str], between: str) -> bool:
    return len(parts) % 2 == 1 and all(
        part == between if place % 2 else _NAME.fullmatch(part) is not None for place, part in enumerate(parts)
    )


def _options(text: str, found: Sequence[Token]) -> str:
    if found and found[0].word == "with":
        found = found[1:]
    if not found:
        return ""
    if len(found) < 3 or found[0].text != "(" or _at_top(found, ")") != len(found) - 1:
        raise _untold()
    left = list(found[1:-1])
    while left:
        name, *value = left[: _comma(left)]
        if name.word not in _OPTIONS or (name.word == "format" and _format(value) not in _FORMATS):
            said = " ".join(token.text for token in (name, *value))
            msg = (
                f"copy with {said!r} may write more than the one file that it names, which could be in the store; "
                f"formats are csv, json and parquet, and options {', '.join(sorted(_OPTIONS))}: leave it out, "
                f"or write by a method of the result, such as sql(…).df().to_csv()"
            )
            raise UsageError(msg)
        left = left[_comma(left) + 1 :]
    return _between(text, found)


def _comma(found: Sequence[Token]) -> int:
    depth = 0
    for place, token in enumerate(found):
        depth += (token.text in {"(", "[", "{"}) - (token.text in {")", "]", "}"})
        if depth == 0 and token.text == ",":
            return place
    return len(found)


def _format(value: Sequence[Token]) -> str:
    return value[0].word.strip("'\"") if len(value) == 1 else ""


def _resolved(target: str, layout: Layout) -> Path:
    """The real path of what is written, links followed."""
    if not target or "\0" in target or _URL.match(target):
        msg = f"copy writes to {target!r}, which is no path: a query writes files of this machine, so name one by its path"
        raise UsageError(msg)
    path = Path(os.path.realpath(Path(target).expanduser()))
    if _is_of_store(path, layout) or any(map(_is_database, _written(path))):
        msg = (
            f"copy writes to {target!r}, which is the file of a store or in its folder ({str(path)!r}), or of another DuckDB "
            f"database: what is there is changed by nbflow and DuckDB alone; name a file outside of it"
        )
        raise UsageError(msg)
    return path


def _is_of_store(path: Path, layout: Layout) -> bool:
    """Whether a path is in this store or, as its name tells, in another one; *path* is real, and need not be there."""
    folder = DEFAULT.parts[0]
    if any(part.casefold().endswith(folder) for part in path.parts) or path in (layout.file, layout.wal):
        return True
    own = {named(each) for each in (layout.file, layout.wal, layout.folder)} - {None}
    return any(named(each) in own for each in (path, *path.parents))  # by another name, where case does not count


def _written(path: Path) -> tuple[Path, Path, Path]:
    """What such a copy can replace: the file, the one that DuckDB writes first beside it, and the database whose log it is."""
    return path, path.with_name(f"tmp_{path.name}"), path.with_name(path.name.removesuffix(".wal"))


def _is_database(path: Path) -> bool:
    """Whether there is a DuckDB database, or, where its file is missing now, the journals of one that is a store."""
    there = named(path)
    if there is None:
        return path.suffix == ".duckdb" and (path.with_suffix(".nbflow") / "journal").is_dir()
    for number in map(int, os.listdir("/dev/fd")):  # where we have it open: to close another one would end DuckDB's lock on it
        with suppress(OSError):
            status = os.fstat(number)
            if (status.st_dev, status.st_ino) == there:
                return read_at(number, len(_MAGIC), _MAGIC_AT) == _MAGIC
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except OSError:
        return False  # DuckDB says what it is that it cannot write
    try:
        return read_at(descriptor, len(_MAGIC), _MAGIC_AT) == _MAGIC
    finally:
        os.close(descriptor)


def _untold() -> UsageError:
    return UsageError(f"where this copy writes cannot be told for certain, and it could be into the store: write it as {_FORM}")
