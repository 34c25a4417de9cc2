"""The jobs of the engines' tests: ``touch``, ``exit``, ``sleep``, ``fork``, ``hide``, ``env``, ``ray`` and others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Do one thing.

    ``touch FILE`` adds a line with the arguments; ``exit N`` returns N; ``fail`` raises; ``sleep FILE`` writes
    its process id, sleeps a minute, and exits with 7 on SIGTERM; ``deaf FILE`` does not hear SIGTERM; ``fork FILE
    OTHER`` sleeps, and so does a child in a session of its own, whose process id is in OTHER; ``hide FILE OTHER`` is
    the same with a grandchild that has lost its parent and has nothing in its environment; ``env FILE`` writes its
    environment as JSON; ``ray FILE OTHER`` is a Ray program that sleeps: it lets two of its workers hold a GPU each,
    whose names are in OTHER.
    """
    match arguments[0]:
        case "touch":
            with Path(arguments[1]).open("a") as file:
                file.write(" ".join(arguments) + "\n")
        case "env":
            Path(arguments[1]).write_text(json.dumps(dict(os.environ)))
        case "exit":
            return int(arguments[1])
        case "fail":
            raise ValueError("a job of the conformance suite fails on purpose")
        case "fork":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
            Path(arguments[2]).write_text(str(child.pid))
            return main(["sleep", arguments[1]])
        case "ray":
            workers = _ray_workers(Path(arguments[2]))
            return main(["sleep", arguments[1]]) if workers else 1
        case "hide":
            hidden = (
                f"import os, time; os.fork() and os._exit(0); open({arguments[2]!r}, 'w').write(str(os.getpid())); "
            )
            command = [sys.executable, "-c", f"{hidden} time.sleep(60)"]
            subprocess.Popen(command, start_new_session=True, env={}).wait()
            return main(["sleep", arguments[1]])
        case "sleep" | "deaf":
            signal.signal(signal.SIGTERM, _exit if arguments[0] == "sleep" else signal.SIG_IGN)
            Path(arguments[1]).write_text(str(os.getpid()))
            for _ in range(600):
                time.sleep(0.1)
    return 0


def _ray_workers(file: Path) -> list[object]:
    import ray

    ray.init(logging_level="ERROR", log_to_driver=False)
    workers = [ray.remote(num_gpus=1, num_cpus=0)(_Worker).remote() for _ in range(2)]
    file.write_text(" ".join(ray.get([w.gpu.remote() for w in workers])))
    return workers


class _Worker:
    def gpu(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def _exit(*_: object) -> None:
    os._exit(7)
