"""``python -m paribus.engines.ray_program FILE``: the entrypoint of a Ray Job, which keeps one Ray program.

The program gets the variables by which it joins the cluster as a part of this Ray Job. A Ray Job hears no signal but
the one that ends it by force; so the signals that the engine sends lie in a file beside the order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from paribus.engines.process import signal_group
from paribus.engines.ray_keeper import Order, keep, write_number

_TICK_S = 0.1


def write_order(file: Path, order: Order) -> None:
    """Write what to start, environment included: only its owner may read it."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:  # noqa: PTH123
        json.dump(asdict(order), stream)


def write_signal(order: Path, number: int) -> None:
    """Let the signal reach the program, which may not have begun."""
    write_number(_signal_of(order), number)


def main(arguments: Sequence[str]) -> int:
    """Keep the program of an order to its end."""
    file = Path(arguments[0])
    values = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    order = Order(**{**values, "arguments": tuple(values["arguments"])})
    if _signal_of(file).exists():  # taken back before it began
        write_number(Path(order.note), -signal.SIGTERM)
        return 0
    joins = {k: v for k, v in os.environ.items() if k.startswith("RAY_")}
    keep(order, {**joins, "CUDA_VISIBLE_DEVICES": ""}, lambda pid: _listen(file, pid))
    return 0


def _listen(file: Path, pid: int) -> None:
    """Pass on the signals that are written into the file, each once, from now on."""
    if pid:
        threading.Thread(target=_pass_on, args=(_signal_of(file), pid), daemon=True).start()


def _pass_on(file: Path, pid: int) -> None:
    told = ""
    while True:
        with suppress(OSError):
            number = file.read_text()
            if number != told:
                told = number
                signal_group(pid, int(number))
        time.sleep(_TICK_S)


def _signal_of(order: Path) -> Path:
    return order.with_suffix(".signal")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
