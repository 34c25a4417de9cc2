"""Removes each guard of the store in turn and runs its tests: every one of these faults must be seen.

``make test-mutants``. A fault that no test sees would go unnoticed in a real store, too. Where two predicates say the
same (a query that finds candidates, and the update that rechecks them), both are removed at once. A predicate with a parameter
is replaced by one that is always true: a statement that is given what it does not ask for fails anyway.

All tests are run until one fails, first the one that saw the fault last time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from trial import ROOT, Trial, arguments, table

TESTS = [
    f"tests/unit/store/test_store{name}.py"
    for name in (
        "_states",
        "_suite",
        "",
        "_requests",
        "_lost_answers",
        "_migrations",
        "_devices",
        "_scale",
        "_budget",
        "_model",
    )
]
WITHOUT = ("postgresql", "server", "processes")
PRELOADED = ["sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg", "alembic.command", "alembic.config",
             "pydantic", "yaml", "numpy", "scipy.stats", "hypothesis.stateful", "pytest"]  # fmt: skip

TRANSITIONS, STATES, ATTEMPTS = "store/transitions.py", "store/states.py", "store/attempts.py"
CONTROL, MIGRATE = "store/control.py", "store/migrate.py"
BUDGET, MODELS, DEVICES = "store/budget.py", "store/models.py", "store/devices.py"


class Misfit(Exception):
    """The code has changed: a mutant must be changed, too."""


@dataclass(frozen=True)
class Mutant:
    """A fault: what is lost, and the changes that lose it, each of a text that occurs as often as ``times`` says."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    times: int = 1

    def applied(self) -> dict[str, str]:
        """Return the changed files, each under its path from the root.

        Raises:
            Misfit: a text does not occur as often as it should.
        """
        texts: dict[str, str] = {}
        for file, old, new in self.changes:
            path = f"platform/paribus/{file}"
            text = texts.get(path) or (ROOT / path).read_text()
            if text.count(old) != self.times:
                raise Misfit(f"{self.name}: {old!r} occurs {text.count(old)} times in {file}")
            texts[path] = text.replace(old, new)
        return texts


def without(name: str, file: str, old: str, new: str = "", times: int = 1) -> Mutant:
    """Return a mutant with one change."""
    return Mutant(name, ((file, old, new),), times)


MUTANTS = (
    without("a move: only from its source state", TRANSITIONS, "t.run.c.state == step.source, "),
    without("a move: only with the newest token", TRANSITIONS, "guard += [t.run.c.token == _FENCE]", "guard += [_FENCE == _FENCE]"),
    without("a move: never without a token where it is needed", TRANSITIONS, "if step.fenced and token is None:", "if False:"),
    without("a move: only under its conditions", TRANSITIONS, ", *(CONDITIONS[c](now) for c in step.conditions)"),
    without("a claim: raises the token", TRANSITIONS, 't.run.c.token + 1, "reason"', 't.run.c.token, "reason"'),
    without("an attempt's writes: only with the newest token", TRANSITIONS, "THIS_RUN, t.run.c.token == _FENCE, t.run", "THIS_RUN, _FENCE == _FENCE, t.run"),
    without("an attempt's writes: only while it is live", TRANSITIONS, ", t.run.c.state.in_(LIVE))", ")"),
    without("an attempt's row: only its own", TRANSITIONS, """type_=sa.Integer), t.attempt.c.token == _FENCE""", "type_=sa.Integer), _FENCE == _FENCE"),
    without("a heartbeat: only of the holder", ATTEMPTS, "sa.update(t.run).where(FENCED).values(lease", "sa.update(t.run).where(sa.or_(FENCED, FENCED.clauses[0])).values(lease"),
    without("a failure: counted only for the holder", ATTEMPTS, "counted = sa.update(t.run).where(FENCED).values({column", "counted = sa.update(t.run).where(sa.or_(FENCED, FENCED.clauses[0])).values({column"),
    without("a requeue: counted only for the holder", ATTEMPTS, "counted = sa.update(t.run).where(FENCED).values(values)", "counted = sa.update(t.run).where(sa.or_(FENCED, FENCED.clauses[0])).values(values)"),
    without("a requeue: only with progress", ATTEMPTS, "sa.case((further, 0), else_=t.run.c.requeues + 1)", "0 * t.run.c.requeues"),
    without("a result again: only of the same attempt", ATTEMPTS, "(same.token, same.payload_hash) != (token, digest)", "same.payload_hash != digest"),
    without("a result again: only the same result", ATTEMPTS, "(same.token, same.payload_hash) != (token, digest)", "same.token != token"),
    without("an end again: only of the same attempt", ATTEMPTS, 't.attempt.c.token == sa.bindparam("fence")', 'sa.bindparam("fence") == sa.bindparam("fence")'),
    without("an end again: only of its kind", ATTEMPTS, "end.outcome in moves and ", ""),
    without("an end again: only in the same words", ATTEMPTS, " and (end.reason, end.signature) in reports", ""),
    without("a claim: only what is queued", ATTEMPTS, "t.run.c.state == RunState.QUEUED, "),
    Mutant("a claim: only when its wait is over", ((ATTEMPTS, ", t.run.c.not_before <= now", ""), (STATES, "s.LEASED, c.READY, ", "s.LEASED, "))),
    without("a claim: passes over nothing but what has a result", TRANSITIONS, "if step.target in RECORDED:\n            for", "if step.target not in LIVE:\n            for"),
    without("a submission: passes over nothing but what has a result", CONTROL, "study_id, has_result)", "study_id)"),
    without("a claim: not of a paused study", ATTEMPTS, 't.study.c.paused == "", ', ""),
    without("a claim: not of what the study has cancelled", ATTEMPTS, ", t.study_run.c.withdrawn.is_(False))", ")"),
    Mutant("an expiry: only when the lease is over", (
        (ATTEMPTS, "sa.and_(t.run.c.state.in_(LIVE), t.run.c.lease_until < now, ", "sa.and_(t.run.c.state.in_(LIVE), "),
        (TRANSITIONS, "lambda now: t.run.c.lease_until < now", "lambda now: sa.true()"),
    )),
    without("an expiry: not of a program that no scheduler has started", ATTEMPTS, ", sa.not_(_tracked()))", ")"),
    without("an expiry: not of what goes on without its scheduler", ATTEMPTS, ".where(over, mine)", ".where(over)"),
    without("an expiry: one's own attempts that go on without a scheduler, too", ATTEMPTS, ", attempt.worker != worker)", ")"),
    without("a late report: charged until the attempt's end", TRANSITIONS, "lease = not (done or known_end)", "lease = not done"),
    without("a lapse: only if cancellation was asked for", STATES, "c.LEASE_OVER, c.CANCEL_ASKED", "c.LEASE_OVER"),
    without("a cancellation: only if it was asked for", STATES, "m.CANCEL, s.CANCELLED, c.CANCEL_ASKED, ", "m.CANCEL, s.CANCELLED, "),
    Mutant("an ended attempt: its request to cancel is kept", (
        (ATTEMPTS, "move_run(connection, now, Move.CANCEL, run_id, token, reason, signature=signature, ago_s=ago_s)\n    if row is None:\n", "move_run(connection, now, move, run_id, token, reason, signature=signature, wait_s=wait_s, ago_s=ago_s)\n    if row is None:\n"),
        (ATTEMPTS, "row = move_run(connection, now, Move.CANCEL, run_id, token, reason, signature=signature, ago_s=ago_s)\n    return row", "pass\n    return row"),
        (TRANSITIONS, "lambda now: t.run.c.cancel_requested.is_(False)", "lambda now: sa.true()"),
    )),
    without("a lost lease: its request to cancel is kept", ATTEMPTS, "(Move.LAPSE, Move.ABANDON", "(Move.ABANDON"),
    without("a rerun: never of a run with a result", STATES, "for state in TERMINAL if state not in RECORDED", "for state in TERMINAL"),
    without("cancelling: not what others wait for", CONTROL, "sa.and_(asked, ~wanted)", "asked"),
    without("cancelling: not what runs for others", CONTROL, "where(asked, ~wanted, ", "where(asked, "),
    without("cancelling: not what has ended", CONTROL, "~wanted, t.run.c.state.in_(LIVE))", "~wanted)"),
    without("a claim: only within the budget", ATTEMPTS, "found[: budget.allows(len(found))]", "found"),
    without("claims at once: each within the budget", MODELS, "reserved=budget.reserved + budget.estimate", "reserved=budget.reserved"),
    without("a budget: not beyond what is reserved", MODELS, "taken = self.spent + self.reserved", "taken = self.spent"),
    without("a budget: not beyond what is in flight", MODELS, "self.reserved + self.beyond", "self.reserved"),
    without("a budget: not beyond what another attempt may need", MODELS, "taken + self.estimate <= self.cap", "taken <= self.cap"),
    without("a reservation: ends with its attempt", BUDGET, 'b.reserved - sa.bindparam("back", type_=sa.Float)', 'b.reserved - 0 * sa.bindparam("back", type_=sa.Float)'),
    without("a charge: not beyond the lease", BUDGET, "sa.case((now < lease_until, now), else_=lease_until)", "sa.case((now < lease_until, now), else_=now)"),
    without("a reservation: for each of several claims", BUDGET, "budget.estimate * count", "budget.estimate"),
    without("a charge: to its study alone", BUDGET, "return t.budget.c.study == study, t.budget.c.unit == unit", "return study == study, t.budget.c.unit == unit"),
    without("a charge: in its unit alone", BUDGET, "return t.budget.c.study == study, t.budget.c.unit == unit", "return t.budget.c.study == study, unit == unit"),
    without("a lease: counts until its attempt ends", DEVICES, "free=row.amount - row.held", "free=row.amount"),
    without("a lease: ends with its attempt", DEVICES, "t.attempt.c.token).where(live)", "t.attempt.c.token)"),
    without("a lease: counts on its GPU alone", DEVICES, "where(of_live, t.lease.c.device_id == t.device.c.id)", "where(of_live)"),
    without("cores: are free when their attempt has ended", DEVICES, "where(live, here)", "where(here)"),
    without("cores: are counted on their host alone", DEVICES, "where(live, here)", "where(live)"),
    without("cores: not more than there are", DEVICES, "if need.cpus > cores + _TINY:", "if False:"),
    without("GPUs: only those that a scheduler may use", DEVICES, " if row.id in pool.devices]", "]"),
    without("several runs at once: each what is left", DEVICES, "devices = [_without(device, chosen) for device in devices]", "pass"),
    without("several GPUs: all or nothing", DEVICES, "if len(chosen) < wanted:", "if not chosen:"),
    without("a part of a GPU: only where it fits", DEVICES, "if share <= d.free + _TINY]", "]"),
    without("a whole GPU: only where nothing is held", DEVICES, " if d.free > 1 - _TINY]", "]"),
    without("a run that was cancelled: an edited plan leaves it so", CONTROL, '"withdrawn": ids[p.fingerprint] in withdrawn', '"withdrawn": False'),
    without("a pause: keeps its first reason", CONTROL, 't.study.c.id == study_id, t.study.c.paused == "")', "t.study.c.id == study_id)"),
    without("a pause for one error: only with that error", CONTROL, "t.run.c.signature == signature, ", ""),
    without("a retry: of the named arm alone", CONTROL, "t.study_run.c.study_id == study_id, *only", "t.study_run.c.study_id == study_id"),
    without("a new study: brings back only what was cancelled", CONTROL, "sa.and_(asked, t.run.c.state == RunState.CANCELLED)", "asked"),
    without("a newer database: nothing is begun", MIGRATE, "revision = connection.execute(_REVISION).scalar()\n    if", "revision = HEAD\n    if"),
)  # fmt: skip


def main() -> int:
    """Print one line a mutant; return 1 if any survives or has no place, or if the tests fail without a fault."""
    chosen = arguments(__doc__)
    misfits = [misfit for mutant in MUTANTS if (misfit := _misfit(mutant))]
    if misfits or chosen.check:
        print("\n".join(misfits) or f"{len(MUTANTS)} mutants have their place")
        return int(bool(misfits))
    trials = [Trial(m.name, m.applied(), tuple(TESTS), WITHOUT) for m in MUTANTS if chosen.only in m.name]
    return table(trials, PRELOADED, chosen)


def _misfit(mutant: Mutant) -> str:
    try:
        mutant.applied()
    except Misfit as misfit:
        return str(misfit)
    return ""


if __name__ == "__main__":
    sys.exit(main())
