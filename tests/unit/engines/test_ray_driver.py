"""The process of Ray's driver, with a stand-in for Ray that prints, hangs, and ends its process as Ray does."""

import os
import textwrap

import pytest

from paribus.engines.controller import Away
from paribus.engines.ray.driver import Driver
from paribus.errors import EngineError

RAY = """
    import os, pathlib, sys, time
    from types import SimpleNamespace

    exceptions = SimpleNamespace(RayError=OSError)
    place = pathlib.Path(os.environ["FAKE_RAY"])

    def init(**options):
        print("many words of Ray", file=sys.stderr)
        print("and more")
        if (place / "refuse").exists():
            raise ConnectionError("no such cluster")
        return SimpleNamespace(dashboard_url="")

    def nodes():
        if (place / "dead").exists():
            os.write(2, b"Failed to connect to GCS within 60 seconds. The program will terminate.")
            os._exit(1)
        if (place / "error").exists():
            raise OSError("deadline exceeded")
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 4.0}}]

    def shutdown():
        (place / "left").touch()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which files say what Ray does."""
    package = tmp_path / "site" / "ray"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(textwrap.dedent(RAY))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ["PYTHONPATH"]]))
    monkeypatch.setenv("FAKE_RAY", str(tmp_path))
    return tmp_path


@pytest.fixture
def driver(place):
    """A driver that has joined."""
    driver = Driver("auto", "actor", place / "engine")
    driver.join()
    yield driver
    driver.close()


def test_what_ray_says_is_in_a_file_and_not_in_the_terminal(driver, place, capfd):
    """Answers come over a socket of their own."""
    assert driver.ask("nodes") == [{"CPU": 2.0}]
    driver.close()
    assert (place / "left").exists()
    assert capfd.readouterr() == ("", "")
    log = (place / "engine" / "driver.log").read_text()
    assert "many words of Ray" in log
    assert "and more" in log


def test_an_end_of_the_process_is_no_end_of_this_one(driver, place, capfd):
    """Ray ends a driver that has lost its head; the next question starts another one."""
    (place / "dead").touch()
    with pytest.raises(Away, match="the connection to the head broke"):
        driver.ask("nodes")
    (place / "refuse").touch()
    with pytest.raises(Away, match="no such cluster"):
        driver.ask("nodes")
    (place / "refuse").unlink()
    (place / "dead").unlink()
    assert driver.ask("nodes") == [{"CPU": 2.0}]
    assert capfd.readouterr() == ("", "")


def test_an_error_of_ray_is_no_answer(driver, place):
    """The process goes on, and may be asked again."""
    (place / "error").touch()
    with pytest.raises(Away, match="deadline exceeded"):
        driver.ask("nodes")
    (place / "error").unlink()
    assert driver.ask("nodes") == [{"CPU": 2.0}]


def test_a_cluster_that_cannot_be_joined_is_told(place):
    """With what to check."""
    (place / "refuse").touch()
    with pytest.raises(EngineError, match=r"cannot join the Ray cluster `auto`: no such cluster. Is it up"):
        Driver("auto", "actor", place / "engine").join()
