"""One attempt of a command: gives the program its files and settings, and runs it to its end."""

from __future__ import annotations

import sys

from paribus.contract import Job
from paribus.errors import ParibusError
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.resume import find_checkpoint, take_over
from paribus_runners.command.given import (
    Given,
    code_hash,
    command_of,
    environment_of,
    logs_of,
    mapping_of,
    of_attempt,
    settings_of,
)
from paribus_runners.command.options import CommandOptions
from paribus_runners.program.attempt import Asked, Attempt, Launch, termination


def run(folder: RunFolder) -> None:
    """Run the program of the job in a folder; see :meth:`~paribus_runners.command.runner.CommandRunner.run`."""
    with termination() as asked:
        job = read_job(folder.job)
        _run(folder, job, CommandOptions.model_validate(job.options.own), asked)


def _run(folder: RunFolder, job: Job, own: CommandOptions, asked: Asked) -> None:
    given, mapping = Given.of(folder), mapping_of(own, job.options)
    if job.hashes is not None and code_hash(own, job.options.sources) != job.hashes.code:
        raise ParibusError(
            "the program's files outside the study's folder changed since the study was planned: restore them and "
            f"run `paribus retry {job.study}`, or submit the study again, with its file"
        )
    found = find_checkpoint(folder, job) if own.resumes else None
    first, place = (found[2] + 1, found[1]) if found else (0, None)
    settings = settings_of(job.recipe, job.evaluate, of_attempt(job.seed, given, first, place))
    given.write(job, settings)
    for name in logs_of(own, job.options.sources):  # numbers of an earlier run are none of this one
        (given.program / name).unlink(missing_ok=True)
    if found:
        take_over(folder, found[0], found[2])
    name, command = " ".join(own.argv)[:80], command_of(own, settings, job.options.sources)
    launch = Launch(
        name=name,
        command=command,
        places=given,
        environment=environment_of(own, settings, given, job.cache),
        patience=own.patience,
        resumes=own.resumes,
        log=own.log,
        mapping=mapping,
        about={"command": name, "program": command[0], "system": sys.platform},
    )
    Attempt(folder, job, launch, first - 1, asked).run()
