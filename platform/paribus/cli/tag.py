"""``paribus tag``: tags on a study or a run, to find it again."""

from __future__ import annotations

import re
from pathlib import Path

import click

from paribus.cli.note import change_remarks, read_remarks, show_remarks
from paribus.cli.options import home_option, json_option
from paribus.store.remarks import Change

_SIGNED = re.compile(r"[+-][^-+].*", re.DOTALL)


class _Signed(click.Command):
    """A command whose arguments may begin with a minus: all but `-h` are moved behind the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        signed = [] if "--" in args else [a for a in args if _SIGNED.fullmatch(a) and a != "-h"]
        others = [a for a in args if a not in signed]
        return super().parse_args(ctx, [*others, "--", *signed] if signed else others)


@click.command(cls=_Signed)
@click.argument("target", metavar="STUDY|RUN")
@click.argument("changes", metavar="[+TAG|-TAG]...", nargs=-1)
@home_option
@json_option
def command(target: str, changes: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Add tags to STUDY (a name or a file) or RUN (the first digits of its fingerprint), or remove some.

    +TAG adds a tag, -TAG removes one. Without any, show its note and tags. `paribus status --tag TAG` lists the studies
    with a tag, `paribus status STUDY --tag TAG` the runs.
    """
    for change in changes:
        if not change.strip("+-"):
            raise click.UsageError(f"`{change}` names no tag: write +TAG or -TAG")
        if not _SIGNED.fullmatch(change):
            raise click.UsageError(f"`{change}` neither adds nor removes a tag: write +{change} or -{change}")
    if not changes:
        show_remarks(read_remarks(target, folder), history=False, as_json=as_json)
        return
    add, remove = (tuple(c[1:] for c in changes if c[0] == sign) for sign in "+-")
    show_remarks(change_remarks(target, Change(add=add, remove=remove), folder), history=False, as_json=as_json)
