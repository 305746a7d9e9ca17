"""Number theorems and equations as the sources number them.

sphinx-proof and Sphinx count theorems and equations in reading order. A book that retells a paper
needs the paper's own numbers, on any page and in any order. Here the label carries the number:

* ``pl-theorem-3`` on a ``{prf:theorem}`` reads "Theorem 3", and so does ``{prf:ref}`` to it;
* ``gunasekar-lemma-dn`` reads "Lemma dn", for a source that names a result by two letters;
* a result of our own (any other label, or none) has no number;
* ``$$ ... $$ (pl-eq-16b)`` reads "(16b)", ``(tpkd-eq-a.3)`` reads "(A.3)"; equations of our own
  keep chapter numbers, without gaps.

The directives keep the names of sphinx-proof (``prf:theorem``, ``prf:lemma``, ...).
"""

import re
from collections import defaultdict
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx_proof.domain import ProofDomain
from sphinx_proof.proof_type import PROOF_TYPES

logger = logging.getLogger(__name__)

NUMBER = r"(?P<number>(?:[a-z][.-])?\d+(?:[.-]\d+)*[a-z]?)"  # Sphinx writes a dot in an id as -
NAME = r"(?P<name>[a-z]{2})"
RESULT_LABEL = re.compile(rf"^[a-z0-9]+-(?P<kind>{'|'.join(PROOF_TYPES)})-(?:{NUMBER}|{NAME})$")
EQUATION_LABEL = re.compile(rf"^equation-[a-z0-9]+-eq-{NUMBER}$")


def paper_number(match):
    """The number as the source prints it: ``b.2``, ``b-2`` -> ``B.2``; two letters stay."""
    if match["number"] is None:
        return match["name"]
    number = match["number"].replace("-", ".")
    return number[0].upper() + number[1:] if number[0].isalpha() else number


class result_node(nodes.Admonition, nodes.Element):
    """A theorem, lemma, definition, example ... with its title."""


def visit_result(translator, node):
    translator.body.append(translator.starttag(node, "div", CLASS="admonition"))


def depart_result(translator, node):
    translator.body.append("</div>\n")


class ResultDirective(SphinxDirective):
    """``{prf:theorem} Title`` with ``:label:`` and ``:class:`` (``:nonumber:`` changes nothing)."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "label": directives.unchanged_required,
        "class": directives.class_option,
        "nonumber": directives.flag,
    }

    def run(self):
        """Return the box with its title."""
        kind, label = self.name.split(":")[1], self.options.get("label", "")
        title, messages = self._inline(self.arguments[0] if self.arguments else "")
        match = RESULT_LABEL.match(label)
        name = f"{kind.title()} {paper_number(match)}" if match else kind.title()
        node = result_node(classes=["proof", kind, *self.options.get("class", [])])
        self.set_source_info(node)
        if label:
            node["ids"].append(label)
            called = f"{name} ({nodes.inline('', '', *title).astext()})" if title else name
            self._register(label, kind, name if match else called)
        node += self._title(name, title)
        body = nodes.container(classes=[f"{kind}-content"])
        self.state.nested_parse(self.content, self.content_offset, body)
        node += body
        return [node, *messages]

    def _inline(self, text):
        return self.state.inline_text(text, self.lineno) if text else ([], [])

    def _register(self, label, kind, called):
        """Remember where the label stands and what references to it read."""
        match = RESULT_LABEL.match(label)
        if match and match["kind"] != kind:
            self._warn(
                "label '%s' promises a %s, but stands on a %s",
                label,
                match["kind"],
                kind,
            )
        if not hasattr(self.env, "proof_list"):
            self.env.proof_list = {}
        if label in self.env.proof_list:
            other = self.env.proof_list[label]["docname"]
            self._warn("duplicate label '%s', also in %s", label, other)
        self.env.proof_list[label] = {"docname": self.env.docname, "name": called}

    def _warn(self, message, *arguments):
        logger.warning(message, *arguments, location=self.get_location())

    def _title(self, name, title):
        node = nodes.title("", "")
        node += nodes.inline("", name, classes=["caption-number"])
        if title:
            parts = [part.deepcopy() for part in title]
            node += nodes.inline("", "", nodes.Text(" ("), *parts, nodes.Text(")"))
        return node


class PaperProofDomain(ProofDomain):
    """The ``prf`` domain with numbers that come from labels."""

    directives: ClassVar = {
        **ProofDomain.directives,
        **dict.fromkeys(PROOF_TYPES, ResultDirective),
    }
    indices: ClassVar = []

    def resolve_xref(self, env, fromdocname, builder, typ, target, node, contnode):
        """Return a link that reads as the result is called, or as the author wrote."""
        found = getattr(env, "proof_list", {}).get(target)
        if found is None:
            return None
        written = contnode.astext()
        text = nodes.inline("", found["name"] if written == target else written)
        return make_refnode(builder, fromdocname, found["docname"], target, text)


def number_equations(app, builder):
    """Give labelled equations the source's number; count the book's own ones without gaps."""
    own = defaultdict(list)
    for docname, figures in app.env.toc_fignumbers.items():
        for identifier, number in figures.get("displaymath", {}).items():
            match = EQUATION_LABEL.match(identifier)
            if match:
                figures["displaymath"][identifier] = (paper_number(match),)
            else:
                own[number[:-1]].append((number[-1], docname, identifier))
    for prefix, equations in own.items():
        for count, (_, docname, identifier) in enumerate(sorted(equations), start=1):
            app.env.toc_fignumbers[docname]["displaymath"][identifier] = (
                *prefix,
                count,
            )


def setup(app):
    app.setup_extension("sphinx_proof")
    app.add_domain(PaperProofDomain, override=True)
    app.add_node(result_node, html=(visit_result, depart_result))
    app.connect("write-started", number_equations)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
