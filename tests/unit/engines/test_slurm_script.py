"""Batch scripts and options of the Slurm engine; no Slurm is needed."""

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, JobState, Spec, Status
from paribus.engines.options import read_options
from paribus.engines.slurm import commands as slurm_commands
from paribus.engines.slurm.engine import SlurmEngine
from paribus.engines.slurm.script import Place, SlurmOptions, batch_script
from paribus.errors import EngineError, StudyFileError, TooLarge

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
SPEC = Spec(module="paribus.attempt.supervisor", arguments=("/share/home/runs/0123/a1", "/share/home/server.json", "3"))
PLACE = Place(folder=Path("/share/home/engine/slurm"), cwd=Path("/share/work"), python="/share/venv/bin/python")
CASES = {
    "minimal.sh": (SlurmOptions(), PLACE, SPEC),
    "full.sh": (
        SlurmOptions(
            partition="gpu,spare",
            account="my-lab",
            time="2-00:00:00",
            gpus=2,
            gpu_type="a100",
            cpus=8,
            memory="64G",
            extra=("--qos=high", "--exclusive", "--comment=all else equal"),
            grace=300,
        ),
        PLACE,
        SPEC,
    ),
    "resources.sh": (
        SlurmOptions(gpus=1, gpu_type="a100", cpus=8),
        PLACE,
        replace(SPEC, need=SlurmOptions(gpus=1, cpus=8).need(Resources(gpus=4, cpus=16))),
    ),
    "part_of_a_gpu.sh": (
        SlurmOptions(cpus=8),
        PLACE,
        replace(SPEC, need=SlurmOptions(cpus=8).need(Resources(gpus=0.25))),
    ),
    "nodes.sh": (
        SlurmOptions(gpu_type="a100", memory="64G"),
        PLACE,
        replace(SPEC, need=SlurmOptions(cpus=3).need(Resources(gpus=16, nodes=2))),
    ),
    "odd_names.sh": (
        SlurmOptions(),
        Place(folder=Path('/share/%j "x" #1'), cwd=Path("/share/it's here"), python="/share/my env/bin/python"),
        Spec(module="m", arguments=("$(date)", "a b", "'", "")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    """Each batch script is as kept; PARIBUS_UPDATE_GOLDEN=1 writes the files again."""
    options, place, spec = CASES[name]
    text = batch_script(spec, "paribus-0123456789ab-a1.feedbeef", options, place)
    if os.environ.get("PARIBUS_UPDATE_GOLDEN") == "1":
        (GOLDEN / name).write_text(text)
    assert (GOLDEN / name).read_text() == text


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_no_argument_can_break_out_of_the_script(arguments):
    """Whatever the arguments are, the shell hands them over unchanged and runs nothing else."""
    script = batch_script(Spec(module="m", arguments=tuple(arguments)), "job", SlurmOptions(), PLACE)
    command = script.partition("\nexec ")[2]
    assert shlex.split(command)[6:] == arguments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm: {gpu: 1}", r"engines.yaml:1:9: slurm.gpu: unknown key `gpu`. Did you mean `gpus`"),
        ("slurm:\n  gpus: one", r"engines.yaml:2:9: slurm.gpus: "),
        ("slurm: {time: 90}", "slurm.time"),
        ("slurm: {time: 4:00}", "write hours:minutes:seconds"),
        ("slurm: {time: 0:02:00}", "leaves no time to train"),
        ("slurm: {memory: 16}", "slurm.memory"),
        ('slurm: {partition: "a b"}', "letters, digits"),
        ('slurm: {extra: ["--requeue"]}', "Paribus itself starts runs again"),
        ('slurm: {extra: ["--signal=USR1@5"]}', "write `grace`"),
        ('slurm: {extra: ["qos=high"]}', "write it as --name"),
        ('slurm: {extra: ["--qos=a\\nexec true"]}', "not an option of sbatch"),
        ("slrum: {gpus: 1}", "no engine `slrum` has options. Did you mean `slurm`"),
        ("local: {gpus: 1}", "no engine `local` has options"),
        ("[slurm]", "expected one mapping per engine"),
        ("slurm: {gpus: 1, gpus: 2}", "twice"),
    ],
)
def test_a_wrong_option_is_told_with_its_place(tmp_path, text, said):
    """What a user can get wrong is one line with file, line, column and what is allowed."""
    file = tmp_path / "engines.yaml"
    file.write_text(text)
    with pytest.raises(StudyFileError, match=said):
        read_options(file, "slurm", SlurmOptions)


def test_options_of_a_file_and_without_one(tmp_path):
    """Values are as written; nothing written is all defaults."""
    file = tmp_path / "engines.yaml"
    file.write_text("slurm:\n  partition: gpu\n  time: 4:00:00\n  extra: [--qos=high]\n  poll: 2\n")
    wanted = SlurmOptions(partition="gpu", time="4:00:00", extra=("--qos=high",), poll=2.0)
    assert read_options(file, "slurm", SlurmOptions) == wanted
    file.write_text("{}")
    assert read_options(file, "slurm", SlurmOptions) == read_options(None, "slurm", SlurmOptions) == SlurmOptions()


def test_without_slurm_the_user_is_told(tmp_path, monkeypatch):
    """No sbatch, no traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"needs the command `sbatch`.*login node.*--engine local"):
        SlurmEngine(EngineSettings(runner="fake", folder=tmp_path))


@pytest.mark.parametrize("name", ["/b\n#SBATCH --uid=0", "/b\\c"])
def test_a_folder_that_a_script_cannot_name_is_refused(name):
    """A line break could write directives of its own; a backslash would get lost."""
    place = Place(folder=Path("/a"), cwd=Path(name), python="python")
    with pytest.raises(EngineError, match="no backslashes and no control characters"):
        batch_script(SPEC, "job", SlurmOptions(), place)


def line(job, state, code, reason, name):
    """Return a line as squeue prints it."""
    return f"{job:<24}{state:<24}{code:<16}{reason:<64}{name:<160}"


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        ("PENDING", "0", Status(state=JobState.PENDING, reason="Why")),
        ("CONFIGURING", "0", Status(state=JobState.PENDING, reason="Why")),
        ("RUNNING", "0", Status(state=JobState.RUNNING)),
        ("COMPLETING", "0", Status(state=JobState.RUNNING)),
        ("NEW_IN_2030", "0", Status(state=JobState.RUNNING)),
        ("COMPLETED", "0", Status(state=JobState.ENDED, exit_code=0, reason="COMPLETED")),
        ("COMPLETED", "0:0", Status(state=JobState.ENDED, exit_code=0, reason="COMPLETED")),
        ("FAILED", "1792", Status(state=JobState.ENDED, exit_code=7, reason="FAILED")),
        ("FAILED", "7:0", Status(state=JobState.ENDED, exit_code=7, reason="FAILED")),
        ("CANCELLED", "9", Status(state=JobState.ENDED, exit_code=-9, reason="CANCELLED", interrupted=True)),
        ("CANCELLED", "0:9", Status(state=JobState.ENDED, exit_code=-9, reason="CANCELLED", interrupted=True)),
        ("CANCELLED", "0", Status(state=JobState.ENDED, reason="CANCELLED", interrupted=True)),
        ("NODE_FAIL", "N/A", Status(state=JobState.ENDED, reason="NODE_FAIL")),
    ],
)
def test_what_squeue_says_is_understood(monkeypatch, state, code, status):
    """A job that never started has no exit code, and a state that nobody knows is not taken for an end."""
    lines = [line(3, state, code, "Why", "mine"), line(4, "RUNNING", "0", "None", "another user's name")]
    monkeypatch.setattr(slurm_commands, "_call", lambda *_: "\n".join(lines))
    jobs = object.__new__(slurm_commands.Slurm)
    jobs._user = "0"
    assert jobs.jobs()["mine"].status == status


def test_of_two_jobs_with_one_name_the_living_counts(monkeypatch):
    """Slurm may hold the same name twice; an ended one must not hide one that runs."""
    lines = [line(5, "FAILED", "256", "None", "a"), line(4, "RUNNING", "0", "None", "a")]
    monkeypatch.setattr(slurm_commands, "_call", lambda *_: "\n".join(lines))
    jobs = object.__new__(slurm_commands.Slurm)
    jobs._user = "0"
    assert jobs.jobs()["a"].id == 4


def test_variables_of_an_enclosing_job_do_not_reach_slurms_commands(monkeypatch, tmp_path):
    """`SBATCH_PARTITION` and `SLURM_JOB_ID` would change what the script says; where Slurm is stays known."""
    for name in ("SBATCH_PARTITION", "SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    seen = {}

    def run(command, *, env, **_):
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(slurm_commands.subprocess, "run", run)
    slurm_commands._call("squeue")
    assert {k for k in seen if k.startswith(("SBATCH_", "SLURM_"))} == {"SLURM_CONF"}


NODES = "a|64|gpu:a100:4(S:0-1),shard:16\nb|32|(null)\nc|128|gpu:2\na|64|gpu:a100:4(S:0-1),shard:16\n"


@pytest.mark.parametrize(
    ("options", "resources", "said"),
    [
        ({}, {"gpus": 4, "cpus": 64}, None),
        (
            {},
            {"gpus": 4, "cpus": 65},
            "asks for 4 GPUs, 65 CPU cores; no node of the cluster has that: .*no GPUs and 32",
        ),
        (
            {"gpu_type": "h100"},
            {"gpus": 1},
            "no node of the cluster has a GPU of the type h100",
        ),
        ({"partition": "gpu"}, {"gpus": 8}, "no node of the partition gpu has that"),
        ({"gpus": 99}, {}, None),
        ({}, {"gpus": 4, "nodes": 2}, None),
        ({}, {"gpus": 8, "nodes": 2}, "8 GPUs on 2 nodes; 1 of the 3 nodes of the cluster has the part of one"),
        ({}, {"cpus": 128, "nodes": 4}, "4 nodes; 3 of the 3 nodes of the cluster have the part of one"),
    ],
)
def test_what_no_node_has_is_refused_before_anything_is_submitted(tmp_path, monkeypatch, options, resources, said):
    """Slurm's list of nodes tells; without it, or where the study declares nothing, Slurm itself refuses."""
    file = tmp_path / "engines.yaml"
    file.write_text(json.dumps({"slurm": options}))
    monkeypatch.setattr(slurm_commands.shutil, "which", lambda name: name)
    asked = []
    monkeypatch.setattr(slurm_commands, "_call", lambda *command: asked.append(command) or NODES)
    engine = SlurmEngine(EngineSettings(runner="fake", folder=tmp_path, options=file))
    if said is None:
        engine.need(Resources(**resources))
    else:
        with pytest.raises(TooLarge, match=said):
            engine.need(Resources(**resources))
    assert all(("--partition=gpu" in command) == ("partition" in options) for command in asked)
    monkeypatch.setattr(slurm_commands, "_call", lambda *_: "")
    engine.need(Resources(**resources))


@pytest.mark.parametrize(
    "said",
    [
        "Unable to contact slurm controller (connect failure)",
        "slurm_msg_sendto: Unexpected missing socket error",
        "Batch job submission failed: Connection reset by peer",
        "Batch job submission failed: Transport endpoint is not connected",
    ],
)
def test_a_controller_that_dies_does_not_refuse(tmp_path, monkeypatch, said):
    """Nobody can tell whether it took the job: its name is looked for later."""
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\necho 'sbatch: error: {said}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(slurm_commands.Away, match=re.escape(said)):
        object.__new__(slurm_commands.Slurm).submit(tmp_path / "script")


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        ({}, "no GPU, 1 CPU"),
        ({"gpus": 1}, "1 GPU (a100), 1 CPU"),
        ({"gpus": 2, "cpus": 8}, "2 GPUs (a100), 8 CPU"),
        ({"gpus": 16, "nodes": 2}, "16 GPUs (a100), 2 CPU on 2 nodes"),
    ],
)
def test_what_is_said_of_jobs_is_what_the_study_asks_for(resources, asked):
    """No "0 GPUs" of the options beside a study that declares one."""
    options = SlurmOptions(gpu_type="a100")
    said = options.about(options.need(Resources(**resources)))
    assert said == f"partition default, {asked}, default memory, default time per run"


@pytest.mark.parametrize("text", ["127", "4294967294", "", "x:y"])
def test_what_is_no_exit_status_is_not_known(text):
    """It ends no scheduler."""
    assert slurm_commands._exit_code(text) is None
