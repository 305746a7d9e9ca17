"""Small repairs of the built HTML, so that it is valid and accessible."""

import re

CURES = [
    # sphinx-proof and sphinx-exercise give every body the same id, many times a page
    (r' id="(proof|exercise|solution)-content"', ""),
    (
        r'<div class="proof admonition" id="proof">',
        '<div class="proof admonition proof-body">',
    ),
    # the label of a folded cell must not differ from the words that are seen
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    # pandas tables
    (r"<style scoped>", "<style>"),
    (r"<th></th>", "<td></td>"),
]


def cure(app, pagename, template, context, doctree):
    """Apply every cure to the page's body."""
    if context.get("body"):
        for pattern, repair in CURES:
            context["body"] = re.sub(pattern, repair, context["body"])


def setup(app):
    app.connect("html-page-context", cure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
