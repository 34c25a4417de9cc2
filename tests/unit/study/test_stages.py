"""Stages: runs that begin with the models that runs of another study have trained."""

import shutil

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.contract import Checkpoints, Evaluate, Job, load_runner
from paribus.errors import ParibusError, StoreError, StudyFileError
from paribus.recipe.trained import TrainedBy
from paribus.report.collect import _fingerprints
from paribus.retention.deletion import look
from paribus.run_folder.checkpoints import publish
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.scheduler.scheduler import Scheduler
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.store.trained import TrainedModels
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_engine import FakeEngine
from support.plans import small_plan

STUDY = """\
study: later
base:
  preset: grpo
  set: {model: {name: "study:warm/arm 1"}, task: search, optimizer.learning_rate: 1.0e-6, schedule.steps: 4}
tricks: {teacher: {kl: {kind: advantage, reference: {kind: model, name: "study:warm/arm 0@1"}}}}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with the study `warm`: two arms, three seeds, of which the last run is queued."""
    for name in ("PARIBUS_DATABASE_URL", "PARIBUS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    plan = small_plan("warm", seeds=3)
    with Store.open(home) as store:
        study = store.add_study(plan)
        for claim in store.claim_many(study.id, 6, engine="test", worker="here"):
            if claim.fingerprint == plan.runs[-1].fingerprint:
                store.release(claim.run_id, claim.token, "")
                continue
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            _train(folder, claim.fingerprint)
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    return home


def _train(folder, run):
    """Write a checkpoint with a model, as the native runner does."""
    folder.path.mkdir(parents=True)
    job = Job(
        run=run, study="warm", arm="arm 0", runner="fake", seed=0, token=1, recipe=small_plan().arms[0].recipe,
        evaluate=Evaluate(), cache="cache", checkpoint=Checkpoints(keep=1),
    )  # fmt: skip
    folder.job.write_text(job.model_dump_json())
    folder.append_metrics(MetricLine(step=4, time_ms=1, values={"reward/mean": 0.0}))

    def write(place):
        (place / "model").mkdir()
        (place / "model" / "model.safetensors").write_text(run)

    place = publish(folder, job, 4, write)
    path = (place / "model").relative_to(folder.path).as_posix()
    write_json(folder.result, {"status": "succeeded", "step": 4, "model": path})


def plan_of(home, text=STUDY):
    """Return the plan of a study, as the native runner would train it."""
    file = home.parent / "later.yaml"
    file.write_text(text)
    return make_plan(load_study(file), load_runner("native"), TrainedModels(home))


def weights(home, arm, seed):
    """Return the file of the weights that a run of `warm` has trained."""
    run = next(r for r in small_plan("warm", seeds=3).runs if (r.arm, r.seed) == (arm, seed))
    return RunFolder.of(home, run.fingerprint, 1).checkpoints / "step-000004" / "model" / "model.safetensors"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("study:warm/base", TrainedBy("warm", "base", None)),
        ("study:warm/+ clip (ladder)@12", TrainedBy("warm", "+ clip (ladder)", 12)),
        ("study:warm/a/b@c", TrainedBy("warm", "a/b@c", None)),
        ("Qwen/Qwen3-8B", None),
    ],
)
def test_a_name_says_study_arm_and_seed(name, meant):
    """Labels of arms have blanks, slashes and signs; only digits after the last @ are a seed."""
    assert TrainedBy.read(name) == meant


def test_each_run_begins_with_the_model_of_its_seed_and_its_fingerprint_knows_the_weights(home):
    """A hash in a fingerprint is that of a plain folder; new weights change the runs that begin with them alone."""
    plan = plan_of(home)
    base, teacher = plan.arms
    for run in plan.runs:
        stage = plan.stages[run.fingerprint]
        assert home / stage.models["study:warm/arm 1"] == weights(home, "arm1", run.seed).parent
        shared = stage.models.get("study:warm/arm 0@1")
        assert (shared is None) == (run.arm == base.key)
        assert shared is None or home / shared == weights(home, "arm0", 1).parent
    folder = str(weights(home, "arm1", 1).parent)
    recipe = base.recipe.model_copy(update={"model": base.recipe.model.model_copy(update={"name": folder})})
    plain = load_runner("native").hashes(recipe, plan.options).model
    assert plan.stages[plan.runs[2].fingerprint].model_hash == plain
    before = {(r.arm, r.seed): r.fingerprint for r in plan.runs}
    weights(home, "arm1", 1).write_text("others")
    after = {(r.arm, r.seed): r.fingerprint for r in plan_of(home).runs}
    assert {at for at in before if before[at] != after[at]} == {(base.key, 1), (teacher.key, 1)}
    assert plan.arms == plan_of(home).arms


def _without_model(home):
    shutil.rmtree(weights(home, "arm1", 1).parent)


def _with_adapters(home):
    (weights(home, "arm1", 1).parent / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("old", "new", "change", "message"),
    [
        ("study:warm/arm 1", "study:warn/arm 1", None, r"no study `warn`.*Did you mean `warm`"),
        ("study:warm/arm 1", "study:warm/arm 3", None, r"no arm `arm 3`"),
        ("n: 2", "n: 2, start: 2", None, r"seed 2 is queued, not finished: train it first"),
        ("n: 2", "n: 5", None, r"no run of `arm 1` with seed 3: its seeds are 0, 1, 2"),
        ("n: 2", "n: 2", _without_model, r"was deleted"),
        ("n: 2", "n: 2", _with_adapters, r"holds adapters .* and no weights"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_what_to_do(home, old, new, change, message):
    """The plan says which model is missing, and why; it is shown, but not run."""
    if change is not None:
        change(home)
    with pytest.raises(ParibusError, match=r"model\.name: study:war(?s:.)*" + message):
        plan_of(home, STUDY.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("study:warm/arm 1", "study:warm", "needs a study and an arm"),
        ('arm 1"}', 'arm 1", revision: main}', "`revision` is a commit on the hub"),
        (
            "{solo: {kind: add_one}}",
            "{s: {kind: search, over: {optimizer.learning_rate: {low: 1.0e-6, high: 1.0e-5}}, trials: 2}}",
            "a search has no base of another study",
        ),
    ],
)
def test_a_name_that_means_nothing_is_a_fault_of_the_study(home, old, new, message):
    """Names without an arm, with a revision, and in a search are refused with their place."""
    with pytest.raises(StudyFileError, match=message):
        plan_of(home, STUDY.replace(old, new))


def test_the_job_names_the_folders_and_refuses_weights_that_changed(home):
    """Policy and reference are folders there, and the hash is that of the run."""
    plan = plan_of(home)
    with Store.open(home) as store:
        study = store.add_study(plan)
        engine = FakeEngine()
        scheduler = Scheduler(store, engine, home / "server", say=lambda _: None, worker="here")
        scheduler.take_up(study)
        scheduler.turn()
    places = [RunFolder.of(home, run.fingerprint, 1).path for run in plan.runs]
    jobs = [Job.model_validate_json((place / "job.json").read_text()) for place in places if place.exists()]
    assert jobs
    for job in jobs:
        assert job.recipe.model.name == str(weights(home, "arm1", job.seed).parent)
        assert job.hashes.model == plan.stages[job.run].model_hash
    runner = load_runner("native")
    runner._refuse_changed_files(jobs[0])
    weights(home, "arm1", jobs[0].seed).write_text("others")
    with pytest.raises(ParibusError, match=r"initial model .* changed since the study was planned"):
        runner._refuse_changed_files(jobs[0])
    shutil.rmtree(weights(home, "arm1", jobs[0].seed).parent)
    with pytest.raises(ParibusError, match="there is no such folder"):
        runner._refuse_changed_files(jobs[0])


def test_no_model_is_deleted_that_a_later_stage_begins_with(home):
    """`paribus gc --models` keeps them, `paribus delete` refuses; without the later study both go."""
    with Store.open(home) as store:
        later = store.add_study(plan_of(home))
        store.cancel(later.name)
    gc = ("gc", "--models", "--delete", "--home", str(home))
    assert CliRunner().invoke(paribus, gc).exit_code == 0
    kept = [weights(home, arm, seed).exists() for arm, seed in (("arm1", 0), ("arm1", 1), ("arm0", 1), ("arm0", 0))]
    assert kept == [True, True, True, False]
    with Store.open(home) as store:
        store.cancel("warm")
        with pytest.raises(StoreError, match="runs of `later` begin with models of `warm`"):
            look(store, "warm")
        store.delete_study(look(store, "later").rows, "ada")
        assert look(store, "warm").rows.later == ()
    assert CliRunner().invoke(paribus, gc).exit_code == 0
    assert not weights(home, "arm1", 0).exists()


def test_a_report_says_which_runs_trained_the_models(home):
    """The provenance names the run of each seed, and one for all where all begin with the same."""
    with Reader.open(home) as reader:
        runs = {(r.arm, r.seed): r.fingerprint[:12] for r in reader.runs_of(reader.study("warm").id)}
    said = _fingerprints(plan_of(home))["trained before by"]
    assert said == (
        f"study:warm/arm 1: {runs['arm1', 0]} (seed 0), {runs['arm1', 1]} (seed 1); "
        f"study:warm/arm 0@1: run {runs['arm0', 1]}"
    )
