"""Worker processes: whatever a function does, its call ends in time, alone, and nothing of it is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paribus.errors import ParibusError
from paribus_runners.rewards import pool
from paribus_runners.rewards.functions import scores
from paribus_runners.rewards.pool import PASSED_ON, Outcome, Pool, Worker, environment, workers
from paribus_runners.rewards.worker import MORE_TASKS, MOST_FILE

SOURCE = """
import ctypes, os, signal, subprocess, sys, time

def lengths(prompts, completions, answer, **columns):
    return [float(len(c)) for c in completions]

def of_columns(completions, level, **columns):
    return level

async def later(completions):
    return [1] * len(completions)

def sleeps(completions):
    time.sleep(600)

def stops(completions):
    os.kill(os.getpid(), signal.SIGSTOP)

def forks(completions):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            open(os.path.dirname(__file__) + f"/child-{os.getpid()}", "w").close()
            time.sleep(600)
    time.sleep(600)

HIDES = "import os, sys, time; open(sys.argv[1] + f'/child-{os.getpid()}', 'w').close(); time.sleep(600)"

def hides(completions):
    here = os.path.dirname(os.path.abspath(__file__))
    started = [subprocess.Popen([sys.executable, "-c", HIDES, here], env={}, start_new_session=True) for _ in range(2)]
    while sum(name.startswith("child-") for name in os.listdir(here)) < 2:
        time.sleep(0.01)
    if completions[0] == "a":
        time.sleep(600)
    if completions[0] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return [1.0] * len(completions)

def forks_and_returns(completions):
    os.fork()
    return [2.0] * len(completions)

def raises(completions):
    raise ValueError("no digits in " + completions[0])

def exits(completions):
    os._exit(3)

def leaves(completions):
    sys.exit("enough")

def text(completions):
    return ["1.0"] * len(completions)

def nothing(completions):
    return None

def none(completions):
    return [None] * len(completions)

def short(completions):
    return [1.0]

def nan(completions):
    return [float("nan")] * len(completions)

def huge(completions):
    return [10**400] * len(completions)

def eats(completions):
    return [float(len(bytearray(8 << 30)))] * len(completions)

def closes(completions):
    os.closerange(0, 256)
    time.sleep(600)

def prints(completions):
    print("hello", "x" * 1_000_000)
    os.write(1, b'{"ok": true, "value": [9, 9, 9]}\\n')
    subprocess.run(["echo", "from a child"], check=True)
    return [1.0] * len(completions)

def variables(completions):
    return [",".join(sorted(os.environ))]

def misnamed(completions):
    ctypes.CDLL(None).prctl(15, b"\\xff\\xfe", 0, 0, 0)
    time.sleep(600)

def shouts(completions):
    return [1.0 if c != "bad" else time.sleep(600) for c in completions]
"""
CALL = {"prompts": ["p"] * 3, "completions": ["a", "bb", "ccc"], "answer": ["1"] * 3, "level": [3, 4, 5]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the functions, where they also leave their traces."""
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.setenv("PARIBUS_REWARD_WRITES", str(tmp_path))
    return tmp_path


def _pool(folder: Path, name: str, *, timeout_s: float = 0.5, memory_gib: float = 1.0, size: int = 1) -> Pool:
    worker = Worker(path=f"mine.{name}", folder=str(folder), timeout_s=timeout_s, memory_gib=memory_gib)
    return Pool(worker, size)


def _outcome(folder: Path, name: str, **settings: float) -> Outcome:
    with _pool(folder, name, **settings) as pool:
        return pool.submit(CALL).result(timeout=120)


@pytest.mark.parametrize(
    ("name", "want"), [("lengths", [1, 2, 3]), ("of_columns", [3, 4, 5]), ("later", [1, 1, 1]), ("prints", [1, 1, 1]),
                       ("forks_and_returns", [2, 2, 2])]
)  # fmt: skip
def test_a_function_gets_its_arguments_and_gives_its_scores(folder: Path, name: str, want: list[float]) -> None:
    """TRL's shapes: named arguments, columns, coroutines; printing and forking don't disturb the result."""
    assert scores(_outcome(folder, name, timeout_s=60), 3) == (want, None, "")


@pytest.mark.parametrize(
    ("name", "fault", "reason"),
    [
        ("sleeps", "timeout", "no result within 0.5 s"),
        ("stops", "timeout", "no result within 0.5 s"),
        ("misnamed", "timeout", "no result within 0.5 s"),
        ("raises", "exception", "ValueError: no digits in a"),
        ("leaves", "exception", "SystemExit: enough"),
        ("eats", "exception", "MemoryError"),
        ("exits", "died", "exit status 3"),
        ("closes", "died", "closed the files"),
        ("text", "not_a_number", "returned the text '1.0' for 3 of 3 responses"),
        ("none", "not_a_number", "returned None for 3 of 3 responses"),
        ("nothing", "not_a_number", "returned None, not a list"),
        ("short", "wrong_length", "returned 1 scores for 3 responses"),
        ("nan", "not_finite", "returned nan for 3 of 3 responses"),
        ("huge", "not_finite", "returned a whole number of 401 digits for 3 of 3 responses"),
    ],
)
def test_every_failure_has_its_name(folder: Path, name: str, fault: str, reason: str) -> None:
    """A call that fails says how; it neither raises nor hangs."""
    limit = 0.5 if fault == "timeout" else 60.0
    found = scores(_outcome(folder, name, timeout_s=limit), 3)
    assert (found[0], found[1]) == ([], fault)
    assert reason in found[2]


def test_a_traceback_and_what_was_printed_are_kept_in_part(folder: Path) -> None:
    """Both are bounded; the traceback shows the user's line."""
    assert 'mine.py"' in _outcome(folder, "raises", timeout_s=60).detail
    printed = _outcome(folder, "prints", timeout_s=60).printed
    assert printed.startswith("hello x")
    assert len(printed) == 2_000


def _children(folder: Path) -> list[int]:
    return [int(p.name.removeprefix("child-")) for p in folder.glob("child-*")]


def _alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1] not in ("", "Z")  # where process 1 reaps nothing, the dead stay listed


@pytest.mark.slow
def test_what_a_function_forked_dies_with_it(folder: Path) -> None:
    """Children that have moved to sessions of their own are killed at the time-out, too."""
    assert _outcome(folder, "forks", timeout_s=10.0).fault == "timeout"
    assert len(_children(folder)) == 3
    assert not any(_alive(pid) for pid in _children(folder))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["time-out", "close", "dies"])
def test_what_hides_its_origin_dies_too(folder: Path, how: str) -> None:
    """Programs in sessions of their own, without any variable of the environment, whose parent may be gone."""
    text = {"time-out": "a", "close": "returns", "dies": "dies"}[how]
    with _pool(folder, "hides", timeout_s=30.0 if how == "time-out" else 100.0) as pool:
        found = pool.submit({"completions": [text]}).result(timeout=120)
        assert len(_children(folder)) == 2
        if how == "close":
            assert (found.fault, found.value) == (None, [1.0])
            assert all(_alive(pid) for pid in _children(folder))
        else:
            want = (
                ("timeout", "no result within 30 s") if how == "time-out" else ("died", "its process ended (signal 9)")
            )
            assert (found.fault, found.reason) == want
            assert not any(_alive(pid) for pid in _children(folder))
    assert not any(_alive(pid) for pid in _children(folder))


def test_a_number_that_may_be_anothers_by_now_gets_no_signal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ended by itself was waited for, so the system may give its number to another one."""
    told: list[bool] = []
    with _pool(folder, "exits", timeout_s=60) as workers_:
        workers_.wait_until_loaded()
        [process] = workers_._processes
        monkeypatch.setattr(pool, "signal_group", lambda *_: told.append(process.popen.returncode is None))
        assert workers_.submit(CALL).result(timeout=120).fault == "died"
    assert all(told)


@pytest.mark.slow
def test_a_killed_process_is_replaced(folder: Path) -> None:
    """One call that hangs costs its own time alone; the calls after it get results."""
    with _pool(folder, "shouts", timeout_s=5.0, size=2) as pool:
        pool.wait_until_loaded()
        texts = [["bad"], ["a"], ["b"], ["bad"], ["c"], ["d"]]
        found = [pool.submit({"completions": text}) for text in texts]
        faults = [f.result(timeout=120).fault for f in found]
    assert faults == ["timeout" if text == ["bad"] else None for text in texts]


def test_a_storm_of_kills_ends(folder: Path) -> None:
    """Workers that someone else kills fail their call at most; no call waits for ever."""
    with _pool(folder, "lengths", timeout_s=60, size=2) as pool:
        pool.wait_until_loaded()
        found = []
        for _ in range(5):
            found += [pool.submit(CALL) for _ in range(20)]
            for process in list(pool._processes):
                process.popen.kill()
            time.sleep(0.05)
        faults = {f.result(timeout=120).fault for f in found}
    assert faults <= {None, "died"}
    assert None in faults


def test_calls_run_while_the_caller_computes(folder: Path) -> None:
    """Results arrive without the caller waiting for them: rewards overlap with generation."""
    with _pool(folder, "lengths", timeout_s=60) as pool:
        futures = [pool.submit(CALL) for _ in range(3)]
        until = time.monotonic() + 300
        while not all(f.done() for f in futures) and time.monotonic() < until:
            sum(range(10_000))
        assert all(f.done() for f in futures)


def test_a_large_request_to_a_worker_that_does_not_read_is_no_hang(folder: Path) -> None:
    """More than a pipe holds is sent without blocking, so the time-out still comes."""
    with _pool(folder, "stops", timeout_s=1.0) as pool:
        pool.wait_until_loaded()
        for process in pool._processes:
            os.kill(process.popen.pid, 19)
        assert pool.submit({"completions": ["x" * 1_000_000]}).result(timeout=120).fault == "timeout"


def test_closing_fails_what_waits(folder: Path) -> None:
    """A pool that is closed answers all of its calls, and takes no more."""
    pool = _pool(folder, "sleeps", timeout_s=60)
    futures = [pool.submit(CALL) for _ in range(3)]
    pool.close()
    assert {f.result(timeout=60).fault for f in futures} == {"died"}
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(CALL)
    pool.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere.f", "No module named 'nowhere'"), ("mine.missing", "has no attribute 'missing'"), ("mine.os", "module")],
)
def test_a_function_that_cannot_be_loaded_is_an_error_at_once(folder: Path, path: str, message: str) -> None:
    """What only importing shows is raised before training, with the traceback."""
    worker = Worker(path=path, folder=str(folder), timeout_s=1, memory_gib=1)
    with Pool(worker, 1) as pool, pytest.raises(ParibusError, match=message):
        pool.wait_until_loaded()


def test_calls_of_a_function_that_cannot_be_loaded_fail(folder: Path) -> None:
    """Each of them gets an outcome, however often the function is loaded in vain."""
    with Pool(Worker(path="nowhere.f", folder=str(folder), timeout_s=1, memory_gib=1), 2) as pool:
        assert {pool.submit(CALL).result(timeout=120).fault for _ in range(3)} == {"exception"}


def test_a_machine_without_room_for_processes_gives_no_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A score for a call that was never made would be a wrong number: the error names the cause, at once and later."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(pool.subprocess, "Popen", refused)
    made = _pool(folder, "lengths")
    for call in (made.wait_until_loaded, lambda: made.submit(CALL).result(timeout=60)):
        with pytest.raises(
            ParibusError, match=r"`mine.lengths` cannot be called any more: BlockingIOError: .*unavailable"
        ):
            call()
    made.close()


def test_a_call_ends_even_if_its_process_cannot_be_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has timed out, whatever the system says to the kill; the next calls raise what it said."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(3, "No such process")

    monkeypatch.setattr(pool, "end_kin", refused)
    with _pool(folder, "sleeps") as made:
        found = [made.submit(CALL) for _ in range(2)]
        assert found[0].result(timeout=60).fault == "timeout"
        with pytest.raises(ParibusError, match=r"cannot be called any more: ProcessLookupError: .*No such process"):
            found[1].result(timeout=60)


def test_one_process_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no second one can be started, or it cannot load the function, all calls go to the first."""
    real = pool.subprocess.Popen
    with _pool(folder, "lengths", timeout_s=60, size=3) as made:
        made.wait_until_loaded()
        (folder / "mine.py").write_text("raise OSError('the port is taken')")
        assert {made.submit(CALL).result(timeout=60).fault for _ in range(20)} == {None}
        futures = [made.submit(CALL) for _ in range(20)]
        assert {future.result(timeout=60).fault for future in futures} == {None}

    def once(*given: object, **named: object) -> object:
        monkeypatch.setattr(pool.subprocess, "Popen", _refused)
        return real(*given, **named)  # type: ignore[call-overload]

    (folder / "mine.py").write_text(SOURCE)
    monkeypatch.setattr(pool.subprocess, "Popen", once)
    with _pool(folder, "lengths", timeout_s=60, size=3) as made:
        futures = [made.submit(CALL) for _ in range(20)]
        assert {future.result(timeout=60).fault for future in futures} == {None}


def _refused(*_: object, **__: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_a_limit_of_memory_that_is_there_already_is_kept(folder: Path) -> None:
    """A job under `ulimit -v` cannot raise it; the function runs below it."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from paribus_runners.rewards.pool import Pool, Worker\n"
        f"worker = Worker(path='mine.lengths', folder={str(folder)!r}, timeout_s=60, memory_gib=64.0)\n"
        "with Pool(worker, 1) as pool:\n"
        "    print(pool.submit({'completions': ['ab'], 'prompts': ['p'], 'answer': ['a']}).result().value)\n"
    )
    without = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]  # root may raise any limit
    command = [*(without if os.getuid() == 0 and shutil.which("setpriv") else ()), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[2.0]", done.stderr


def test_an_answer_of_any_depth_ends_one_call(folder: Path) -> None:
    """Brackets beyond what the reader follows are a failure of that call alone."""
    (folder / "deep.py").write_text(
        "import gc, os\n"
        "def f(completions):\n"
        "    if completions == ['deep']:\n"
        "        for fd in range(3, 64):\n"
        "            try:\n"
        "                os.write(fd, b'[' * 200_000 + b'\\n')\n"
        "            except OSError:\n"
        "                pass\n"
        "    return [1.0] * len(completions)\n"
    )
    with Pool(Worker(path="deep.f", folder=str(folder), timeout_s=60, memory_gib=1.0), 1) as made:
        assert made.submit({"completions": ["deep"]}).result(timeout=60).fault is not None
        assert made.submit({"completions": ["a"]}).result(timeout=60).value == [1.0]


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ("HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD")
    for name in (*tokens, "PARIBUS_DATABASE_URL", "MLFLOW_TRACKING_URI", "AWS_PROFILE", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "secret")


LIMITS = """
import os, resource, time

def seen(completions):
    kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)
    return [list(resource.getrlimit(kind)) for kind in kinds]

def grows(completions):
    with open(os.path.dirname(__file__) + "/large", "wb") as file:
        file.seek((1 << 30) - 1)
        file.write(b"xx")
        file.flush()
    return [1.0] * len(completions)
"""


def test_files_and_processes_of_a_function_are_limited(folder: Path) -> None:
    """A file ends at a gigabyte, as an exception of that call; processes are those of the user and some thousands."""
    (folder / "mine.py").write_text(LIMITS)
    file, tasks, core = _outcome(folder, "seen", timeout_s=60).value
    assert file == [MOST_FILE, MOST_FILE]
    assert core == [0, 0]
    threads = sum(1 for p in Path("/proc").glob("[0-9]*/task/*") if _owner(p) == os.getuid())
    assert abs(tasks[0] - MORE_TASKS - threads) < 500
    outcome = _outcome(folder, "grows", timeout_s=60)
    assert outcome.fault == "exception"
    assert "File too large" in outcome.reason
    assert (folder / "large").stat().st_size <= MOST_FILE


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


@pytest.mark.usefixtures("_secrets")
def test_a_worker_sees_no_secrets(folder: Path) -> None:
    """Only variables of a list reach it: a new kind of secret is left out, too."""
    ((names),) = _outcome(folder, "variables", timeout_s=60).value
    own = {
        "PYTHONHASHSEED",
        "OMP_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
        "PARIBUS_REWARD_WORKER",
        "TMPDIR",
        "TEMP",
        "TMP",
    }
    assert {n for n in names.split(",") if not n.startswith("LC_")} <= PASSED_ON | own
    assert "secret" not in environment("x", folder).values()


def test_the_number_of_workers_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a positive number; anything else is refused."""
    monkeypatch.setenv("PARIBUS_REWARD_WORKERS", "3")
    assert workers() == 3
    for wrong in ("0", "many", "-1", ""):
        monkeypatch.setenv("PARIBUS_REWARD_WORKERS", wrong)
        with pytest.raises(ParibusError, match="PARIBUS_REWARD_WORKERS"):
            workers()
    monkeypatch.delenv("PARIBUS_REWARD_WORKERS")
    assert 2 <= workers() <= 8


def test_what_a_process_wrote_before_its_end_is_taken_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a busy machine would hide why a function cannot be loaded."""
    (folder / "mine.py").write_text("raise RuntimeError('the real reason')")
    exchange = Pool._exchange

    def late(self: Pool) -> None:
        exchange(self)
        for process in self._processes:
            process.popen.wait()

    monkeypatch.setattr(Pool, "_exchange", late)
    with _pool(folder, "lengths") as made, pytest.raises(ParibusError, match="the real reason"):
        made.wait_until_loaded()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_caller_waits_for_ever_whatever_the_end_meets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an error that nobody has thought of."""
    killed = []

    def refused(process: pool._Process) -> None:
        killed.append(process)
        raise MemoryError

    made = _pool(folder, "sleeps", timeout_s=600)
    monkeypatch.setattr(Pool, "_kill", staticmethod(refused))
    found = [made.submit(CALL) for _ in range(2)]
    made.wait_until_loaded()
    made.close()
    assert [f.result(timeout=60).fault for f in found] == ["died", "died"]
    monkeypatch.undo()
    for process in killed:
        Pool._kill(process)
