"""Values as the text of a YAML file, which :mod:`paribus.yaml_file.document` reads as the same values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paribus.errors import StudyFileError
from paribus.yaml_file.document import Node, parse_document, plain, read_text
from paribus.yaml_file.variables import has_variable

_ONE_LINE = 1_000_000


def yaml_text(values: Mapping[str, Any], width: int = _ONE_LINE) -> str:
    """Return the text of a mapping in the order of its keys.

    Text with ``${NAME}`` stands in single quotes, where it is no variable. YAML writes control characters, and lines
    that begin or end with a blank, in double quotes only: see :func:`stays_literal`.

    Args:
        values: what YAML can hold: mappings, lists or tuples, text, numbers, truth values, ``None``.
        width: where long texts are broken.
    """
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text


def stays_literal(text: str) -> bool:
    """Whether no value in a text of :func:`yaml_text` would be replaced by that of a variable."""
    written, read = parse_document(text, ""), parse_document(text, "", {})
    return not read.problems and plain(read.root) == plain(written.root)


def whole_text(file: Path, root: Node) -> str:
    """Return the text of a document: of its file, or of all its values where the file alone says something else.

    It does if the values depend on included files, variables or changes, or if the file was edited meanwhile.
    """
    values = plain(root)
    try:
        text = read_text(file)
        if plain(parse_document(text, str(file)).root) == values:
            return text
    except StudyFileError:
        pass
    return yaml_text(values)


class _Dumper(yaml.SafeDumper):
    """Writes text with variables in single quotes, and tuples as lists."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts each time: a reader of the file needs no anchors."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if has_variable(text) else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(tuple, lambda dumper, values: dumper.represent_list(values))
