"""A kind of file and what reads it: whatever bytes the file holds, the reader returns values or one error."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hypothesis import strategies as st

from paribus.errors import ParibusError
from support.confined import confined
from support.damage import COUNT, TEXTS, damaged, dice, put
from support.drive import drive


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: of the file.
        valid: files that are read without an error.
        read: what reads it.
        share: what share of the usual number of inputs is read.
        named: whether errors name the path of the file; an answer of a server has none.
        made: further inputs, drawn by Hypothesis.
    """

    name: str
    valid: Sequence[bytes]
    read: Callable[[Path], object]
    share: float = 1.0
    named: bool = True
    made: st.SearchStrategy[bytes] | None = None


def reader(kind: Kind, folder: Path) -> Callable[[bytes], None]:
    """Return what writes bytes into a file and reads them.

    An error must be one of ours, fit on a terminal, and be short enough to be read.
    """
    path = folder / kind.name
    path.parent.mkdir(parents=True, exist_ok=True)
    place = str(path.parents[1] if kind.name.count("/") == 2 else path)  # a folder of MLflow is named whole

    def read(data: bytes) -> None:
        put(path, data)
        try:
            kind.read(path)
        except ParibusError as error:
            said = str(error)
            assert said.replace("\n", "").isprintable(), said
            assert max(map(len, said.splitlines())) < 2000, said
            assert place in said or not kind.named, said

    return read


def check_kind(label: str, kind: Kind, folder: Path) -> None:
    """Give a reader inputs.

    All but a fiftieth are damaged files, which cost a hundredth of what Hypothesis needs to draw one input.
    """
    read = reader(kind, folder)

    def work() -> None:
        for number in range(-len(TEXTS), int(COUNT * kind.share)):
            data = TEXTS[number] if number < 0 else _damaged(kind, dice(label, number))
            try:
                read(data)
            except BaseException as error:
                error.add_note(f"{label} {number}: {data[:2000]!r}")
                raise
        drive(label, drawn, read, folder, share=0.02 * kind.share)

    drawn = _made_up(kind)
    drawn.validate()  # makes the tables of Unicode here, once, and not in each fork
    (folder / kind.name).write_bytes(kind.valid[0])
    kind.read(folder / kind.name)
    confined(work, folder)


def _damaged(kind: Kind, chance: Random) -> bytes:
    """Return a damaged file; of a compressed one, mostly what is inside is damaged."""
    if kind.name.endswith(".gz") and chance.random() < 0.8:
        return gzip.compress(damaged([gzip.decompress(data) for data in kind.valid], chance), 1, mtime=0)
    return damaged(list(kind.valid), chance)


def _made_up(kind: Kind) -> st.SearchStrategy[bytes]:
    drawn = st.one_of(st.binary(max_size=300), st.text().map(_encoded))
    return drawn if kind.made is None else st.one_of(kind.made, kind.made, drawn)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
