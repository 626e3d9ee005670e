"""What `system` gives, for Windows; there, too, files of ours may be renamed and removed while they are open."""

import ctypes
import msvcrt
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import wintypes

assert sys.platform == "win32"

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateFileW.restype = wintypes.HANDLE
_kernel.CreateFileW.argtypes = [
    wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, wintypes.LPVOID, wintypes.DWORD, wintypes.DWORD, wintypes.HANDLE,
]  # fmt: skip

_READ, _WRITE = 0x80000000, 0x40000000  # GENERIC_READ, GENERIC_WRITE
_SHARED = 7  # FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE
_CREATE_NEW, _CREATE_ALWAYS, _OPEN_EXISTING, _OPEN_ALWAYS, _TRUNCATE_EXISTING = range(1, 6)
_NOBODYS = wintypes.HANDLE(-1).value  # INVALID_HANDLE_VALUE
_AT_ONCE, _EXCLUSIVE = 1, 2  # LOCKFILE_FAIL_IMMEDIATELY, LOCKFILE_EXCLUSIVE_LOCK
_HELD = (33, 997)  # ERROR_LOCK_VIOLATION, ERROR_IO_PENDING
_LOCKED_AT = 0x7FFFFFFF  # upper half of the place of the byte that is locked: what a file holds stays readable for all

_moving = threading.Lock()  # while a file's offset is away from its place


class _Overlapped(ctypes.Structure):
    """OVERLAPPED."""

    _fields_ = (
        ("internal", ctypes.c_void_p),
        ("internal_high", ctypes.c_void_p),
        ("offset", wintypes.DWORD),
        ("offset_high", wintypes.DWORD),
        ("event", wintypes.HANDLE),
    )


_WORD, _PLACE = wintypes.DWORD, ctypes.POINTER(_Overlapped)
_kernel.LockFileEx.argtypes = [wintypes.HANDLE, _WORD, _WORD, _WORD, _WORD, _PLACE]
_kernel.UnlockFileEx.argtypes = [wintypes.HANDLE, _WORD, _WORD, _WORD, _PLACE]


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a file that is no link, which others may remove meanwhile; gives its descriptor."""
    del mode  # who may read it is told by its folder
    if os.path.islink(path):
        raise OSError(0, "it is a symbolic link", str(path), 1920)  # ERROR_CANT_ACCESS_FILE
    access = {os.O_RDONLY: _READ, os.O_WRONLY: _WRITE}.get(flags & (os.O_WRONLY | os.O_RDWR), _READ | _WRITE)
    if flags & os.O_CREAT:
        exclusive, anew = flags & os.O_EXCL, flags & os.O_TRUNC
        how = _CREATE_NEW if exclusive else _CREATE_ALWAYS if anew else _OPEN_ALWAYS
    else:
        how = _TRUNCATE_EXISTING if flags & os.O_TRUNC else _OPEN_EXISTING
    handle = _kernel.CreateFileW(os.path.abspath(path), access, _SHARED, None, how, 0x80, None)  # FILE_ATTRIBUTE_NORMAL
    if handle == _NOBODYS:
        raise _error(path)
    return msvcrt.open_osfhandle(handle, (flags & os.O_APPEND) | os.O_BINARY | os.O_NOINHERIT)


def read_at(descriptor: int, size: int, place: int) -> bytes:
    """Read at most *size* bytes from *place* on; the offset of the file stays."""
    with _moved(descriptor, place):
        return os.read(descriptor, size)


def write_at(descriptor: int, data: bytes, place: int) -> int:
    """Write to *place*, the offset of the file stays; gives how many bytes were written."""
    with _moved(descriptor, place):
        return os.write(descriptor, data)


@contextmanager
def _moved(descriptor: int, place: int) -> Iterator[None]:
    with _moving:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, place, os.SEEK_SET)
            yield
        finally:
            os.lseek(descriptor, offset, os.SEEK_SET)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file if nobody else has it locked.

    Raises:
        OSError: the file system has no locks.
    """
    how = _AT_ONCE | (0 if shared else _EXCLUSIVE)
    if _kernel.LockFileEx(msvcrt.get_osfhandle(descriptor), how, 0, 1, 0, ctypes.byref(_there())):
        return True
    if ctypes.get_last_error() in _HELD:
        return False
    raise _error(None)


def unlock(descriptor: int) -> None:
    """Give the lock of an open file back."""
    if not _kernel.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 0, 1, 0, ctypes.byref(_there())):
        raise _error(None)


def sync_data(descriptor: int) -> None:
    """Make what was written to a file last."""
    os.fsync(descriptor)


def _there() -> _Overlapped:
    return _Overlapped(offset_high=_LOCKED_AT)


def _error(path: str | os.PathLike[str] | None) -> OSError:
    code = ctypes.get_last_error()
    return OSError(0, ctypes.FormatError(code), None if path is None else str(path), code)
