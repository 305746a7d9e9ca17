"""``{api} lib.linear``: the public names of a package, read from its source.

The code is parsed, never imported: the site builds without torch, and docstrings need no reST.
Public are the names in ``__all__`` where there is one, else those without a leading underscore.
Docstrings are Google style, with formulas between ``$`` or ``$$``. Names can be referred to with
``{py:func}`lib.linear.student_limit```.
"""

import ast
import inspect
import itertools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example", "Examples")
INLINE = re.compile(
    r"(?::\w+(?::\w+)?:)?(?P<ticks>`+)(?P<code>.+?)(?P=ticks)|\$(?P<math>[^$]+?)\$"
    r"|\*\*(?P<strong>.+?)\*\*|\*(?P<emphasis>\w[^*\n]*?)\*"
)
RST_MATH = re.compile(r"^\.\. math::\n\n?((?: +.*\n?)+)", re.MULTILINE)
DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
ITEM = re.compile(r"^(?P<name>\*{0,2}\w+(?:, ?\w+)*)(?: \(.*?\))?: +(?P<text>.*)$")


# ---- source ----
def source_file(module):
    """The file of a module or package below the repository's root."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def parse(module):
    return ast.parse(source_file(module).read_text(encoding="utf-8"))


def public_names(tree):
    """``__all__`` where it is written out, else the definitions without a leading underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]


def homes(module, tree):
    """Name -> module that defines it, for names a package hands on."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            origin = node.module if node.level == 0 else f"{module}.{node.module}"
            found.update({alias.asname or alias.name: origin for alias in node.names})
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            pairs = ast.literal_eval(node.value)
            found.update({name: f"{module}.{home}" for name, home in pairs.items()})
    return found


def definitions(module):
    """Yield (name, defining module, node) for every public function and class of a module."""
    tree = parse(module)
    origins = homes(module, tree)
    for name in public_names(tree):
        home = origins.get(name, module)
        for node in parse(home).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                yield name, home, node


def members(node, home):
    """Public methods and properties of a class, those of its private bases included."""
    by_name = {n.name: n for n in parse(home).body if isinstance(n, ast.ClassDef)}
    found = {}
    for base in [*[by_name.get(getattr(b, "id", "")) for b in node.bases], node]:
        for member in base.body if base else []:
            function = isinstance(member, ast.FunctionDef) and not member.name.startswith("_")
            if function and ast.get_docstring(member):
                found[member.name] = member
    return list(found.values())


def signature(node):
    """The arguments as written, annotations included; fields for a dataclass."""
    if isinstance(node, ast.FunctionDef):
        arguments = ast.unparse(node.args)
        arguments = re.sub(r"^self(, )?", "", arguments)
        return f"({arguments})" + (f" → {ast.unparse(node.returns)}" if node.returns else "")
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    return f"({', '.join(ast.unparse(f.target) for f in fields)})" if fields else ""


# ---- docstrings ----
def inline(text):
    """Code, formulas, bold and emphasis of one paragraph as nodes; the rest is plain text."""
    result, end = [], 0
    for match in INLINE.finditer(text):
        result.append(nodes.Text(text[end : match.start()]))
        if match["code"]:
            result.append(nodes.literal("", match["code"].lstrip("~")))
        elif match["math"]:
            result.append(nodes.math("", match["math"]))
        elif match["strong"]:
            result.append(nodes.strong("", match["strong"]))
        else:
            result.append(nodes.emphasis("", match["emphasis"]))
        end = match.end()
    return [*result, nodes.Text(text[end:])]


def paragraphs(text):
    """Running text with displayed formulas as nodes."""
    result = []
    for position, part in enumerate(DISPLAY.split(text)):
        words = " ".join(part.split())
        if position % 2:
            result.append(nodes.math_block(words, words, nowrap=False, number=None))
        elif words.strip(" .,"):
            result.append(nodes.paragraph("", "", *inline(words)))
    return result


def blocks(lines):
    """Split at empty lines, but keep neighbouring indented blocks together."""
    filled = itertools.groupby(lines, key=lambda line: bool(line.strip()))
    joined = []
    for group in (list(group) for some, group in filled if some):
        if group[0].startswith(" ") and joined and joined[-1][0].startswith(" "):
            joined[-1] += ["", *group]
        else:
            joined.append(group)
    return joined


def prose(lines):
    """Paragraphs, formulas, lists, examples and literal blocks as nodes."""
    result = []
    for block in blocks(lines):
        text = inspect.cleandoc("\n".join(block))
        if text.startswith(">>>"):
            result.append(nodes.literal_block(text, text, language="pycon"))
        elif block[0].startswith(" ") and not text.startswith("$$"):
            result.append(nodes.literal_block(text, text, language="text"))
        elif text.startswith(("* ", "- ")):
            items = re.split(r"^[*-] ", text, flags=re.MULTILINE)[1:]
            items = [nodes.list_item("", *paragraphs(item)) for item in items]
            result.append(nodes.bullet_list("", *items))
        else:
            result += paragraphs(re.sub(r"::$", ":", text))
    return result


def entries(lines):
    """The ``name: text`` items of a section as (name, text); text alone where there is no name."""
    found = []
    for line in lines:
        match = ITEM.match(line)
        if match:
            found.append([match["name"], match["text"]])
        elif line.strip() and found and (line.startswith(" ") or not found[-1][0]):
            found[-1][1] += " " + line.strip()
        elif line.strip():
            found.append(["", line.strip()])
    return found


def section(title, lines):
    """One Google section as nodes."""
    body = inspect.cleandoc("\n".join(lines)).split("\n")
    if title.startswith("Example"):
        return prose(body)
    if title == "Returns":
        return [nodes.paragraph("", "", nodes.strong("", "Returns "), *inline(" ".join(body)))]
    rows = nodes.bullet_list("", classes=["api-items"])
    for name, text in entries(body):
        head = [nodes.literal("", name), nodes.Text("  ")] if name else []
        rows += nodes.list_item("", nodes.paragraph("", "", *head, *inline(text)))
    return [nodes.paragraph("", "", nodes.strong("", title)), rows]


def render(docstring):
    """A Google docstring as nodes."""
    chunks, title = [("", [])], re.compile(rf"^({'|'.join(SECTIONS)}):$")
    text = RST_MATH.sub(lambda m: f"$${m[1].strip()}$$\n", inspect.cleandoc(docstring))
    for line in text.split("\n"):
        match = title.match(line)
        if match:
            chunks.append((match[1], []))
        else:
            chunks[-1][1].append(line)
    result = prose(chunks[0][1])
    for name, lines in chunks[1:]:
        result += section(name, lines)
    return result


# ---- the directive ----
class ApiDirective(SphinxDirective):
    """``{api} package.module``: one entry for every public name."""

    required_arguments = 1

    def run(self):
        """Return one ``py`` description per public name."""
        module = self.arguments[0]
        self.env.note_dependency(str(source_file(module)))
        found = []
        for name, home, node in definitions(module):
            self.env.note_dependency(str(source_file(home)))
            found.append(self._entry(f"{module}.{name}", node, home))
        if not found:
            raise self.error(f"{module} has no public name")
        return found

    def _entry(self, full_name, node, home=None):
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        entry = addnodes.desc(domain="py", objtype=kind, classes=["py", kind])
        head = addnodes.desc_signature("", "", ids=[full_name], classes=["api-signature"])
        head["fullname"] = full_name
        shown = full_name.rpartition(".")[2]
        head += addnodes.desc_name(shown, shown)
        parameters = signature(node)
        if parameters:
            head += nodes.inline("", parameters, classes=["sig-arguments"])
        content = addnodes.desc_content("", *render(ast.get_docstring(node) or ""))
        for member in members(node, home) if kind == "class" else []:
            content += self._entry(f"{full_name}.{member.name}", member)
        entry += [head, content]
        self.env.get_domain("py").note_object(full_name, kind, full_name, location=head)
        return entry


def setup(app):
    app.add_directive("api", ApiDirective)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
