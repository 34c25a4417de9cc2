"""A store with one run, its attempts' folders, and MLflow syncs that come and go."""

from __future__ import annotations

from paribus.contract import Evaluate, Job
from paribus.mlflow_sync.offsets import Offsets
from paribus.mlflow_sync.sync import MlflowSync
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.plans import small_plan


class Case:
    """A store with one run, its attempts' folders, an MLflow (real or fake), and syncs that come and go.

    Args:
        home: home folder.
        connect: opens MLflow for a home folder.
    """

    def __init__(self, home, connect):
        self.home = home
        self.connect = connect
        self.store = Store.open(home)
        self.study = self.store.add_study(small_plan(arms=1, seeds=1))
        self.run = self.store.runs_of(self.study.id)[0].fingerprint
        self.now = 0.0
        self.claim = None
        self.offsets = []

    def attempt(self, home=None):
        """Begin an attempt, perhaps in another home folder, and return its folder."""
        self.claim = self.store.claim(self.study.id, engine="test", worker="here")
        self.store.start(self.claim.run_id, self.claim.token)
        folder = RunFolder.of(home or self.home, self.run, self.claim.token)
        folder.path.mkdir(parents=True)
        job = Job(
            run=self.run,
            study="small",
            arm="arm 0",
            runner="fake",
            seed=0,
            token=self.claim.token,
            recipe=Recipe(),
            evaluate=Evaluate(),
            cache="cache",
        )
        folder.job.write_text(job.model_dump_json())
        return folder

    def give_back(self):
        """End the attempt without a result."""
        self.store.release(self.claim.run_id, self.claim.token, "interrupted")

    def finish(self):
        """End the attempt with a result."""
        self.store.finish(self.claim.run_id, self.claim.token, {"status": "succeeded"})

    def sync(self, home=None):
        """Return a sync that knows only what is on disk."""
        home = home or self.home
        self.offsets.append(Offsets(home))
        reader = Reader(self.store.database, home)
        return MlflowSync(reader, lambda: self.connect(home), self.offsets[-1], clock=lambda: self.now)

    def close(self):
        """Close the store and all offsets."""
        self.store.close()
        for offsets in self.offsets:
            offsets.close()


def write(folder, steps, time_ms=1000, value=lambda step: float(step)):
    """Append metric lines."""
    for step in steps:
        folder.append_metrics(MetricLine(step=step, time_ms=time_ms + step, values={"reward/mean": value(step)}))
