"""The private DuckDB instance of one engine, and every statement over its file.

The file is attached only inside a lease. Only the loader's thread comes here.
"""

import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb

from nbflow.core.log import LAST, LogChunk
from nbflow.core.model import Entry, Kind, StepKey
from nbflow.errors import StoreCorruptError, StoreError, StoreVersionError
from nbflow.store import appending, bodies, known, lines
from nbflow.store.files import make_own
from nbflow.store.layout import Layout, unwritable
from nbflow.store.lease import process_name
from nbflow.system import sync_folder, sync_whole

NAME = "nb"
NEW = "storage_version 'v1.4.0', block_size 16384"  # so that DuckDB 1.4, 1.5 and 2.0 tools read it, and it starts small
COLUMNS = "seq, epoch_us(recorded_at), created_seq, token, kind, step, count, key, body, value"
CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {kind.value: kind for kind in Kind}


class HeldError(Exception):
    """Somebody outside has the DuckDB file open; the text says who."""


class DamagedLogError(Exception):
    """DuckDB refuses its own log."""


def connect(threads: int | None = 1, memory: str | None = "256MB") -> duckdb.DuckDBPyConnection:
    """A private in-memory instance, which downloads nothing."""
    config: dict[str, Any] = dict(CONFIG)
    if threads is not None:
        config["threads"] = str(threads)
    if memory is not None:
        config["memory_limit"] = memory
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("set enable_progress_bar = false")
    connection.execute("set python_enable_replacements = false")  # our variables are no tables
    return connection


def keep_private(file: Path) -> None:
    """Close a DuckDB file that has just been made, and its log to be, to everybody else: DuckDB asks the umask alone."""
    os.chmod(file, 0o600)
    make_own(file.with_name(f"{file.name}.wal"))


def quoted(text: str | Path) -> str:
    """A SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A SQL name."""
    return '"' + name.replace('"', '""') + '"'


def schema() -> str:
    """The text that makes a store: schema.sql, own.sql, logs.sql, known.sql and views.sql."""
    return "\n".join((entries_schema(), _text("own.sql"), log_schema(), known_schema(), view_schema()))


def entries_schema() -> str:
    """The text of schema.sql."""
    return _text("schema.sql")


def log_schema() -> str:
    """The text of logs.sql."""
    return _text("logs.sql")


def known_schema() -> str:
    """The text of known.sql."""
    return _text("known.sql")


def view_schema() -> str:
    """The text of views.sql."""
    return _text("views.sql")


def _text(name: str) -> str:
    return files("nbflow.store").joinpath(name).read_text(encoding="utf-8")


def make_schema(connection: duckdb.DuckDBPyConnection, meta: dict[str, str]) -> None:
    """Make tables and views in the attached database, and what `meta` says from the start."""
    connection.execute(f"use {NAME}")
    try:
        connection.execute("begin")
        connection.execute(schema())
        for key, value in meta.items():
            connection.execute("insert into meta values ($1, $2)", [key, value])
        connection.execute("commit")
    finally:
        connection.execute("use memory")


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The entry that a row of COLUMNS is."""
    seq, _, created_seq, token, kind, step, count, key, _, value = row
    try:
        known = _KINDS[kind]
    except KeyError:
        msg = (
            f"the history holds an entry of kind {kind!r}, which this version of nbflow does not know: "
            f"a newer one wrote it; upgrade nbflow and restart this kernel"
        )
        raise StoreVersionError(msg) from None
    recorded_at, body = bodies.checked(known, row)
    if known is Kind.CREATED:
        key = None  # workflow/id, a column to search by; both are in the body
    return Entry(known, created_seq, token, recorded_at, step, count, key, body, value, seq)


class Database:
    """Attach, ask, append, detach."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.attached = False

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, made when first needed."""
        if self._connection is None:
            self._connection = connect()
            self._connection.execute("set TimeZone = 'UTC'")
            self._connection.execute(f"set temp_directory = {quoted(self._layout.spill)}")
        return self._connection

    def use(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Work on a connection that is there already, its database attached."""
        self._connection = connection

    def create(self, meta: dict[str, str]) -> None:
        """Make a new file, whole or not at all."""
        temporary = self._layout.file.with_name(f".{self._layout.file.name}.new")
        temporary.unlink(missing_ok=True)
        try:
            self._attach(temporary, NEW)
            make_schema(self.connection, meta)
            self.detach()
            sync_whole(temporary)
            temporary.replace(self._layout.file)
            sync_folder(self._layout.file.parent)
        except OSError as error:
            raise unwritable(self._layout.file, error) from error
        except duckdb.Error as error:
            raise self.translated(error) from error
        finally:
            self.drop()
            temporary.unlink(missing_ok=True)

    def attach(self) -> None:
        """Attach the file.

        Raises:
            HeldError: an outsider has it open.
            DamagedLogError: its log can't be replayed.
            StoreError: anything else that is wrong with it.
        """
        self._attach(self._layout.file, "")

    def attach_to_read(self) -> None:
        """Attach the file so that nothing of it can change, its log neither; the same errors as `attach`."""
        self._attach(self._layout.file, "read_only")

    def _attach(self, file: Path, options: str) -> None:
        clause = f"(type duckdb{', ' if options else ''}{options})"
        try:
            self.connection.execute(f"attach {quoted(file)} as {NAME} {clause}")
        except duckdb.Error as error:
            raise self.translated(error) from error
        self.attached = True
        if options == NEW:
            keep_private(file)

    def commit(self) -> None:
        """End the transaction; DuckDB's log is made here, where it can be kept private."""
        make_own(self._layout.wal)
        self.connection.execute("commit")

    def detach(self) -> bool:
        """Detach, which checkpoints; False where that failed: what was committed is in DuckDB's log then."""
        self.attached = False
        try:
            self.connection.execute(f"detach {NAME}")
        except duckdb.Error as error:
            if isinstance(error, duckdb.FatalException) or "CHECKPOINT" not in str(error).upper():
                self.reset()
            return False
        return True

    def left_log(self) -> bool:
        """Whether DuckDB's log is there after detaching; the empty one of a commit that changed nothing is removed."""
        log = self._layout.wal
        try:
            if log.stat().st_size:
                return True
        except FileNotFoundError:
            return False
        log.unlink()
        return False

    def drop(self) -> None:
        """Leave the file whatever state it is in."""
        if self.attached:
            try:
                self.connection.execute("rollback")
            except duckdb.Error:
                pass  # no transaction is open
            self.detach()

    def reset(self) -> None:
        """Begin again with a new instance; DuckDB asks for that after a fatal error."""
        self.attached = False
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except duckdb.Error:
                pass  # it is unusable, which is why it goes

    def interrupt(self) -> None:
        """Stop what runs, from another thread."""
        if self._connection is not None:
            self._connection.interrupt()

    def rows(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and take all it gives."""
        return self.connection.execute(query, values).fetchall()

    def meta(self) -> dict[str, str]:
        """What the file says of itself, settings too."""
        return dict(self.rows("select key, value from nb.meta"))

    def entries(self, condition: str, values: Sequence[Any]) -> list[Entry]:
        """Entries that fulfil a condition, oldest first."""
        return [entry_of(row) for row in self.rows(f"select {COLUMNS} from nb.entries where {condition}", values)]  # noqa: S608

    def log(self, created_seq: int, key: StepKey | None) -> list[LogChunk]:
        """What all attempts of a step have put out, without a key the last of all steps."""
        query = (
            "select created_seq, type, step, count, attempt, epoch_us(started_at), part, items, key from nb.log_chunks "
            "where created_seq = $1 "
        )
        if key is None:
            found = self.rows(f"{query} order by started_at desc, part desc limit {LAST}", [created_seq])
        else:
            one = f"{query} and type = $2 and step = $3 and count = $4 and key is not distinct from $5"
            found = self.rows(one, [created_seq, key.type.value, key.name, key.count, key.key])
        return [
            LogChunk(seq, type_, step, count, attempt, _EPOCH + timedelta(microseconds=micros), part, items, map_key)
            for seq, type_, step, count, attempt, micros, part, items, map_key in found
        ]

    def load(self, data: bytes, base: int) -> int:
        """Append a stretch of a journal, seqs from *base* + 1 on; gives the number of rows."""
        text = data.decode()
        self.connection.execute("pragma disable_optimizer")  # planning costs more than it saves here
        try:
            count: int = self.rows(appending.LOAD, [text, base])[0][0]
        finally:
            self.connection.execute("pragma enable_optimizer")
        if lines.holds_sources(data):
            self.rows(appending.SOURCES, [text])
        if lines.holds_logs(data):
            self.rows(appending.LOGS, [text])
        if count:
            known.keep_up(self.rows, base)
        return count

    def write(self, entries: Iterable[Entry], base: int) -> None:
        """Append entries as they are, seqs from *base* + 1 on."""
        written = list(entries)
        if not written:
            return
        rows = [
            (
                seq, entry.recorded_at, entry.created_seq, entry.token, entry.kind.value, entry.step, entry.count, entry.key,
                *lines.said(entry.body, None if entry.step is None else 0), lines.body_text(entry.body), entry.value,
            )
            for seq, entry in enumerate(written, base + 1)
        ]  # fmt: skip
        self.rows(appending.WRITE, [list(column) for column in zip(*rows, strict=True)])
        known.of_written(self.rows, base, written)

    def translated(self, error: duckdb.Error) -> Exception:
        """Say what a DuckDB error means for the store."""
        return translated(error, self._layout)


_UNWRITABLE = ("Permission denied", "Operation not permitted", "Read-only file system", "read-only mode")
_HOLDER = re.compile(r"Conflicting lock is held in (.*?) ?\(PID (\d+)\)")


def translated(error: duckdb.Error, layout: Layout) -> Exception:
    """The error of ours that tells the user what DuckDB's means; every one names the file and what to do."""
    text, file = str(error), repr(str(layout.file))
    if (found := _HOLDER.search(text)) is not None:
        pid = int(found[2])
        program = process_name(pid) or Path(found[1]).name
        here = " (this process)" if pid == os.getpid() else ""
        return HeldError(f"{program} (PID {pid}){here}")
    if "Could not set lock" in text:
        return HeldError("another program")
    if "already attached" in text or "Unique file handle conflict" in text or "different configuration" in text:
        return HeldError("a connection of yours in this very process (close it)")
    if isinstance(error, duckdb.InterruptException):
        return StoreError("the query was interrupted")
    if "only read versions" in text or "newer version of DuckDB" in text:
        return StoreVersionError(
            f"{file} was written by a newer DuckDB than {duckdb.__version__}: upgrade duckdb ({_first(text)})"
        )
    if "WAL" in text and "Failed to commit" not in text and layout.wal.exists():
        return DamagedLogError(_first(text))
    if "No space left" in text:
        return StoreError(f"{file} cannot be written: no space left on the disk; free some and try again")
    if any(sign in text for sign in _UNWRITABLE):
        return StoreError(
            f"{file} cannot be opened for writing: {_first(text)}; give this user write access to it and to its folder, "
            f"or name another file with NBFLOW_STORE or Engine(path)"
        )
    if "not a valid DuckDB database" in text or "sqlite" in text.lower():
        return StoreCorruptError(
            f"{file} is not a DuckDB file: {_first(text)}; move it away or name another file. Nothing was changed"
        )
    if isinstance(error, duckdb.FatalException):
        return StoreError(f"DuckDB stopped over {file} and was started anew: {_first(text)}; try again")
    if any(sign in text for sign in ("Corrupt", "corrupt", "enough bytes", "checksum", "deserialize", "Serialization")):
        return StoreCorruptError(
            f"{file} is damaged: {_first(text)}; restore it from a backup (nbflow backup), or move it and its folder "
            f"{str(layout.folder)!r} away to begin anew. Nothing was changed"
        )
    return StoreError(f"DuckDB could not work with {file}: {_first(text)}")


def _first(text: str) -> str:
    return text.strip().splitlines()[0].rstrip(".") if text.strip() else "no reason given"
