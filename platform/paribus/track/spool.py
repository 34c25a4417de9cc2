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

    def read(self) -> list[MetricLine]:
        """Return the new complete lines, at most some megabytes of them; empty if there are none.

        Raises:
            RunFolderError: a complete line is not a metric line; it stays unread.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        place = f"{self.path} after byte {self.offset}"
        lines = [parse_metric_line(text, place) for text in data[:end].split(b"\n")[:-1]]
        self.offset += end
        return lines
