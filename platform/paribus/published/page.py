"""An audit as one HTML file without external resources and without scripts."""

from __future__ import annotations

from html import escape

from paribus.published.audit import Audit, conclusions
from paribus.published.text import HEADINGS, SPREADS, cells, change_text, columns, facts

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --wide: #8a8a8a; --narrow: #2563a8; }
@media (prefers-color-scheme: dark) { :root { --narrow: #7db4f0; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 13px; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 1rem; }
.wide { stroke: var(--wide); stroke-width: 2; } .narrow { stroke: var(--narrow); stroke-width: 7; }
.zero { stroke: currentColor; stroke-dasharray: 3 3; } .dot { fill: currentColor; }
"""
_WIDTH, _LABELS, _ROW = 960, 380, 30


def html_page(result: Audit) -> str:
    """Return the page: what the table states, its steps as a figure and a table, and what a reader may conclude."""
    table = result.table
    title = escape(f"Audit of {table.title or table.name}")
    stated = "".join(f"<p>{escape(line)}</p>" for line in (*facts(table), table.stated, table.note) if line)
    items = "".join(f"<li>{escape(line)}</li>" for line in conclusions(result))
    explained = HEADINGS | dict.fromkeys(columns(result)[len(HEADINGS) + 1 :], SPREADS)
    words = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in explained.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{title}</h1>{stated}"
        f"<h2>What a reader may conclude, and what not</h2><ul>{items}</ul>"
        f"<h2>Steps</h2>{_figure(result)}<div class=scroll>{_table(result)}</div>"
        f"<h2>Columns</h2><dl>{words}</dl></main></body></html>\n"
    )


def _table(result: Audit) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in columns(result))
    rows = []
    for step in result.steps:
        name, *rest = map(escape, cells(result, step))
        rows.append(f"<tr><th scope=row>{name}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _figure(result: Audit) -> str:
    """Return the steps as intervals: thick for these problems, thin for problems like these."""
    found = [d for step in result.steps for d in (step.same, step.like) if d is not None]
    if not found:
        return ""
    low, high = min(0.0, *(d.low for d in found)), max(0.0, *(d.high for d in found))
    height = _ROW * len(result.steps) + 30

    def x(value: float) -> float:
        return _LABELS + 10 + (value - low) / (high - low) * (_WIDTH - _LABELS - 20)

    parts = [f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{height - 22}"/>']
    for k, step in enumerate(result.steps):
        y = _ROW * k + _ROW / 2
        parts.append(f'<text x="0" y="{y + 4:.0f}">{escape(_short(cells(result, step)[0]))}</text>')
        for css, d in (("wide", step.like), ("narrow", step.same)):
            if d is not None:
                parts.append(f'<line class="{css}" x1="{x(d.low):.1f}" x2="{x(d.high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot" cx="{x(step.value):.1f}" cy="{y}" r="4"/>')
    ends = ((low, "start"), (0.0, "middle"), (high, "end"))
    for value, anchor in ends:
        text = change_text(value, result.table.unit) if value else "0"
        parts.append(f'<text x="{x(value):.1f}" y="{height - 5}" text-anchor="{anchor}">{text}</text>')
    label = "Each step with its 95% intervals: thick if the same problems are asked again, thin for problems like these"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"<figcaption>{label}.</figcaption></figure>"
    )


def _short(name: str) -> str:
    return name if len(name) <= 52 else f"{name[:51]}\u2026"
