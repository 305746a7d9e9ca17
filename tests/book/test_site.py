"""A small site built with the book's own settings, and the real one where it is built.

``make book`` builds the real one into ``_build/html``; its pages are checked only then.
"""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.book import site_checks as checks

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "_build" / "html"
PIXEL = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()

TOC = """
format: jb-book
root: index
parts:
  - caption: One
    numbered: 1
    chapters: [{file: part/later}, {file: part/first}]
"""
INDEX = """# A small book

The shape of it is {prf:ref}`pl-theorem-3`, {eq}`pl-eq-16b`, {prf:ref}`a name <def-tail>`,
{prf:ref}`def-tail`.
"""
LATER = r"""# Later

:::{prf:corollary} Margin
:label: pl-corollary-4

From {prf:ref}`pl-theorem-3`.

$$ a = b $$ (pl-eq-17)
:::

$$ c = d $$ (eq-later-own)

See {eq}`eq-later-own`, {numref}`ex-first-1`.
"""
FIRST = r"""# First

:::{prf:theorem} Bound
:label: pl-theorem-3

$$ \mathbb E\, R \le p $$ (pl-eq-16b)
:::

:::{prf:definition} Angular $p$ tail
:label: def-tail

A tail.
:::

:::{prf:remark}
Without a name.
:::

:::{exercise}
:label: ex-first-1

Show it.
:::
"""


def notebook(path: Path) -> None:
    """A notebook with a figure, as papermill would leave it."""
    image = nbformat.v4.new_output("display_data", {"image/png": PIXEL, "text/plain": "figure"})
    cell = nbformat.v4.new_code_cell("draw()", outputs=[image], execution_count=1)
    cell.metadata["mystnb"] = {
        "figure": {"name": "fig-dot", "caption": "A dot of {prf:ref}`pl-theorem-3`."},
        "image": {"alt": "A single dot on white."},
    }
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(FIRST), cell])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(made, path)


def build(folder: Path, index: str = INDEX) -> subprocess.CompletedProcess:
    """Build a small book with the real configuration, warnings as errors."""
    source = folder / "source"
    shutil.copytree(ROOT / "book" / "assets", source / "assets", dirs_exist_ok=True)
    (source / "part").mkdir(exist_ok=True)
    (source / "references.bib").write_text("")
    (source / "index.md").write_text(index)
    (source / "part" / "later.md").write_text(LATER)
    notebook(source / "part" / "first.ipynb")
    (folder / "_toc.yml").write_text(TOC)
    program = shutil.which("jupyter-book", path=Path(sys.executable).parent) or "jupyter-book"
    options = [
        "build",
        str(source),
        "--config",
        str(ROOT / "_config.yml"),
        "--toc",
        str(folder / "_toc.yml"),
    ]
    options += ["--path-output", str(folder), "-W", "-n", "--keep-going"]
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        [program, *options], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    done = build(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "_build" / "html"


@pytest.fixture(scope="module", params=["small", "real"])
def site(request):
    if request.param == "small":
        return request.getfixturevalue("small")
    if not (BUILT / "index.html").exists():
        pytest.skip("the site is not built; run 'make book'")
    return BUILT


@pytest.fixture(scope="module")
def pages(site):
    found = checks.read_pages(site)
    assert "index" in {page.name for page in found}
    return found


@pytest.mark.parametrize(
    "check",
    [
        checks.outside_requests,
        checks.mathjax_problems,
        checks.picture_problems,
        checks.number_problems,
        checks.form_problems,
    ],
)
def test_pages(pages, check):
    assert [problem for page in pages for problem in check(page)] == []


def test_styles_load_nothing_from_outside(site):
    assert checks.outside_styles(site) == []


def test_titles_are_unique(pages):
    assert checks.title_problems(pages) == []


def test_launch_buttons_open_committed_notebooks(site, pages):
    if site == BUILT:
        listed = subprocess.run(
            ["git", "ls-files", "book"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if listed.returncode:
            pytest.skip("not a git checkout")
        committed = set(listed.stdout.split())
    else:
        committed = {"book/part/first.ipynb"}
    problems = [line for page in pages for line in checks.launch_problems(page, committed)]
    assert problems == []


def text_of(site: Path, page: str) -> str:
    found = {p.name: p for p in checks.read_pages(site)}[page]
    return " ".join(found.article.text.split())


def test_references_read_as_the_paper_numbers(small):
    assert "The shape of it is Theorem 3, (16b), a name, Definition (Angular p tail)." in text_of(
        small, "index"
    )
    assert "Corollary 4 (Margin) From Theorem 3." in text_of(small, "part/later")
    assert "See (1.1), Exercise 2.1." in text_of(small, "part/later")
    assert "Fig. 2.1 A dot of Theorem 3." in text_of(small, "part/first")


def test_unnumbered_result_without_title_has_its_kind_only(small):
    page = {p.name: p for p in checks.read_pages(small)}["part/first"]
    assert page.article.select_one("div.remark p.admonition-title").text.strip() == "Remark"


@pytest.mark.slow
def test_wrong_labels_fail_the_build(tmp_path):
    """Unknown references, a label twice, and a label of another kind are warnings, so errors."""
    twice = ":::{prf:lemma}\n:label: pl-theorem-3\n\nTwice.\n:::\n"
    done = build(tmp_path, f"# A small book\n\n{{prf:ref}}`pl-lemma-99`\n\n{twice}")
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "pl-lemma-99" in told
    assert "promises a theorem, but stands on a lemma" in told
    assert "duplicate label 'pl-theorem-3'" in told


RESULTS = {
    "theorem": (1, 2, 3, 7, 8, 9, 13),
    "corollary": (4, 5, 10),
    "lemma": (6, 11, 12, 14),
}


def test_every_result_of_phuong_and_lampert_is_stated_once():
    if not (BUILT / "index.html").exists():
        pytest.skip("the site is not built; run 'make book'")
    boxes = [
        box["id"]
        for page in checks.read_pages(BUILT)
        for box in page.article.select("div.proof.admonition[id]")
    ]
    expected = {f"pl-{kind}-{number}" for kind, numbers in RESULTS.items() for number in numbers}
    assert {name: boxes.count(name) for name in expected} == dict.fromkeys(expected, 1)


def page_of(body: str, head: str = "") -> checks.Page:
    article = f"<article class='bd-article'>{body}</article>"
    html = f"<html><head><title>T</title>{head}</head><body>{article}</body></html>"
    return checks.Page(
        "page", Path("/nowhere/page.html"), checks.BeautifulSoup(html, "html.parser")
    )


@pytest.mark.parametrize(
    ("check", "page"),
    [
        (checks.outside_requests, page_of("", "<script src='https://cdn.example/x.js'></script>")),
        (
            checks.outside_requests,
            page_of("", "<link rel='stylesheet' href='//cdn.example/x.css'>"),
        ),
        (checks.outside_requests, page_of("<script>import('https://cdn.example/x.js')</script>")),
        (checks.mathjax_problems, page_of("<span class='math'>x</span>")),
        (checks.picture_problems, page_of("<img src='x.png' alt=''>")),
        (checks.picture_problems, page_of("<figure id='f'></figure>")),
        (checks.picture_problems, page_of("<svg></svg>")),
        (checks.form_problems, page_of("<h1>a</h1><h1>b</h1>")),
        (checks.form_problems, page_of("<h1>a</h1><h3>b</h3>")),
        (checks.form_problems, page_of("<h1 id='a'>a</h1><p id='a'>b</p>")),
        (
            checks.number_problems,
            page_of(
                "<div class='proof theorem admonition' id='pl-theorem-3'>"
                "<span class='caption-number'>Theorem 1</span></div>"
            ),
        ),
        (
            checks.number_problems,
            page_of("<div class='math' id='equation-pl-eq-7'><span class='eqno'>(8)</span></div>"),
        ),
    ],
)
def test_each_check_can_fail(check, page):
    assert check(page)


def test_launch_check_can_fail():
    wrong = page_of(f"<a href='{checks.COLAB}blob/main/book/other.ipynb'>Colab</a>")
    assert checks.launch_problems(wrong, {"book/page.ipynb"})
    assert checks.launch_problems(page_of(""), {"book/page.ipynb"})
