"""Reads metric lines from a file that is still being written."""

from __future__ import annotations

from pathlib import Path

from paribus.run_folder.folder import MetricLine, parse_metric_line

_CHUNK = 1 << 22


class Tail:
    """Reads the complete lines that were added since the last call.

    Args:
        path: the file; it need not exist yet.
        offset: bytes that were read before.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self, limit: int | None = None) -> list[MetricLine]:
        """Return the new complete lines, at most 4 MB of them; empty if there are no new lines.

        Args:
            limit: read no further than this offset in the file; ``None``: no limit.

        Raises:
            RunFolderError: a complete line is not a metric line; the offset does not move.
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
