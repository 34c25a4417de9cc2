"""Paribus: experiment tracking and ablation orchestration in RL post-training of language models.

This package is the platform: it plans, runs, watches and reports studies. It imports no training library and no runner;
those live in `paribus_runners`, and the pages in `paribus_dashboards`. Here are the names for notebooks and scripts;
each is imported when it is used first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from paribus.version import VERSION

if TYPE_CHECKING:
    from paribus.errors import ParibusError
    from paribus.external.callback import TrainerCallback
    from paribus.external.track import TrackedRun, track
    from paribus.notebook.results import Named, Results, results, studies
    from paribus.notebook.study import Study, StudyPlan, load

__all__ = [
    "Named", "ParibusError", "Results", "Study", "StudyPlan", "TrackedRun", "TrainerCallback", "__version__", "load",
    "results", "studies", "track",
]  # fmt: skip

_PLACES = {
    "Named": "paribus.notebook.results",
    "ParibusError": "paribus.errors",
    "Results": "paribus.notebook.results",
    "Study": "paribus.notebook.study",
    "StudyPlan": "paribus.notebook.study",
    "TrackedRun": "paribus.external.track",
    "TrainerCallback": "paribus.external.callback",
    "load": "paribus.notebook.study",
    "results": "paribus.notebook.results",
    "studies": "paribus.notebook.results",
    "track": "paribus.external.track",
}
"""The module of each public name."""

__version__ = VERSION


if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name: str) -> object:
        """Import a public name when it is used first, so that ``import paribus`` takes no time."""
        if name not in _PLACES:
            raise AttributeError(f"module 'paribus' has no attribute {name!r}; its names are {', '.join(__all__)}")
        found: object = getattr(import_module(_PLACES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted({*globals(), *__all__})
