"""The journal of one engine: append, sync in groups, acknowledge.

Entries are queued by any thread and put into the file by the journal's own thread, or by a caller of `write` who wants
them in the file before a body runs. One `fdatasync` makes a whole batch durable; then its acknowledgements go out, in
order. The file is written at the last good offset, so a short write or a full disk is written over, not behind. Zeros lie
ahead of the lines: a sync has no new length of the file to make durable then, and takes a third less.

One thread may promise to call `sync` before it rests (the workflow loop does): while syncs are quick they are done there,
because handing each to the journal's thread and back costs several times the sync itself.
"""

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nbflow.clock import SystemClock, pause
from nbflow.errors import NbflowError, StoreError, refusal
from nbflow.store import lines
from nbflow.store.descriptor import Descriptor, of_folder
from nbflow.store.files import open_own
from nbflow.store.segments import AHEAD, segment_path, segments
from nbflow.system import sync_data, sync_folder, write_at

Acked = Callable[[], None]

SEGMENT = 16 * 1024 * 1024
_BATCH = 10_000
_RETRY = 0.1
_QUICK = 0.001  # seconds: a sync that takes longer is left to the journal's thread
_DELETED = "was deleted while its engine was at work: nothing more can be recorded; restart this kernel"
_log = logging.getLogger("nbflow")
_monotonic = SystemClock().monotonic


class _NotNowError(Exception):
    """The system refuses to write now, as it says; the same bytes are written to the same place later."""

    def __init__(self, error: OSError) -> None:
        super().__init__(refusal(error))


class Journal:
    """Writes what one engine records about its own instances.

    Args:
        folder: the journal folder.
        engine: the engine's id.
        store: the store's id, repeated in every header.
        acknowledge: given a batch's acknowledgements in order, from the journal's thread.
        segment: bytes after which a new file begins.

    Attributes:
        synced: the position up to which everything is durable.
        promise: told each such position before anything is acknowledged.
        trouble: what keeps the journal from being written now, None where nothing does.
        syncer: the thread that calls `sync` before it rests: what it appends does not wake the journal's own.
    """

    def __init__(
        self, folder: Path, engine: str, store: str, acknowledge: Callable[[list[Acked]], None], *, segment: int = SEGMENT
    ) -> None:
        self.synced = self.syncer = 0
        self.promise: Callable[[int], None] = lambda _position: None
        self._folder, self._engine, self._store = folder, engine, store
        self._acknowledge, self._segment = acknowledge, segment
        self._queue: deque[tuple[bytes, Acked | None]] = deque()
        self._syncing = threading.Lock()  # one at a time, so that acknowledgements go out in order
        self._due = False
        self._took = 0.0  # seconds, by the last syncs
        self._writing = threading.Lock()  # of everything down to _acks
        self._file: Descriptor | None = None
        self._opened_folder = of_folder(folder)
        self._distrusted = self._listed = False
        self._first = self._offset = self._filled = 0
        self._headed = -1
        self._unwritten = b""
        self._unsynced: deque[tuple[int, bytes]] = deque()
        self._acks: list[Acked] = []
        self._flushes: list[tuple[threading.Event, list[NbflowError]]] = []
        self._failure: StoreError | None = None
        self.trouble: StoreError | None = None
        self._closing = self._awake = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self.thread = threading.Thread(target=self._run, name="nbflow-journal", daemon=True)
        self.thread.start()

    @property
    def written(self) -> int:
        """The position up to which the file holds good lines, durable or not yet."""
        return self._offset

    @property
    def behind(self) -> bool:
        """Whether something appended is not durable yet."""
        return bool(self._queue) or self._offset > self.synced or bool(self._unwritten)

    def append(self, line: bytes, acked: Acked | None = None) -> None:
        """Queue a line; without *acked* it waits for the next batch. An empty one only asks for what is before it."""
        if self._failure is not None:
            raise self._failure
        if self._closing:
            msg = "this engine is closed: nothing more is recorded; make a new Engine"
            raise StoreError(msg)
        self._queue.append((line, acked))
        if acked is None:
            return
        if threading.get_ident() == self.syncer:
            self._due = True
        elif not self._awake:
            self._signal()

    def sync(self) -> None:
        """Make durable what the `syncer` has appended and acknowledge it; where that takes long, or elsewhere, have it done."""
        if not self._due:
            return
        self._due = False
        here = threading.get_ident() == self.syncer and self._took <= _QUICK and self._failure is None
        if not here or not self._syncing.acquire(blocking=False):
            self._signal()
            return
        try:
            if self._closing or not self._sync():  # once it is closed there is no file any more
                self._signal()
        except _NotNowError:
            self._signal()  # the journal's thread meets it again, and says so
        finally:
            self._syncing.release()

    def write(self) -> None:
        """Put everything queued into the file, from the calling thread."""
        if not self._queue:
            return
        try:
            with self._writing:
                while self._queue:
                    self._write_queued()
        except _NotNowError:
            self._signal()  # the journal's thread tries again, and says so
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Return when everything appended so far is durable.

        Raises:
            StoreError: the journal has failed, or it cannot be written now.
        """
        if self._failure is not None:
            raise self._failure
        if not self.behind:
            return
        done, errors = threading.Event(), list[NbflowError]()
        self._flushes.append((done, errors))
        self._signal()
        while not done.wait(1.0):
            if not self.thread.is_alive():
                raise self._failure or StoreError("this engine is closed: what was appended last may not be recorded")
        if errors:
            raise errors[0]

    def remove_until(self, position: int) -> None:
        """Remove the files that end at or before *position*: they are in the DuckDB file for good."""
        removed = False
        for segment in segments(self._folder, self._engine)[:-1]:
            if segment.end <= position:
                segment.path.unlink(missing_ok=True)
                removed = True
        if removed:
            sync_folder(self._folder)

    def close(self) -> None:
        """Make durable what is queued, then stop; a full disk does not hold it up."""
        self._closing = True
        self._signal()
        self.thread.join()
        with self._syncing:
            self.let_go()

    def leave_to_parent(self, failure: StoreError) -> None:
        """In a forked child: take nothing more."""
        self._failure = failure
        self.let_go()

    def let_go(self) -> None:
        """Close what is open."""
        self.abandon()
        if self._opened_folder is not None:
            self._opened_folder.close()

    def abandon(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _signal(self) -> None:
        self._awake = True
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it was awake already

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            self._awake = False
            closing = self._closing
            flushes, self._flushes = self._flushes, []
            try:
                batches = len(self._queue) // _BATCH + 1  # what comes later wakes this thread again
                # Lines that `write` put in while a rotation synced them are durable, and not acknowledged yet.
                while batches and (self.behind or self._acks) and self._failure is None:
                    with self._syncing:
                        batches -= self._sync()
                error: NbflowError | None = self._failure
            except _NotNowError as why:
                error = StoreError(
                    f"the journal in {str(self._folder)!r} cannot be written: {why}, the entries wait and are written then"
                )
                if self.trouble is None:
                    _log.warning("%s", error)
                self.trouble = error
            else:
                self.trouble = None
            for done, errors in flushes:
                if error is not None:
                    errors.append(error)
                done.set()
            if closing:
                return
            if error is not None and self._failure is None:
                pause(_RETRY)
                self._signal()

    def _sync(self) -> bool:
        """Make durable what is queued now, and say so; False where it has to be done again."""
        with self._writing:
            if self._distrusted:
                self._begin_again()
            self._write_queued()
            if not self._listed:
                self._list()
            acks, self._acks = self._acks, []
            target, file = self._offset, self._file
        assert file is not None  # `_write_queued` opened one
        started = _monotonic()
        try:
            sync_data(file.number)
            if not file.good:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            named = file.named
        except OSError as error:
            # The kernel may have dropped the pages and would say yes the next time: the file is not trusted again.
            _log.warning("fdatasync of the journal in %r failed (%s): a new file is begun", str(self._folder), error)
            with self._writing:
                self._acks = acks + self._acks
                self._distrusted = True
            return False
        self._took += (_monotonic() - started - self._took) / 8
        if not named:
            self._fail(_DELETED)
            return False
        self.synced = target
        self.promise(target)
        with self._writing:
            while self._unsynced and self._unsynced[0][0] <= target:
                self._unsynced.popleft()
        if acks:
            self._acknowledge(acks)
        with self._writing:
            if self._offset - self._first >= self._segment:
                self._rotate()
        return True

    def _write_queued(self) -> None:
        queue = self._queue
        count = min(len(queue), _BATCH)
        if count:
            batch = []
            if self._headed != self.synced or self._file is None:
                self._headed = self.synced
                batch.append(lines.header(self._store, self.synced, self._engine, self._offset + len(self._unwritten)))
            for _ in range(count):
                line, acked = queue.popleft()
                if line:
                    batch.append(lines.framed(line))
                if acked is not None:
                    self._acks.append(acked)
            self._unwritten += b"".join(batch)
        if self._file is None:
            self._open_segment(self._offset)
        if self._unwritten:
            self._put()

    def _put(self) -> None:
        """Write `_unwritten` at the last good offset; what is there beyond it was torn and is written over."""
        data, place = self._unwritten, self._offset - self._first
        end = place + len(data)
        left = data if end <= self._filled else data + AHEAD
        try:
            number = self._reached().number
            while place < end:
                count = write_at(number, left, place)
                if count <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left, place = left[count:], place + count
        except OSError as error:
            raise _NotNowError(error) from error
        self._unwritten, self._filled = b"", max(self._filled, place)
        self._offset += len(data)
        self._unsynced.append((self._offset, data))

    def _reached(self) -> Descriptor:
        """The file; opened anew where user code has closed its descriptor."""
        file = self._file
        assert file is not None  # `_open_segment` came before
        if not file.good:
            try:
                again = Descriptor(open_own(segment_path(self._folder, self._engine, self._first), os.O_RDWR))
            except FileNotFoundError:
                again = None
            if again is None or again.file != file.file:
                self._fail(_DELETED)
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._file = file = again
        return file

    def _open_segment(self, first: int) -> None:
        """Go on in a file that begins there, which is known to the folder before anything in it counts."""
        try:
            path = segment_path(self._folder, self._engine, first)
            new = Descriptor(open_own(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise _NotNowError(error) from error
        self.abandon()
        self._file, self._first, self._filled, self._listed = new, first, 0, False

    def _list(self) -> None:
        """Make the name of the file last; the folder stays open, so that this needs no descriptor when none is free."""
        try:
            if self._opened_folder is not None and not self._opened_folder.good:
                self._opened_folder = of_folder(self._folder)
            if self._opened_folder is not None:
                os.fsync(self._opened_folder.number)
        except OSError as error:
            raise _NotNowError(error) from error
        self._listed = True

    def _rotate(self) -> None:
        """Begin a new file; all of the old one is durable first, so that damage in it can't pass for its end."""
        try:
            number, self._filled = self._reached().number, self._offset - self._first
            os.ftruncate(number, self._filled)
            sync_data(number)
        except OSError as error:
            self._distrusted = True
            raise _NotNowError(error) from error
        self.synced = self._offset
        self.promise(self.synced)
        self._unsynced.clear()
        try:
            self._open_segment(self._offset)
        except _NotNowError:
            return  # no room or no descriptor for another one: the old file does, and it is tried again
        self._headed = -1

    def _begin_again(self) -> None:
        """Put the bytes that were not durable into a new file, at the positions they had."""
        if self.synced == self._first:  # the file of that name is the one that failed
            path = segment_path(self._folder, self._engine, self._first)
            try:
                path.rename(path.with_suffix(".failed"))
            except FileNotFoundError:
                pass  # somebody has removed it
            except OSError as error:
                raise _NotNowError(error) from error
        self._unwritten = b"".join(part for _, part in self._unsynced) + self._unwritten
        self._unsynced.clear()
        self._offset = self.synced
        self.abandon()
        self._distrusted = False
        self._open_segment(self.synced)
        self._put()
        try:
            sync_data(self._reached().number)
        except OSError as error:
            self._distrusted = True
            raise _NotNowError(error) from error

    def _fail(self, what: str) -> None:
        self._failure = self._failure or StoreError(f"the journal of this engine in {str(self._folder)!r} {what}")
        _log.error("%s", self._failure)
