"""Execute the notebooks that the gallery has made of the examples; fail if one of them fails.

python docs/run_notebooks.py
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parent


def run(path: Path) -> str:
    """Execute one in the folder of the examples, whose data it reads."""
    began = time.perf_counter()
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(DOCS.parent / "examples")}}
    quiet = ["--Application.log_level=ERROR"]
    NotebookClient(
        book, timeout=120, kernel_name="python3", resources=where, extra_arguments=quiet
    ).execute()
    return f"{path.name}: {time.perf_counter() - began:.1f} s"


def main() -> None:
    """Execute all of them, two at a time."""
    paths = sorted((DOCS / "gallery").glob("*.ipynb"))
    if not paths:
        sys.exit("there are no notebooks: build the site first")
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(run, paths):
            print(line)


if __name__ == "__main__":
    main()
