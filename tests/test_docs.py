"""What the documentation shows, runs: Python blocks, commands, links and option names."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from itertools import dropwhile
from pathlib import Path

import pytest
from distributed import Client

import hetero_la
from hetero_la.cli import arguments
from hetero_la.cli.main import main
from hetero_la.studies.common.study import study_names

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FILES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *PAGES]
#: They install, or run the tests: not from here.
NOT_RUN = {"python3", "pip", "pytest"} | {
    f".venv/bin/{p}" for p in ("pip", "pytest", "python", "pre-commit")
}

in_checkout = pytest.mark.skipif(
    not all((ROOT / name).is_dir() for name in ("benchmarks", "configs", "docs", "examples")),
    reason="looks at the whole checkout",
)
pages = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of one language, with the line on which each begins."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def commands(path: Path) -> list[list[str]]:
    """Lines of the shell blocks, split as a shell would."""
    lines = [line for _, block in blocks(path, "bash") for line in block.splitlines()]
    split = (shlex.split(line, comments=True) for line in lines)
    # Without variables that are set for one command.
    return [
        found for words in split if (found := [*dropwhile(re.compile(r"[A-Z_]+=").match, words)])
    ]


@pages
def test_python_blocks_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one namespace a page; a block with prompts is checked for its output too."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    for line, block in blocks(path, "python"):
        if ">>>" not in block:
            exec(compile("\n" * (line - 1) + block, str(path), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(block, names, path.name, str(path), line)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        result = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
        names = test.globs
        assert result.failed == 0, capsys.readouterr().out


@pages
def test_commands_parse(path: Path) -> None:
    for program, *rest in commands(path):
        if program == "hetero-la" and rest[0] != "--help":
            arguments.parse(rest)
        elif program == "python":
            assert (ROOT / rest[0]).is_file(), rest
        elif program == "dask":
            _parse_dask(rest)
        else:
            assert program in NOT_RUN | {"hetero-la"}, [program, *rest]


def _parse_dask(words: list[str]) -> None:
    """Let Dask parse a command line; dask-cuda's, if that is installed."""
    if words[0] != "cuda":
        program = importlib.import_module(f"distributed.cli.dask_{words[0]}").main
        program.make_context(words[0], words[1:])
    elif importlib.util.find_spec("dask_cuda") is not None:
        worker = importlib.import_module("dask_cuda.cli").worker
        worker.make_context(words[1], words[2:])


@pytest.mark.exhaustive
def test_commands_without_files_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in PAGES:  # those of the README are run by .ci/run, or need files
        for program, *rest in commands(path):
            if program == "hetero-la" and not (
                _needs_gpu(rest) or _needs_files(rest) or _is_slow(rest) or _needs_cluster(rest)
            ):
                assert main(rest) == 0, rest


@in_checkout
@pytest.mark.exhaustive
def test_the_cluster_of_the_page_can_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    """The first commands of the page on clusters: a scheduler, workers, and what uses them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    block = blocks(ROOT / "docs" / "how_to" / "clusters.md", "bash")[0][1].replace("8786", port)
    started: list[subprocess.Popen[bytes]] = []
    statuses: list[int] = []
    try:
        for program, *rest in map(shlex.split, block.splitlines()):
            if program == "dask":
                module = f"distributed.cli.dask_{rest[0]}"
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, *rest[1:]], stderr=subprocess.DEVNULL,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    )
                )  # fmt: skip
                continue
            with Client(f"tcp://127.0.0.1:{port}", set_as_default=False) as client:
                client.wait_for_workers(len(started) - 1, timeout=60)
            statuses.append(main(rest))
    finally:
        for process in started:
            process.terminate()
            process.wait()
    assert statuses == [0, 0]
    out = capsys.readouterr().out
    assert re.search(r"^first, second +1  .*  shared memory  ", out, re.MULTILINE)
    assert re.search(r"^lu  .*  2cpu  .*  ok$", out, re.MULTILINE)


def _needs_gpu(words: list[str]) -> bool:
    if words[0] in ("graph", "simulate"):  # for workers that need not be there
        return False
    return any(word in words for word in ("--gpus", "one-gpu", "four-gpus", "info"))


def _needs_files(words: list[str]) -> bool:
    return words[0] in ("lu", "solve", "cholesky", "qr", "lstsq") and "--random" not in words


def _is_slow(words: list[str]) -> bool:
    return words[0] in ("probe", "tune", "bench", "study") or "1000000" in words


def _needs_cluster(words: list[str]) -> bool:
    return "--scheduler" in words


@in_checkout
def test_the_page_shows_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """The first command of the page on machines that are not there, and what it prints."""
    page = ROOT / "docs" / "how_to" / "scaling.md"
    (_, *rest), *_ = commands(page)
    assert main(rest) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in page.read_text(encoding="utf-8")


@in_checkout
@pages
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [path.parent / target for target in targets if "://" not in target]
    assert [target for target in local if not target.exists()] == []
    others = [target for target in targets if "://" in target]
    assert [
        url for url in others if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/.*)?", url)
    ] == []


@in_checkout
def test_the_maps_list_every_page() -> None:
    for path in PAGES:
        if path.name != "index.md":
            index = path.with_name("index.md").read_text(encoding="utf-8")
            assert f"]({path.name}" in index, path
    whole = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for folder in {path.parent.name for path in PAGES} - {"docs"}:
        assert f"]({folder}/index.md)" in whole


def referred() -> dict[str, object]:
    """Every object of the page of the reference, by its full name."""
    found: dict[str, object] = {}
    module = ""
    for line in (ROOT / "docs" / "reference" / "api.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   [\w.]+", line):
            where, _, name = f"{module}.{line.strip()}".rpartition(".")
            found[f"{where}.{name}"] = getattr(importlib.import_module(where), name)
    return found


@in_checkout
def test_the_reference_has_every_public_name_and_an_example_of_it() -> None:
    found = referred()
    assert {f"hetero_la.{name}" for name in hetero_la.__all__} <= set(found)
    without = [
        name
        for name, what in found.items()
        if ">>> " not in (inspect.getdoc(what) or "").partition("\nExamples\n--------\n")[2]
        and not (isinstance(what, type) and issubclass(what, Exception))
    ]
    assert without == []


@in_checkout
def test_tables_of_performance_are_those_of_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "performance")
    draw = importlib.import_module("draw")
    page = draw.PAGE.read_text(encoding="utf-8")
    assert draw.with_tables(page) == page
    names = {path.stem for path in (draw.HERE / "figures").glob("*.json")}
    assert set(re.findall(r"<!-- (\w+) -->\n\n!", page)) == names


@in_checkout
def test_figures_are_taken_from_a_benchmark_s_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "performance")
    draw = importlib.import_module("draw")
    shutil.copytree(draw.HERE / "figures", tmp_path / "figures")
    before = draw.read("small")
    rows = [
        {"where": where, "function": "qr", "n": 50, "who": who, "seconds": seconds}
        for where in ("device", "host")
        for who, seconds in (("SciPy", [2e-6, 9e-6, 3e-6]), ("hetero_la", [1e-6, 1e-6, 8e-6]))
    ]
    (tmp_path / "here.json").write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(draw, "HERE", tmp_path)
    draw.take("small", tmp_path / "here.json")
    for values, value in zip(before["rows"][2]["values"], (1.0, 3.0), strict=True):
        values[1] = value
    assert draw.read("small") == before


@in_checkout
def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {hetero_la.__version__}\n" in citation
    assert f"\n## [{hetero_la.__version__}]\n" in FILES[2].read_text(encoding="utf-8")


def test_modules_that_have_moved_are_where_the_changelog_says() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(hetero_la\.\S+)`(.*?) \| `(\S+)` \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for before, what, now in rows:
        there = importlib.import_module(now)
        if what == " (`gpu_count`)":  # a package of kernels has the name now
            assert there.gpu_count
        else:
            assert not _is_module(before), before


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@in_checkout
def test_pages_of_studies_show_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "studies")
    write = importlib.import_module("write")
    found = {page.stem: page for page in write.HERE.glob("*.md")}
    assert found.keys() - {"index"} == set(study_names())
    for page in found.values():
        assert write.written(page) == page.read_text(encoding="utf-8"), page
        wanted = "gallery end headlines end" if page.stem == "index" else "figures end"
        assert re.findall(r"<!-- (\w+) -->", page.read_text()) == wanted.split()
    assert {path.stem for path in (write.HERE / "figures").glob("*")} <= set(study_names())
