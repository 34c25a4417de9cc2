"""Follows a file of metric lines that is still being written."""

from __future__ import annotations

from pathlib import Path

from paribus.track.folder import MetricLine, parse_metric_line

_CHUNK = 1 << 22


class Tail:
    """Reads the complete lines that were added since the last call.

    Args:
        path: the file; it need not be there yet.
        offset: bytes that were read before.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self, limit: int | None = None) -> list[MetricLine]:
        """Return the new complete lines, at most some megabytes of them; empty if there are none.

        Args:
            limit: bytes of the file to look at; absent: all.

        Raises:
            RunFolderError: a complete line is not a metric line; nothing of this call is taken as read.
        """
        size = _CHUNK if limit is None else min(_CHUNK, limit - self.offset)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(size)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        place = f"{self.path} after byte {self.offset}"
        lines = [parse_metric_line(text, place) for text in data[:end].split(b"\n")[:-1]]
        self.offset += end
        return lines
