"""What a study adds to a finding: the nearest arm, what differs, and the seeds of both."""

from types import SimpleNamespace

from paribus.health.context import compared, context_of


def study():
    """Return a plan with a base, a trick, and a row above it that differs from it in one path."""
    run = lambda arm, seed: SimpleNamespace(fingerprint=f"{arm}{seed}", arm=arm)  # noqa: E731
    arms = {
        "b": SimpleNamespace(label="base", changes={}),
        "t": SimpleNamespace(label="+ clip", changes={"clip.high": (0.2, 0.28)}),
        "u": SimpleNamespace(label="+ lr", changes={"clip.high": (0.2, 0.28), "optimizer.learning_rate": (0.1, 10.0)}),
    }
    rows = (
        SimpleNamespace(design="ladder", label="base", arm="b", parent=None, changes={}),
        SimpleNamespace(design="ladder", label="+ clip", arm="t", parent="base", changes=arms["t"].changes),
        SimpleNamespace(
            design="ladder", label="+ lr", arm="u", parent="+ clip", changes={"optimizer.learning_rate": (0.1, 10.0)}
        ),
    )
    runs = tuple(run(a, s) for a in arms for s in (1, 2))
    return SimpleNamespace(base="b", rows=rows, all_runs=runs, arm=arms.__getitem__)


def test_an_arm_is_compared_with_the_nearest_one():
    """One path to the row before beats two to the base; runs that were not judged do not count."""
    raised = {"u1": ["huge_update"], "u2": ["huge_update", "nan"], "t1": []}
    assert compared(study(), "u") == ("u", "t")
    assert context_of(study(), "u", "huge_update", raised) == (
        "The arm differs from `+ clip` in `optimizer.learning_rate` (0.1 -> 10). Huge update: 2 of 2 judged seeds of "
        "this arm, 0 of 1 judged seed of `+ clip`."
    )


def test_the_base_has_nothing_to_be_compared_with():
    """The seeds of the base are counted, and no cause is named."""
    said = context_of(study(), "b", "nan", {"b1": ["nan"], "b2": []})
    assert said == "Nan: 1 of 2 judged seeds of the base. The run alone does not show the cause."
    assert compared(study(), "b") == ("b",)
