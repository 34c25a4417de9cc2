"""Tokens a second end to end, sampling and training: the native runner against TRL's GRPOTrainer on this device.

    PYTHONPATH=benchmarks python -m gpu.trl [--trl-python PYTHON] [--out FOLDER] [--minutes N] [--tiny]

Both get the same model, prompts, length limit, types and number of updates, as `native_vs_trl` gives them on a CPU.
TRL samples with Transformers, the native runner with its own sampler; no vLLM. TRL comes from `--trl-python`, else from
the environment of `paribus runners install trl`, else from the Python that runs this.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from native_vs_trl import run_native, run_trl

from gpu import cases
from gpu.measure import GIB, Report, Unavailable, Values, options_of, parser_of
from gpu.steps import make_inputs
from paribus_runners.trl import runner


def python_of(named: Path | None) -> Path:
    """Return the Python that has TRL.

    Raises:
        Unavailable: no Python with TRL was found.
    """
    if named is not None:
        return named
    environment = runner.environment()
    state, why = environment.state()
    if state == "ready":
        return environment.python
    if importlib.util.find_spec("trl") is not None:
        return Path(sys.executable)
    raise Unavailable(f"TRL: {why}")


def against(case: cases.Steps, named: Path | None) -> Values:
    """Return the speeds and peaks of memory of both, and the ratio of the speeds.

    Raises:
        Unavailable: TRL is not installed; the native runner was not measured either.
        MemoryError: TRL found no memory.
        RuntimeError: TRL failed.
    """
    python = python_of(named)
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name), case)
        native = run_native(Path(name))
        speed = native["tokens"] / native["seconds"]
        try:
            trl = run_trl(Path(name), python)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or [""])[-1]
            kind = MemoryError if "OutOfMemoryError" in error.stderr else RuntimeError
            raise kind(f"TRL ended with {error.returncode}: {last}; native {speed:,.0f} tokens/s") from error
    theirs = trl["tokens"] / trl["seconds"]
    return {
        "tokens_per_s": speed,
        "trl": theirs,
        "ratio": speed / theirs,
        "tokens_each": [native["tokens"], trl["tokens"]],
        "measured_gib": native["peak"] / GIB,
        "trl_gib": trl["peak"] / GIB,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a row has failed."""
    parser = parser_of("trl", main.__doc__)
    parser.add_argument("--trl-python", type=Path, help="the Python of an environment that has TRL")
    parsed = parser.parse_args(arguments)
    options = options_of(parsed)
    report = Report("trl", options)
    for case in cases.TINY_TRL if options.tiny else cases.TRL:
        report.run(case.name, lambda case=case: against(case, parsed.trl_python))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
