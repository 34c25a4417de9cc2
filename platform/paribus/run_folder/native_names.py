"""Names for numbers of a trainer that are not canonical, and ``names.json``, which keeps them.

The next attempt of a run then makes the same of them, in whatever order they come.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json, write_json

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_./-]")


class NativeNames:
    """Names for numbers of a trainer that are not canonical, in the alphabet of MLflow: another one for each number.

    Of names that differ only in other characters, the first keeps the plain form, and the others end in a digest.

    Args:
        renamed: what an earlier attempt of the run has made of names.

    Attributes:
        renamed: names that were changed, with what they became.
        doubles: those of them that end in a digest.
    """

    def __init__(self, renamed: Mapping[str, str] = MappingProxyType({})) -> None:
        self.renamed = {name: given for name, given in renamed.items() if given in (_plain(name), _marked(name))}
        self.doubles = {name: given for name, given in self.renamed.items() if given != _plain(name)}
        self._names = dict(self.renamed)
        self._given = set(self.renamed.values())

    def learn(self, names: Iterable[str]) -> None:
        """Take names in, in an order that is their own: names that need no change come first."""
        for name in sorted((n for n in names if n not in self._names), key=lambda n: (_plain(n) != n, n)):
            given = _plain(name)
            if given in self._given:
                self.doubles[name] = given = _marked(name)
            if given != name:
                self.renamed[name] = given
            self._names[name] = given
            self._given.add(given)

    def of(self, name: str) -> str:
        """Return what a name becomes."""
        self.learn([name])
        return self._names[name]


class NamesFile:
    """Native names that are kept in the folder of an attempt.

    Args:
        folder: the folder of the attempt.

    Attributes:
        names: the names, with those that the file has. A damaged file has none.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._file = folder.names
        self.names = NativeNames(_read(folder))
        self._saved = len(self.names.renamed)

    def save(self) -> None:
        """Write the names that are new; call it before a metric has one of them."""
        if len(self.names.renamed) > self._saved:
            write_json(self._file, self.names.renamed)
            self._saved = len(self.names.renamed)


def _plain(name: str) -> str:
    return _FORBIDDEN.sub("_", name)


def _marked(name: str) -> str:
    return f"{_plain(name)}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def _read(folder: RunFolder) -> dict[str, str]:
    try:
        found = read_json(folder.names)
    except RunFolderError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: given for name, given in pairs if isinstance(given, str)}
