"""Write what was measured into the pages of studies, from the files in the folder figures.

    hetero-la study all -o docs/studies/figures
    python docs/studies/write.py

Only files of complete runs on a GPU are shown.  The page of a study without one says so; the page
of all studies names them in one list.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from headlines import headlines

from hetero_la.studies.common.results import cells_of
from hetero_la.studies.common.study import Rows, Study, StudyTable, load_study, study_names

HERE = Path(__file__).parent
#: Rows above which a table is left to the file of figures.
_MOST_ROWS = 24
_MISSING = "Not measured yet on a GPU."


def figures_of(name: str) -> dict[str, Any] | None:
    """Return the figures of a study, if there are any; raise ValueError for those of no use."""
    path = HERE / "figures" / f"{name}.json"
    if not path.exists():
        return None
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if figures["quick"] or not figures["machine"]["gpus"]:
        raise ValueError(f"{path.name} is not of a complete run on a GPU")
    return figures


def _rows(name: str) -> Rows:
    """Return the rows of a study, none if it has no figures."""
    figures = figures_of(name)
    return figures["rows"] if figures else []


def _table(table: StudyTable, figures: dict[str, Any]) -> str:
    """Return a table of figures, or nothing if it is empty or long."""
    cells = cells_of(table, figures["rows"])
    if not 0 < len(cells) <= _MOST_ROWS:
        return ""
    lines = [list(table.columns), ["---"] * len(table.columns), *cells]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table.title[0].upper()}{table.title[1:]}:\n\n{rows}\n\n"


def _plot(study: Study) -> str:
    return f"![Plot of the study {study.name}](figures/{study.name}.svg)"


def section(study: Study) -> str:
    """Return what the page of a study shows of its figures."""
    figures = figures_of(study.name)
    if figures is None:
        return f"{_MISSING}\n"
    machine = figures["machine"]
    where = f"{machine['gpus'][0]}; {machine['cpu']}, {machine['cores']} cores"
    found = "\n".join(f"- {sentence}" for sentence in figures["found"])
    left_out = "\n".join(f"- left out: {what}" for what in figures["left_out"])
    return (
        f"{_plot(study)}\n\n{found}\n{left_out}{bool(left_out) * chr(10)}\n"
        + "".join(_table(table, figures) for table in study.tables)
        + f"{where}; {figures['measured'][:10]}, in one run of {figures['seconds']:.0f} s. "
        f"All rows are in [{study.name}.json](figures/{study.name}.json).\n"
    )


def gallery(studies: list[Study]) -> str:
    """Return the plots of all studies, each with what was found; then those without figures."""
    parts, missing = [], []
    for study in studies:
        figures, name = figures_of(study.name), f"[{study.name}]({study.name}.md)"
        if figures is None:
            missing.append(f"- {name}: {study.question}\n")
        else:
            parts.append(
                f"### {name}\n\n*{study.question}*\n\n{figures['found'][0]}\n\n{_plot(study)}\n"
            )
    if missing:
        parts.append(f"{_MISSING.removesuffix('.')}:\n\n{''.join(missing)}")
    return "\n".join(parts)


def written(page: Path) -> str:
    """Return the text of a page with its marked parts written anew."""
    studies = [load_study(name) for name in study_names()]
    by_name = {study.name: study for study in studies}

    def replaced(match: re.Match[str]) -> str:
        what = match[1]
        if what == "gallery":
            text = gallery(studies)
        elif what == "headlines":
            text = headlines(_rows)
        else:
            text = section(by_name[page.stem])
        return f"<!-- {what} -->\n\n{text}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    return re.sub(
        r"<!-- (gallery|headlines|figures) -->\n.*?<!-- end -->", replaced, text, flags=re.DOTALL
    )


def main() -> None:
    """Write all pages."""
    for page in sorted(HERE.glob("*.md")):
        page.write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
