"""The notebooks: every one in ``book/`` has its form, and the linter sees each deviation."""

from __future__ import annotations

import json

import nbformat
import pytest

from lib.book.lint import (
    KERNEL,
    bootstrap_source,
    fix_notebook,
    lint_notebook,
    lint_pages,
    notebook_paths,
)
from lib.book.notebooks import pages, parameters, read_notebook
from tests.book.conftest import CODE

NOTEBOOKS = notebook_paths(CODE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_of_the_book_have_their_form(path):
    assert lint_notebook(CODE, path) == []


def test_every_page_exists_and_every_notebook_is_a_page():
    assert NOTEBOOKS
    assert lint_pages(CODE) == []


@pytest.fixture
def page(book):
    """Returns the path of a page that the linter has nothing against."""
    path = book.root / "book" / "part" / "sum.ipynb"
    cells = [
        nbformat.v4.new_markdown_cell("# Sums\n\nHow fast do they grow?", id="a"),
        nbformat.v4.new_code_cell(
            bootstrap_source(book.root, "part/sum"), id="b", metadata={"tags": ["hide-input"]}
        ),
        nbformat.v4.new_code_cell("n = 100", id="c", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("def double(x):\n    return 2 * x", id="d"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, path)
    assert lint_notebook(book.root, path) == []
    return path


def edit(path, change) -> None:
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def set_source(position, source):
    return lambda notebook: notebook.cells[position].update(source=source)


def set_tags(position, *tags):
    return lambda notebook: notebook.cells[position].metadata.update(tags=list(tags))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_source(0, "## Sums"), "cell 1: must be Markdown"),
        (set_source(1, "import lib"), "cell 2: must equal lib/book/bootstrap_cell"),
        (set_tags(1), "cell 2: must have the tag hide-input"),
        (set_tags(2), "cell 3: must be the parameters cell"),
        (set_source(2, "n = f(1)"), "plain literals"),
        (set_tags(3, "secret"), "cell 4: unknown tag secret; allowed: hide-input"),
        (set_source(3, "x = 1\n" * 15 + "x = 1"), "cell 4: 16 lines of code; 15 at most"),
        (set_source(3, "class A:\n    x = 1"), "cell 4: defines a class"),
        (set_source(3, "def f(): 1\ndef g(): 1\ndef h(): 1"), "3 functions; 2 at most"),
        (set_source(3, "async def f():\n  def g(): 1\n  def h(): 1"), "3 functions; 2 at most"),
        (set_source(3, "if os.environ['BOOK_PROFILE']: 1"), "never on the profile"),
        (set_source(3, "%time x"), "cell 4: is no plain Python"),
        (set_source(3, "\n"), "cell 4: is empty"),
        (lambda n: n.cells[3].update(execution_count=1), "cell 4: has an execution count"),
        (
            lambda n: n.cells[3].outputs.append(nbformat.v4.new_output("stream", text="x")),
            "cell 4: has outputs",
        ),
        (lambda n: n.cells[3].metadata.update(scrolled=True), "its metadata holds scrolled"),
        (lambda n: n.metadata.update(papermill={}), "its metadata holds papermill"),
        (lambda n: n.metadata.pop("kernelspec"), "its kernelspec must be python3"),
        (lambda n: n.cells.__delitem__(slice(1, None)), "a page begins with a title, the set-up"),
    ],
)
def test_each_deviation_is_named(book, page, change, problem):
    edit(page, change)
    found = lint_notebook(book.root, page)
    assert any(problem in line for line in found), found
    assert all(line.startswith("book/part/sum.ipynb: ") for line in found)


def test_other_spelling_and_broken_files_are_named(book, page):
    page.write_text(json.dumps(json.loads(page.read_text())))
    assert "not in canonical form" in lint_notebook(book.root, page)[0]
    page.write_text("{}")
    assert "no readable notebook" in lint_notebook(book.root, page)[0]


def test_fixing_mends_what_a_machine_can_and_keeps_the_ids(book, page):
    whole = page.read_bytes()

    def spoil(notebook):
        notebook.cells[3].update(execution_count=3)
        notebook.cells[3].outputs.append(nbformat.v4.new_output("stream", text="x"))
        notebook.cells[1].source = "from lib.book.bootstrap import start"
        notebook.cells[1].metadata = {}
        notebook.cells[0].metadata["scrolled"] = True
        notebook.metadata["language_info"] = {"name": "python"}

    edit(page, spoil)
    assert fix_notebook(book.root, page)
    assert page.read_bytes() == whole
    assert not fix_notebook(book.root, page)


def test_pages_follow_the_contents(book):
    assert pages(book.root) == ["index", "part/sum", "part/plain"]
    book.notebook("part/loose", "1")
    assert any("loose.ipynb stands in no line" in line for line in lint_pages(book.root))
    book.write("_toc.yml", "root: index\nchapters:\n- file: gone\n  sections: [{file: part/sum}]")
    assert pages(book.root) == ["index", "gone", "part/sum"]
    assert "'gone', but book/gone.ipynb" in lint_pages(book.root)[0]
    book.write("_toc.yml", "root: index\nchapters: [{file: index}]")
    with pytest.raises(ValueError, match="names index twice"):
        pages(book.root)


def test_parameters_keep_order_and_types(book):
    text = "b = 1\na: float = -2.5e-3\nsizes = (1, 2)\nname = 'x'\nnone = None"
    notebook = read_notebook(book.notebook("part/sum", parameters=text))
    found = parameters(notebook, "it")
    assert list(found.items()) == [
        ("b", 1),
        ("a", -0.0025),
        ("sizes", (1, 2)),
        ("name", "x"),
        ("none", None),
    ]
