"""A process of its own for one request of a server: it plans and submits a study, or writes a report.

Both may take seconds of computing and much memory, which the server that answers others must not spend; and a study
that hangs a library is killed with its process, below a :mod:`~paribus.engines.keeper`. The order comes as JSON on
standard input, the answer leaves on standard output.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paribus.errors import ParibusError, ServerError
from paribus.masking import mask_output
from paribus.remote.answers import error_to_json
from paribus.remote.bundle import pack_report, unpack_study
from paribus.remote.submission import submit_file


def main() -> None:
    """Do what standard input asks for."""
    mask_output()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    order = json.load(sys.stdin)
    _limit(order["memory_gib"])
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        stage = Path(folder)
        try:
            answer = {"answer": submit(order, stage) if order["do"] == "submit" else report(order, stage)}
        except (ParibusError, MemoryError) as error:
            found = error if isinstance(error, ParibusError) else _too_large(order["memory_gib"])
            answer = {"error": error_to_json(found, stage, Path(order["bundle"]).parent)}
    with answers:
        json.dump(answer, answers)


def _limit(gib: float) -> None:
    """Limit the memory of this process, and of each that it starts; a smaller limit that it has already is kept.

    What it maps of files, such as libraries, does not count: the kernel can take that back.
    """
    wanted = int(gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _too_large(gib: float) -> ServerError:
    limit = f"this takes more than {gib:g} GiB of memory, the limit of this server for a plan or a report"
    return ServerError(f"{limit}: PARIBUS_API_MEMORY_GIB, where it is started, sets another.")


def submit(order: Mapping[str, Any], stage: Path) -> dict[str, Any]:
    """Submit the study in a bundle.

    Relative paths of data and models begin in the folder that the server was started in, as they do for the scheduler's
    runs; reward functions lie beside the study, in ``stage``, and the plan takes their source along.
    The file is whole: it may not read variables or files of this machine.
    """
    file = unpack_study(Path(order["bundle"]), stage)
    return asdict(submit_file(file, Path(order["home"]), order["terms"], sent=True))


def report(order: Mapping[str, Any], stage: Path) -> dict[str, Any]:
    """Write the bundle of a report into the file that the order names."""
    from paribus.report.write import write_report
    from paribus.store.reader import Reader

    with Reader.open(Path(order["home"])) as reader:
        written = write_report(reader, order["study"], stage / "report", order["published"], width=order["width"])
    paths = [path.relative_to(stage / "report").as_posix() for path in written.paths]
    about = {"text": written.text, "notes": list(written.notes), "paths": paths}
    Path(order["bundle"]).write_bytes(pack_report(order["study"], about, stage / "report"))
    return {}


if __name__ == "__main__":
    main()
