"""What goes through the pipes between the engine and its processes: a kind, a length, that many bytes."""

import struct
from typing import IO

HEAD = struct.Struct("!cQ")  # what a frame is, and its length
READY, REQUEST, MESSAGE, REPLY = b"y", b"q", b"m", b"r"


def write_frame(stream: IO[bytes], kind: bytes, data: bytes) -> None:
    """Write one frame."""
    stream.write(HEAD.pack(kind, len(data)) + data if len(data) < 1 << 16 else HEAD.pack(kind, len(data)))
    if len(data) >= 1 << 16:
        stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """Read one frame; EOFError where there is none."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    kind, size = HEAD.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return kind, data
