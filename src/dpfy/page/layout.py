"""What all pages share: the head, the way between them, tiles and tables.

Tests: tests/page/test_app.py.
"""

from collections.abc import Sequence

from dpfy.page.words import text

_PLACES = (("runs", "/", "Runs"), ("budgets", "/budgets", "Budgets"), ("plan", "/plan", "Plan"))


def document(
    title: str,
    here: str,
    body: str,
    *,
    topic: str = "",
    version: str = "",
    budgets: bool = False,
) -> str:
    """Return a whole HTML page.

    Args:
        title: The title, as text.
        here: Which entry of the navigation this page belongs to.
        body: The content of ``main``, as HTML.
        topic: What to listen for; empty if the page does not change.
        version: The version of the topic that the page shows.
        budgets: Whether there is a book of budgets to go to.

    Returns:
        The page.
    """
    entries = "".join(
        f'<li><a href="{address}"{" aria-current=page" if name == here else ""}>{label}</a></li>'
        for name, address, label in _PLACES
        if name != "budgets" or budgets
    )
    live = f' data-topic="{text(topic)}" data-version="{text(version)}"' if topic else ""
    script = "page.js" if topic else "plan.js" if here == "plan" else ""
    loaded = f'<script src="/static/{script}" defer></script>' if script else ""
    status = '<p id="connection" role="status"></p>' if topic else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)} · dpfy</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/page.css">
{loaded}
</head>
<body{live}>
<a class="skip" href="#content">Go to the content</a>
<header><div class="bar"><a class="brand" href="/">dpfy</a>
<nav aria-label="Pages"><ul>{entries}</ul></nav>{status}</div></header>
<main id="content" tabindex="-1">
{body}
</main>
</body>
</html>
"""


def live(name: str, body: str, kind: str = "section") -> str:
    """Return a part of a page that is replaced when it changes."""
    return f'<{kind} data-live="{text(name)}">{body}</{kind}>'


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Return facts side by side: a name as text, a value as HTML, and its meaning as text."""
    inner = "".join(
        f"<div><dt>{text(label)}</dt><dd>{value}"
        + (f'<p class="meaning">{text(meaning)}</p>' if meaning else "")
        + "</dd></div>"
        for label, value, meaning in entries
    )
    return f'<dl class="tiles plain">{inner}</dl>'


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that becomes a list of cards on a narrow screen.

    Args:
        caption: What it shows, for those who do not see it.
        columns: The headings, as text.
        rows: The cells as HTML; the first of each row is its heading.

    Returns:
        A ``table`` element within what scrolls.
    """
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>'
            if place == 0
            else f'<td class="number-cell" data-label="{text(column)}">{cell}</td>'
            for place, (column, cell) in enumerate(zip(columns, row, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table class="cards"><caption class="visually-hidden">{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def meter(part: float, whole: float, label: str) -> str:
    """Return a bar that shows how much of something is there; nothing without a whole."""
    if whole <= 0:
        return ""
    return (
        f'<progress max="{whole:g}" value="{min(part, whole):g}" aria-label="{text(label)}">'
        "</progress>"
    )
