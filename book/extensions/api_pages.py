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
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
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
    """Public methods and properties of a class: its own, and those of its private bases."""
    by_name = {n.name: n for n in parse(home).body if isinstance(n, ast.ClassDef)}
    bases = [by_name[b.id] for b in node.bases if getattr(b, "id", "") in by_name]
    own, shared = [
        {
            member.name: member
            for cls in classes
            for member in cls.body
            if isinstance(member, ast.FunctionDef)
            and not member.name.startswith("_")
            and ast.get_docstring(member)
        }
        for classes in ([node], bases)
    ]
    return own, {name: member for name, member in shared.items() if name not in own}


def signature(node):
    """The arguments as written, annotations included; fields for a dataclass."""
    if isinstance(node, ast.FunctionDef):
        arguments = f"({re.sub(r'^self(, )?', '', ast.unparse(node.args))})"
        if any(getattr(mark, "id", "") == "property" for mark in node.decorator_list):
            arguments = ""
        return arguments + (f" → {ast.unparse(node.returns)}" if node.returns else "")
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
    """``{api} package.module``: an overview, then one entry for every public name.

    ``:order:`` names modules that come first, in that order; the others follow by name.
    """

    required_arguments = 1
    option_spec: ClassVar = {"order": directives.unchanged}

    def run(self):
        """Return the overview and one ``py`` description per public name, by module."""
        module = self.arguments[0]
        self.env.note_dependency(str(source_file(module)))
        groups = {}
        for name, home, node in definitions(module):
            self.env.note_dependency(str(source_file(home)))
            groups.setdefault(home, []).append((node.lineno, f"{module}.{name}", node))
        if not groups:
            raise self.error(f"{module} has no public name")
        groups = {home: sorted(groups[home], key=lambda e: e[0]) for home in self._sorted(groups)}
        found = [self._overview(groups)] if len(groups) > 1 else []
        shown = {}
        for home, group in groups.items():
            if len(groups) > 1:
                found.append(nodes.rubric("", "", *inline(summary(home)), classes=["api-group"]))
            found += [self._entry(name, node, home, shown) for _, name, node in group]
        return found

    def _sorted(self, homes):
        first = self.options.get("order", "").split()
        places = {name: place for place, name in enumerate(first)}
        return sorted(homes, key=lambda h: (places.get(h.rpartition(".")[2], len(first)), h))

    def _overview(self, groups):
        """One line per module with links to its names."""
        lines = nodes.bullet_list("", classes=["api-items"])
        for home, group in groups.items():
            about = summary(home)
            line = nodes.paragraph("", about + (" " if about.endswith("?") else ": "))
            for position, (_, name, _) in enumerate(group):
                code = nodes.literal("", name.rpartition(".")[2])
                line += [nodes.Text(", " if position else ""), link(name, code)]
            lines += nodes.list_item("", line)
        return lines

    def _entry(self, full_name, node, home, shown):
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        head = addnodes.desc_signature("", "", ids=[full_name], classes=["api-signature"])
        head["fullname"] = full_name
        short = full_name.rpartition(".")[2]
        head += addnodes.desc_name(short, short)
        if signature(node):
            head += nodes.inline("", signature(node), classes=["sig-arguments"])
        content = addnodes.desc_content("", *render(ast.get_docstring(node) or ""))
        if kind == "class":
            content += self._members(full_name, node, home, shown)
        self.env.get_domain("py").note_object(full_name, kind, full_name, location=head)
        return addnodes.desc("", head, content, domain="py", objtype=kind, classes=["py", kind])

    def _members(self, full_name, node, home, shown):
        """Entries of the methods; what several classes share is described with the first one."""
        own, shared = members(node, home)
        first = shown.setdefault(tuple(shared.values()), full_name)
        listed = (shared if first == full_name else {}) | own
        found = [self._entry(f"{full_name}.{n}", m, home, shown) for n, m in listed.items()]
        if shared and first != full_name:
            code = nodes.literal("", first.rpartition(".")[2])
            found.insert(
                0, nodes.paragraph("", "Methods as in ", link(first, code), nodes.Text("."))
            )
        return found


def summary(module):
    """First line of a module's docstring, without its full stop."""
    return (ast.get_docstring(parse(module)) or module).split("\n")[0].rstrip(".")


def link(identifier, *children):
    return nodes.reference("", "", *children, refid=identifier, internal=True)


def setup(app):
    app.add_directive("api", ApiDirective)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
