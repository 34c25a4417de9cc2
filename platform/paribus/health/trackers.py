"""Reads metrics from TensorBoard's event files and from MLflow; both packages are optional."""

from __future__ import annotations

from pathlib import Path

from paribus.errors import LogFileError, MissingExtra
from paribus.health.logs import Log, canonical


def read_tensorboard(path: Path, trainer: str | None = None) -> Log:
    """Return the scalars of an event file, or of all in a folder.

    Raises:
        MissingExtra: TensorBoard is not installed.
        LogFileError: there are no scalars, or no name is known.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise MissingExtra("tensorboard", "reading TensorBoard's event files") from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
    except Exception as error:  # damaged files raise whatever the parser raises
        raise LogFileError(f"{path}: not an event file of TensorBoard: {error}") from error
    steps: dict[int, dict[str, float]] = {}
    for key in events.Tags()["scalars"]:
        for point in events.Scalars(key):
            steps.setdefault(int(point.step), {})[key] = float(point.value)
    if not steps:
        raise LogFileError(f"{path}: no scalars in it")
    return canonical(steps, str(path), trainer)


def read_mlflow(identity: str, uri: str, trainer: str | None = None) -> Log:
    """Return the metrics of an MLflow run.

    Args:
        identity: the run's id.
        uri: tracking URI.
        trainer: whose names the metrics have; absent: whoever knows most of them.

    Raises:
        MissingExtra: MLflow is not installed.
        LogFileError: there is no such run, the server cannot be reached, or no name is known.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtra("mlflow", "reading a run of MLflow") from error
    place = f"MLflow run {identity} at {uri}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise LogFileError(f"{place}: there is no such file; set MLFLOW_TRACKING_URI, or --home")
    steps: dict[int, dict[str, float]] = {}
    try:
        client = MlflowClient(tracking_uri=uri)
        for key in client.get_run(identity).data.metrics:
            for point in client.get_metric_history(identity, key):
                steps.setdefault(int(point.step), {})[key] = float(point.value)
    except (MlflowException, OSError) as error:
        raise LogFileError(f"{place}: {str(error).splitlines()[0]}") from error
    if not steps:
        raise LogFileError(f"{place}: no metrics in it")
    return canonical(steps, place, trainer)
