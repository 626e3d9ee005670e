"""Encrypt what a sensitive step returned, where the environment has a key: `NBFLOW_KEY`, with the library `cryptography`.

A sealed value is `x` and JSON: the token as text, or a reference to the file that holds it. A token is a version, a salt, a
nonce and what AES-256-GCM makes of the encoded value, under a key that HKDF draws from NBFLOW_KEY and the salt.
"""

import base64
import os
from typing import TYPE_CHECKING

import msgspec

from nbflow import ids
from nbflow.errors import UndecodableError, UsageError
from nbflow.values.artifacts import ArtifactFolder
from nbflow.values.nodes import INLINE_LIMIT, Reader

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "NBFLOW_KEY"
SHORTEST = 32
_VERSION = b"\x01"
_SALT, _NONCE = 16, 12
_NEEDS = f"the {VARIABLE} it was sealed with"


def wanted() -> bool:
    """Whether sensitive values are to be sealed.

    Raises:
        UsageError: a key is set that is too short, or the library is missing: nothing may be stored in clear then.
    """
    key = os.environ.get(VARIABLE, "")
    if not key:
        return False
    if len(key) < SHORTEST:
        msg = (
            f"{VARIABLE} has {len(key)} characters and needs {SHORTEST}; "
            f"make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
        raise UsageError(msg)
    try:
        import cryptography  # noqa: F401
    except ImportError:
        msg = f"{VARIABLE} is set, but the library cryptography is not installed; pip install 'nbflow-workflows[encryption]'"
        raise UsageError(msg) from None
    return True


def sealed(data: bytes, files: ArtifactFolder | None) -> bytes:
    """An encoded value, sealed; a large one goes to a file."""
    salt, nonce = ids.random_bytes(_SALT), ids.random_bytes(_NONCE)
    token = _VERSION + salt + nonce + _cipher(salt).encrypt(nonce, data, None)
    if files is None or len(token) <= INLINE_LIMIT // 2:
        return b"x" + msgspec.json.encode(base64.b64encode(token).decode())
    uri, digest, size = files.write("sealed", token)
    return b"x" + msgspec.json.encode({"$": "file", "codec": "sealed", "uri": uri, "hash": digest, "size": size})


def unsealed(data: bytes, files: ArtifactFolder | None) -> bytes:
    """The encoded value again.

    Raises:
        UndecodableError: the key is missing or another one, or the token is damaged (S17).
    """
    if not os.environ.get(VARIABLE):
        msg = f"the value is sealed: set {VARIABLE} to the key it was sealed with, and restart this kernel"
        raise UndecodableError(msg, needs=_NEEDS)
    try:
        wanted()
    except UsageError as error:
        raise UndecodableError(str(error), needs=_NEEDS) from None
    from cryptography.exceptions import InvalidTag

    token = _token(data, files)
    salt, nonce, box = token[1 : 1 + _SALT], token[1 + _SALT : 1 + _SALT + _NONCE], token[1 + _SALT + _NONCE :]
    try:
        if token[:1] != _VERSION:
            raise InvalidTag
        return _cipher(salt).decrypt(nonce, box, None)
    except (InvalidTag, ValueError):
        msg = f"the value was sealed with another {VARIABLE}, or it is damaged; set the key it was sealed with"
        raise UndecodableError(msg, needs=_NEEDS) from None


def _token(data: bytes, files: ArtifactFolder | None) -> bytes:
    node = msgspec.json.decode(data[1:])
    if type(node) is not dict:
        return base64.b64decode(node)
    with Reader(files).open(node) as file:
        return file.read()


def _cipher(salt: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    material = os.environ[VARIABLE].encode("utf-8", "surrogateescape")
    return AESGCM(HKDF(SHA256(), 32, salt, b"nbflow sealed value").derive(material))
