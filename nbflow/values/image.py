"""Pictures: what figures and images come back as."""

import struct
from typing import Any

from nbflow.errors import UsageError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Image:
    """A picture as PNG; shows itself in a notebook.

    Attributes:
        png: the PNG file's bytes.
        width: in pixels.
        height: in pixels.
    """

    __slots__ = ("height", "png", "width")

    def __init__(self, png: bytes) -> None:
        if png[:8] != _SIGNATURE or png[12:16] != b"IHDR" or len(png) < 24:
            raise UsageError("these bytes are no PNG picture; save the picture with format='png'")
        self.png = bytes(png)
        self.width, self.height = struct.unpack(">II", png[16:24])

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return self.png, {"width": self.width, "height": self.height}

    def __eq__(self, other: object) -> bool:
        return self.png == other.png if type(other) is Image else NotImplemented

    def __hash__(self) -> int:
        return hash(self.png)

    def __repr__(self) -> str:
        return f"<nbflow.Image {self.width}×{self.height}, {len(self.png):,} bytes of PNG>"
