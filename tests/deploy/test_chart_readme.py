"""The README of the chart has each value, with its default and what values.yaml says of it. RALLYPOINT_UPDATE_DOCS=1 writes it."""

from __future__ import annotations

import os
import re

from render import CHART

README = CHART / "README.md"
BEGIN, END = "<!-- begin: written by the test -->\n", "<!-- end: written by the test -->\n"


def rows() -> list[str]:
    """The lines of values.yaml that have a value, as rows of a table."""
    made, said, group, group_said = [], [], "", ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        if comment := re.fullmatch(r" *# (.*)", line):
            said.append(comment[1])
        elif entry := re.fullmatch(r"( *)(\w+):(?: +(.*))?", line):
            indent, name, value = entry.groups()
            text = " ".join(said)
            if not indent:
                group, group_said = name, text if value is None else ""
            if value is not None:
                path = name if not indent else f"{group}.{name}"
                text, group_said = text or (group_said if indent else ""), "" if indent else group_said
                made.append(f"| `{path}` | `{value}` | {text.replace('|', chr(92) + '|')} |")
            said = []
        elif re.fullmatch(r"  [\w./-]+: .*", line):
            made.append(f"| `{group}` | `{{{line.strip()}}}` | {group_said} |")
        else:
            assert not line.strip() or re.fullmatch(r" {4}.*", line), f"values.yaml: what is {line!r}?"
            said = [] if not line.strip() else said
    return made


def test_the_readme_of_the_chart_has_every_value() -> None:
    table = "\n".join(["| value | default | |", "|---|---|---|", *rows(), ""])
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table}{END}{after}"
    if os.environ.get("RALLYPOINT_UPDATE_DOCS"):
        README.write_text(wanted)
    assert README.read_text() == wanted, "values.yaml has changed: RALLYPOINT_UPDATE_DOCS=1 writes the table"
    assert len(rows()) > 40
