"""The Sphinx extensions of the book, on small documents and on the real docstrings."""

import importlib
import inspect
import re

import pytest
from docutils import nodes

from book.extensions import api_pages, bookfix, paper_numbers


@pytest.mark.parametrize(
    ("label", "kind", "number"),
    [
        ("pl-theorem-3", "theorem", "3"),
        ("pl-corollary-10", "corollary", "10"),
        ("tpkd-proposition-b.2", "proposition", "B.2"),
        ("gunasekar-lemma-4a", "lemma", "4a"),
        ("gunasekar-theorem-1", "theorem", "1"),
        ("gunasekar-theorem-2a", "theorem", "2a"),
        ("gunasekar-lemma-dn", "lemma", "dn"),
    ],
)
def test_label_carries_the_papers_number(label, kind, number):
    match = paper_numbers.RESULT_LABEL.match(label)
    assert match["kind"] == kind
    assert paper_numbers.paper_number(match) == number


@pytest.mark.parametrize(
    "label",
    [
        "def-angular-tail",
        "theorem-3",
        "pl-theorem-three",
        "pl-theorem-",
        "pl-theorem-3-proof",
        "pl-theorem-x",
        "lemma-dn",
    ],
)
def test_other_labels_have_no_number(label):
    assert paper_numbers.RESULT_LABEL.match(label) is None


def test_equations_of_an_appendix_keep_their_letter():
    """Sphinx turns the dot of the label into a hyphen."""
    for identifier, number in (("equation-tpkd-eq-a-3", "A.3"), ("equation-tpkd-eq-c.12", "C.12")):
        assert paper_numbers.paper_number(paper_numbers.EQUATION_LABEL.match(identifier)) == number


def test_equations_take_numbers_and_no_names():
    """``eq-xy`` may be the start of a name of our own."""
    match = paper_numbers.EQUATION_LABEL.match("equation-pl-eq-16b")
    assert paper_numbers.paper_number(match) == "16b"
    assert paper_numbers.EQUATION_LABEL.match("equation-pl-eq-dn") is None


class Env:
    def __init__(self, fignumbers):
        self.toc_fignumbers = fignumbers


class App:
    def __init__(self, fignumbers):
        self.env = Env(fignumbers)


def test_own_equations_are_counted_without_gaps_and_twice_is_once():
    numbers = {
        "a": {"displaymath": {"equation-pl-eq-16b": (3, 1), "equation-eq-own": (3, 2)}},
        "b": {"displaymath": {"equation-eq-other": (3, 3), "equation-pl-eq-7": (4, 1)}},
        "c": {"figure": {"fig-x": (1, 1)}},
    }
    app = App(numbers)
    for _ in range(2):
        paper_numbers.number_equations(app, None)
        assert numbers["a"]["displaymath"] == {
            "equation-pl-eq-16b": ("16b",),
            "equation-eq-own": (3, 1),
        }
        assert numbers["b"]["displaymath"] == {
            "equation-eq-other": (3, 2),
            "equation-pl-eq-7": ("7",),
        }


def test_cures_leave_other_markup_alone():
    context = {"body": '<section id="proof-content"><p id="mine">x</p></section>'}
    bookfix.cure(None, "page", None, context, None)
    assert context["body"] == '<section><p id="mine">x</p></section>'


DOCSTRING = r"""Return the bound of `n` examples.

$$p(\beta) +
  p(\pi/2 - \beta)^n$$

with $\beta$ free. **Source**: a paper, see ``$HOME``.

Args:
    n: (...) int, at
        least 1.
    name, other: two of them.

Returns:
    A number.

Raises:
    ValueError: if n < 1.

Example:
    Words first.

    >>> 1 + 1
    2
"""


def test_docstring_becomes_formulas_code_lists_and_examples():
    document = nodes.container("", *api_pages.render(DOCSTRING))
    formulas = [node.astext() for node in document.findall(nodes.math_block)]
    assert formulas == [r"p(\beta) + p(\pi/2 - \beta)^n"]
    assert [node.astext() for node in document.findall(nodes.math)] == [r"\beta"]
    literals = [node.astext() for node in document.findall(nodes.literal)]
    assert literals == ["n", "$HOME", "n", "name, other", "ValueError"]
    assert [node.astext() for node in document.findall(nodes.literal_block)] == [">>> 1 + 1\n2"]
    assert "(...) int, at least 1." in document.astext()
    assert document.astext().index("Words first.") < document.astext().index(">>> 1 + 1")


PACKAGES = re.findall(
    r"^```\{api\} (\S+)$", (api_pages.ROOT / "book" / "api.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("module", PACKAGES)
def test_code_reference_has_every_public_name(module):
    """The names found in the source are those that the imported module offers."""
    imported = importlib.import_module(module)
    shown = {name for name, _, _ in api_pages.definitions(module)}
    names = getattr(imported, "__all__", [n for n in vars(imported) if not n.startswith("_")])
    offered = {name: getattr(imported, name) for name in names}
    kinds = {
        name
        for name, value in offered.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and (hasattr(imported, "__all__") or value.__module__ == module)
    }
    assert shown == kinds
    assert shown


@pytest.mark.parametrize("module", PACKAGES)
def test_docstrings_leave_no_markup_behind(module):
    for name, _, node in api_pages.definitions(module):
        docstring = inspect.cleandoc(api_pages.ast.get_docstring(node) or "")
        assert docstring, f"{module}.{name} has no docstring"
        document = nodes.container("", *api_pages.render(docstring))
        for text in document.findall(nodes.Text):
            if isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.math):
                continue
            if not isinstance(text.parent, nodes.math_block):
                assert not re.search(r"\$|``|(?<!\.)\.\. |\*\*", text.astext()), (
                    f"{module}.{name}: {text}"
                )
