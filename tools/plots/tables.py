"""Tables in Markdown: of measurements, with cards and days."""

from measurements import card, day_of


def source(records):
    """Returns cards and days of measurements."""
    return "; ".join(dict.fromkeys(f"{card(r)}, {day_of(r['date'])}" for r in records))


def commit(records):
    """Returns the words for the commit that measurements share; none if they share none."""
    commits = {r.get("commit", "")[:7] for r in records}
    return f"commit {commits.pop()}" if len(commits) == 1 and "" not in commits else ""


def source_and_commit(records):
    """Returns the source of a table, with the commit if its measurements share one."""
    records = list(records)
    return ", ".join(filter(None, (source(records), commit(records))))


def table(heading, rows):
    """Returns the lines of a table. Cells of the first column are left-aligned, others right."""
    line = "|---|" + "--:|" * (heading.count("|"))
    return [f"| {heading} |", line, *(f"| {' | '.join(row)} |" for row in rows)]
