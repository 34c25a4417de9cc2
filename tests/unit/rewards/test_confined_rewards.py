"""What a reward function tries against the machine that it runs on: writing elsewhere, other processes, staying behind.

Where the kernel has no Landlock, writing is not prevented, and the test of it is skipped: the run's record says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paribus.errors import ParibusError
from paribus.remote.tokens import Tokens
from paribus_runners.rewards import landlock, worker
from paribus_runners.rewards.pool import Outcome, Pool, Worker, environment
from support.kernel import landlock_of_kernel

SOURCE = """
import json, os, pathlib, signal, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).parent
HOME = HERE / "home"

def _tried(*actions):
    found = []
    for action in actions:
        try:
            action()
            found.append("done")
        except OSError as error:
            found.append(type(error).__name__)
    return found

def _leaves_and_writes():
    if (child := os.fork()) == 0:
        os.setsid()
        try:
            (HOME / "forked").write_text("x")
        except OSError:
            os._exit(7)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
        raise PermissionError

def _program():
    code = "import sys; open(sys.argv[1], 'w')"
    if subprocess.run([sys.executable, "-c", code, HOME / "started"], stderr=subprocess.DEVNULL, timeout=60).returncode:
        raise PermissionError

def writes(completions):
    own = pathlib.Path(tempfile.mkdtemp())
    (own / "mine").write_text("x")
    return _tried(
        lambda: (HOME / "new").write_text("x"),
        lambda: (HOME / "tokens.json").open("a"),
        lambda: (HOME / "tokens.json").unlink(),
        lambda: (HOME / "tokens.json").rename(HOME / "other.json"),
        lambda: (own / "mine").rename(HOME / "tokens.json"),
        lambda: os.link(HOME / "tokens.json", own / "theirs"),
        lambda: (HOME / "runs" / "x").mkdir(),
        lambda: (HOME / "link").symlink_to("/"),
        lambda: os.mkfifo(HOME / "pipe"),
        lambda: (HERE / "mine.py").write_text("x = 1"),
        _leaves_and_writes,
        _program,
    )

def truncates(completions):
    return _tried(lambda: os.truncate(HOME / "tokens.json", 0), lambda: (HOME / "tokens.json").open("w"))

def works(completions):
    import multiprocessing
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    subprocess.run(["true"], stdout=subprocess.DEVNULL, check=True, timeout=60)
    multiprocessing.get_context("fork").Lock().acquire()
    cache = pathlib.Path(os.environ["HF_HOME"])
    (cache / "new").mkdir()
    (cache / "new" / "file").write_text("x")
    (cache / "new" / "file").rename(cache / "file")
    return [len((HOME / "tokens.json").read_text()), len(os.listdir(HERE))]

def signals(completions):
    parent = int(completions[0])
    return _tried(lambda: os.kill(parent, 0), lambda: open(f"/proc/{parent}/mem", "rb"))

def secrets(completions):
    return [json.dumps(dict(os.environ)), tempfile.gettempdir()]

def stays(completions):
    for _ in range(24):
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (pathlib.Path(os.environ["HF_HOME"]) / str(os.getpid())).touch()
            time.sleep(120)
            os._exit(0)
    time.sleep(120)
"""
PATIENCE_S = 120


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Functions, a home folder with a token, and a cache of Hugging Face beside one another."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "home" / "runs").mkdir(parents=True)
    Tokens(tmp_path / "home").create("ana", "run")
    for name in ("cache", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("PARIBUS_REWARD_WRITES", raising=False)
    return tmp_path


def called(folder: Path, name: str, *, timeout_s: float = 60.0, completions: tuple[str, ...] = ("a",)) -> Outcome:
    """Return the outcome of one call."""
    with Pool(Worker(path=f"mine.{name}", folder=str(folder), timeout_s=timeout_s, memory_gib=1.0), 1) as pool:
        return pool.submit({"completions": list(completions)}).result(timeout=PATIENCE_S)


def needs(version: int) -> None:
    """Skip a test on a kernel whose Landlock is older; in CI fail it if the kernel itself says that it is not."""
    if (found := landlock.version()) < version:
        why = f"the kernel's Landlock has version {found}, and this takes {version}"
        if os.environ.get("PARIBUS_CI") and landlock_of_kernel() >= version:
            pytest.fail(f"{why}. Linux {os.uname().release} has it: does a filter of a container refuse the calls?")
        pytest.skip(why)


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of the home folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in (folder / "home").rglob("*") if p.is_file()}


def test_ci_notices_that_confinement_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel has Landlock and Paribus does not find it; elsewhere the tests are skipped."""
    monkeypatch.setattr(landlock, "version", lambda: 0)
    monkeypatch.setattr(sys.modules[__name__], "landlock_of_kernel", lambda: 3)
    monkeypatch.setenv("PARIBUS_CI", "1")
    for version, end in ((3, pytest.fail.Exception), (4, pytest.skip.Exception)):
        with pytest.raises(end, match=f"has version 0, and this takes {version}"):
            needs(version)
    monkeypatch.delenv("PARIBUS_CI")
    with pytest.raises(pytest.skip.Exception):
        needs(3)


def test_the_kernel_is_asked_in_two_ways() -> None:
    """What its release and its configuration promise is what it answers."""
    if promised := landlock_of_kernel():
        needs(promised)


def test_a_function_writes_in_its_own_folder_alone(folder: Path) -> None:
    """Neither it, nor what it forks or starts, changes the home folder, its own source, or anything else."""
    needs(1)
    before = files(folder)
    found = called(folder, "writes")
    assert found.fault is None, found
    assert set(found.value) <= {"PermissionError", "OSError"}, found.value  # EXDEV for links and renames
    assert files(folder) == before
    assert (folder / "mine.py").read_text() == SOURCE
    assert not list((folder / "home" / "runs").iterdir())


def test_a_function_cannot_empty_a_file(folder: Path) -> None:
    """From version 3 of Landlock on; what is recorded for older ones says that they lack this."""
    needs(landlock.FULL)
    before = files(folder)
    assert called(folder, "truncates").value == ["PermissionError"] * 2
    assert files(folder) == before


def test_what_functions_need_goes_on_working(folder: Path) -> None:
    """Reading, temporary files, programs, locks between processes, and the cache of Hugging Face."""
    found = called(folder, "works")
    assert found.fault is None, found
    assert found.value == [(folder / "home" / "tokens.json").stat().st_size, len(list(folder.iterdir()))]


def test_a_function_reaches_no_process_outside(folder: Path) -> None:
    """It can neither signal the training nor read its memory."""
    needs(6)
    assert called(folder, "signals", completions=(str(os.getpid()),)).value == ["PermissionError"] * 2


def test_older_kernels_are_confined_as_far_as_they_can(folder: Path) -> None:
    """With what version 1 knows, new files are refused and the sentence says what isn't."""
    needs(1)
    code = (
        "import pathlib, sys\nfrom paribus_runners.rewards.landlock import confine\n"
        "own, home = map(pathlib.Path, sys.argv[1:])\n"
        "print(confine([own, pathlib.Path('/nowhere')], most=1))\n"
        "(own / 'x').write_text('x')\n"
        "try:\n    (home / 'x').write_text('x')\nexcept PermissionError:\n    print('refused')\n"
    )
    command = [sys.executable, "-c", code, str(folder / "tmp"), str(folder / "home")]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True).stdout
    assert shown == "confined (Landlock 1, except that files can be emptied: that takes Linux 6.2)\nrefused\n"


@pytest.mark.parametrize("odd", ["file/below", "loop", "loop/below", "n" * 300])
def test_a_folder_that_cannot_be_opened_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    """A cache below a file, a link to itself, a name that is too long: the rest is confined as ever."""
    needs(1)
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    monkeypatch.setenv("HF_HOME", str(folder / odd))
    before = files(folder)
    with Pool(Worker(path="mine.writes", folder=str(folder), timeout_s=60, memory_gib=1.0), 1) as pool:
        pool.wait_until_loaded()
        assert pool.confined.startswith("confined (Landlock ")
        assert "done" not in pool.submit({"completions": ["a"]}).result(timeout=PATIENCE_S).value
    assert files(folder) == before


@pytest.mark.parametrize("code", [38, 95, 1])
def test_a_kernel_without_it_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int) -> None:
    """ENOSYS, EOPNOTSUPP, and EPERM of a container's filter: nothing is confined, and the sentence says so."""

    def refused(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(landlock, "_call", refused)
    assert landlock.confine([tmp_path]) == "not confined (this kernel has no Landlock)"
    monkeypatch.setattr(landlock, "version", lambda: 4)
    assert landlock.confine([tmp_path]) == f"not confined (Landlock 4: {os.strerror(code)})"


def test_more_folders_can_be_declared_and_all_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one who runs Paribus, not by a study; what is no folder is refused before anything is called."""
    needs(1)
    worker = Worker(path="mine.writes", folder=str(folder), timeout_s=60, memory_gib=1.0)
    monkeypatch.setenv("PARIBUS_REWARD_WRITES", f"{folder / 'cache'}:{folder / 'home'}")
    with Pool(worker, 1) as pool:
        pool.wait_until_loaded()
        assert pool.confined.startswith("confined (Landlock ")
        assert pool.submit({"completions": ["a"]}).result(timeout=PATIENCE_S).value[0] == "done"
    for wrong in ("cache", str(folder / "nowhere"), f"/:{folder / 'nowhere'}", "~/cache"):
        monkeypatch.setenv("PARIBUS_REWARD_WRITES", wrong)
        with pytest.raises(ParibusError, match="not the absolute path of a folder"):
            Pool(worker, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PARIBUS_REWARD_WRITES", value) for value in ("/", "/:/tmp", "/tmp:/", "//", "/.", "/../", "/tmp/..")),
        *((name, value) for name in ("PARIBUS_REWARD_WRITES", "HF_HUB_CACHE") for value in ("/proc/self/root", "LINK")),
        ("HF_HOME", "/"),
    ],
)
def test_the_root_folder_by_any_name_confines_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Everything would be writable, so the record does not say that anything is confined."""
    (folder / "root").symlink_to("/")
    monkeypatch.setenv(name, str(folder / "root") if value == "LINK" else value)
    with Pool(Worker(path="mine.secrets", folder=str(folder), timeout_s=60, memory_gib=1.0), 1) as pool:
        pool.wait_until_loaded()
        assert pool.confined == f"not confined ({name} names /)"


def test_the_environment_of_a_function_has_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the variable is called; its temporary folder is its own, and gone with it."""
    for name in (
        "PARIBUS_DATABASE_URL",
        "PARIBUS_TOKEN",
        "HF_TOKEN",
        "PGPASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "UNHEARD_OF",
    ):
        monkeypatch.setenv(name, "s3cret-mark")
    seen, temporary = called(folder, "secrets").value
    assert "s3cret-mark" not in seen
    assert Path(temporary).parent == folder / "tmp"
    assert not list((folder / "tmp").iterdir())
    assert environment("m", folder)["TMPDIR"] == str(folder)


@pytest.mark.slow
def test_nothing_stays_behind_after_the_time_out(folder: Path) -> None:
    """Two dozen processes that have left session and parent, and ignore SIGTERM, end with the call."""
    assert called(folder, "stays", timeout_s=6.0).fault == "timeout"
    started = [int(p.name) for p in (folder / "cache").iterdir()]
    assert started
    end = time.monotonic() + PATIENCE_S
    while left := [pid for pid in started if _lives(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert not list((folder / "tmp").iterdir())


def _lives(pid: int) -> bool:
    """Return whether a process exists and has not ended; where process 1 reaps nothing, the dead stay listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_files_of_a_killed_training_are_deleted_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one that lives, and of another machine, stay."""
    temporary, other = folder / "tmp", "paribus-reward-another_machine-x"
    (temporary / other).mkdir()
    program = (
        "import sys, time\nfrom paribus_runners.rewards.pool import Pool, Worker\n"
        "pool = Pool(Worker(path='mine.works', folder=sys.argv[1], timeout_s=60, memory_gib=1.0), 1)\n"
        "pool.submit({'completions': ['a']}).result()\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    where = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], env=where, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "ready\n"
        (of_first,) = {p.name for p in temporary.iterdir()} - {other}
        called(folder, "secrets")
        assert {p.name for p in temporary.iterdir()} == {other, of_first}
        training.kill()
        training.wait()
    assert {p.name for p in temporary.iterdir()} == {other, of_first}
    called(folder, "secrets")
    assert [p.name for p in temporary.iterdir()] == [other]


@pytest.mark.parametrize("named", [True, False])
def test_a_cache_that_is_missing_can_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """It is made before functions are confined, where a variable names it or the libraries look for it."""
    needs(1)
    cache = folder / ("fresh" if named else ".cache") / "huggingface"
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("HF_HOME")
    if named:
        monkeypatch.setenv("HF_HOME", str(cache))
    (folder / "mine.py").write_text(
        "import os, pathlib\ndef loads(completions):\n"
        "    cache = pathlib.Path(os.environ.get('HF_HOME', '~/.cache/huggingface')).expanduser()\n"
        "    (cache / 'hub' / 'model').mkdir(parents=True)\n    return [1.0]\n"
    )
    assert called(folder, "loads").value == [1.0]
    assert (cache / "hub" / "model").is_dir()
    assert (folder / ".cache").exists() != named


BOMB = """
import os, time

def bombs(completions):
    tokens, give = os.pipe()
    os.write(give, b"x" * 400)  # whatever the limit does, there are no more processes than this
    os.set_blocking(tokens, False)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if os.read(tokens, 1) and os.fork() == 0:
                os.setsid()
        except OSError:  # the limit, or no token is left
            time.sleep(0.1)
    os._exit(0)
"""
BOMBED = """
import faulthandler, os, resource, sys, time
from pathlib import Path
from paribus_runners.rewards import worker
from paribus_runners.rewards.pool import Pool, Worker

def alive():
    found = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            mine = entry.stat().st_uid == os.getuid()
            found += mine and entry.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        except OSError:
            pass
    return found

faulthandler.dump_traceback_later(120, exit=True)
before, most = alive(), worker._tasks_of_user() + 80
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
with Pool(Worker(path="mine.bombs", folder=sys.argv[1], timeout_s=5.0, memory_gib=1.0), 1) as pool:
    pool.wait_until_loaded()
    call, reached = pool.submit({"completions": ["a"]}), 0
    while not call.done():
        reached = max(reached, worker._tasks_of_user())
        time.sleep(0.02)
end = time.monotonic() + 60
while alive() > before and time.monotonic() < end:
    time.sleep(0.05)
print(call.result().fault, reached - most, max(0, alive() - before), pool.confined)
"""
# The right to read everything stays, as Python or the project can lie in a folder of root alone. `env` starts the
# command once more: `setpriv` itself still has rights that its command loses.
ANOTHER_USER = (
    *("setpriv", "--reuid=54321", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    "env",
)


def test_a_process_whose_name_is_not_utf8_counts_with_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps names as they are; one that were left out would make the limit too low."""
    program = """
import sys, threading
open("/proc/self/comm", "wb").write(b"caf\\xe9) 1")
for _ in range(6):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("named", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        alone = SimpleNamespace(glob=lambda _: [Path(f"/proc/{process.pid}")])
        monkeypatch.setattr(worker, "Path", lambda _: alone)
        assert worker._tasks_of_user() == 7


@pytest.mark.slow
def test_a_fork_bomb_stands_still_at_the_limit(folder: Path) -> None:
    """Its processes leave the session and fork on, up to the limit and not beyond; at the time-out none is left."""
    (folder / "mine.py").write_text(BOMB)
    (folder / "tmp").chmod(0o777)
    prefix = ANOTHER_USER if os.getuid() == 0 else ()  # the kernel does not count the processes of root
    if prefix and not _starts(prefix):
        pytest.skip("as root, where no process can become one of another user that may read all files")
    done = subprocess.run(
        [*prefix, sys.executable, "-c", BOMBED, str(folder)],
        stdout=subprocess.PIPE, text=True, timeout=300, check=True,
        env={**os.environ, "HOME": str(folder / "tmp"), "TMPDIR": str(folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    fault, beyond, left, confined = done.stdout.split(maxsplit=3)
    others = 0 if prefix else 40  # what else this user starts and ends meanwhile
    assert fault == "timeout"
    assert abs(int(beyond)) <= others
    assert int(left) <= others
    assert confined.startswith("confined") == (landlock.version() > 0)


def _starts(prefix: tuple[str, ...]) -> bool:
    code = "import paribus_runners.rewards.worker"
    return shutil.which(prefix[0]) is not None and not subprocess.run([*prefix, sys.executable, "-c", code]).returncode
