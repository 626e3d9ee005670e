"""What a step is measured against: the least that durability costs without nbflow."""

import os
from pathlib import Path
from statistics import median
from time import perf_counter

import duckdb

APPENDS = 100
COMMITS = 30
LINE = b"x" * 249 + b"\n"


class Bare:
    """A file and a DuckDB table in one folder."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "bare.log", os.O_WRONLY | os.O_CREAT, 0o600)
        self._at = 0
        self._connection = duckdb.connect(str(folder / "bare.duckdb"))
        self._connection.execute("create table t (seq bigint, name varchar, value varchar)")

    def append(self) -> float:
        """Milliseconds for one append of 250 bytes and its `fdatasync`."""
        took = []
        for _ in range(APPENDS):
            started = perf_counter()
            os.pwrite(self._file, LINE, self._at)
            self._at += len(LINE)
            os.fdatasync(self._file)
            took.append(perf_counter() - started)
        return median(took) * 1000

    def commit(self) -> float:
        """Milliseconds for one `insert` with its commit on a default connection."""
        took = []
        for seq in range(COMMITS):
            started = perf_counter()
            self._connection.execute("insert into t values (?, 'embed', 'value')", [seq])
            took.append(perf_counter() - started)
        return median(took) * 1000

    def close(self) -> None:
        os.close(self._file)
        self._connection.close()
