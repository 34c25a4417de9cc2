"""What `paribus.track` costs a training, as a share of its steps.

    make -C benchmarks track     # runs this, writes into docs/howto/track.md

A loop computes for 100 ms a step, with `log` of 30 metrics a step and without, in turns of 20 steps. Of `log`: its
processor time over that of a step, in the mean; its time over that of a step, in the median. Of the whole: a step with
a recorder beside it over a step without, in the median of the turns, which contains what else the machine does. The
exit status is 1 if either share of `log` is 1% or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import paribus

STEP_S = 0.1
TURN = 20
HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "howto" / "track.md"
BUSY = "On two cores that other programs use as well, so that the last line is mostly their doing:"
METRICS = {f"train/metric_{i}": i / 7 for i in range(27)}


def work(rounds: int) -> float:
    """Compute; return the seconds that it took."""
    began = time.perf_counter()
    total = 0.0
    for i in range(rounds):
        total += i * 0.5
    assert total >= 0
    return time.perf_counter() - began


def turn(run: paribus.TrackedRun | None, first: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Return the seconds of each step of a turn, those of each call of `log`, and the processor time of all calls."""
    steps, calls, busy = [], [], 0.0
    for step in range(first, first + TURN):
        seconds = work(rounds)
        if run is not None:
            began, spent = time.perf_counter(), time.thread_time()
            run.log(step, {**METRICS, "reward/mean": 0.5, "policy/entropy": 1.0, "response/length_mean": 30.0})
            _ = run.should_stop
            calls.append(time.perf_counter() - began)
            busy += time.thread_time() - spent
            seconds += calls[-1]
        steps.append(seconds)
    return steps, calls, busy


def main() -> int:
    """Measure, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10, help="turns of each kind")
    parser.add_argument("--page", action="store_true", help="write into docs/howto/track.md")
    options = parser.parse_args()
    rounds = round(STEP_S / work(100_000) * 100_000)
    with tempfile.TemporaryDirectory() as home:
        run = paribus.track("cost", "a", 1, home=home)
        turn(run, 1, rounds)  # the recorder starts meanwhile
        with_it, without, calls, busy = [], [], [], 0.0
        for k in range(options.turns):
            steps, logged, spent = turn(run, (k + 1) * TURN + 1, rounds)
            with_it.append(statistics.median(steps))
            calls += logged
            busy += spent
            without.append(statistics.median(turn(None, 0, rounds)[0]))
        run.finish()
    step = statistics.median(without)
    share, processor = statistics.median(calls) / step, busy / len(calls) / STEP_S
    ratio = statistics.median(a / b for a, b in zip(with_it, without, strict=True))
    lines = [
        "| of a step of 100 ms | |",
        "|---|---:|",
        f"| processor time of `log` with 30 metrics, mean of {len(calls)} calls | {100 * processor:.3f}% |",
        f"| time inside `log`, median | {100 * share:.3f}% |",
        f"| step with a recorder beside it over step without, median of {options.turns} turns | {ratio:.3f} |",
    ]
    print("\n".join(lines))
    if options.page:
        text = PAGE.read_text()
        head = text[: text.index("## Measured\n")]
        PAGE.write_text(f"{head}## Measured\n\n{BUSY}\n\n" + "\n".join(lines) + "\n")
    return 0 if max(share, processor) < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
