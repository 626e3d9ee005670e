"""The only reader of randomness: new ids."""

import os
import re
import time
import uuid

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
GENERATED = re.compile(rf"(?<=-)[01][{_ALPHABET}]{{17}}(?![A-Za-z0-9_])")
"""What `new_instance_id` puts behind a workflow's name, wherever it stands in a text: until the year 4199."""


def _base32(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, rest = divmod(number, 32)
        text = _ALPHABET[rest] + text
    return text


def new_instance_id(workflow: str) -> str:
    """A new sortable id (S1): the workflow's name, then 48 bits of milliseconds and 40 random ones (UUIDv7's parts)."""
    moment = _base32(time.time_ns() // 1_000_000, 10)
    chance = _base32(int.from_bytes(os.urandom(5)), 8)
    return f"{workflow.lower()[:60]}-{moment}{chance}"


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess: salts and nonces."""
    return os.urandom(count)


def new_uid() -> str:
    """32 hex digits for stores, engines, events: never a pid, which the system gives out again."""
    return uuid.uuid4().hex
