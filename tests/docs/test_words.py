"""The words of the package and of its tests: variables are named by what they are, docstrings stand alone."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "flstudy"
TESTS = Path(__file__).parents[1]
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
PRONOUNS = {"one", "found", "own", "given", "known", "told", "each", "kept", "said", "made"}
ARTICLES = re.compile(r"(The|A|An|All|Every|Whether|These|This|And)\b")
OPENINGS = re.compile(r"(What|Of|The same|Likewise|That|Those|It|Whether|And)\b")


@cache
def modules(folder=PACKAGE):
    """Parse every module below a folder."""
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def pronouns(tree):
    """Variables and arguments, but for the fields of classes, that say nothing of what they are, with their lines."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        assigned = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if assigned and node.id in PRONOUNS and id(node) not in fields:
            yield f"{node.lineno}: {node.id}"
        if isinstance(node, ast.arg) and node.arg in PRONOUNS:
            yield f"{node.lineno}: {node.arg}"


def riddles(tree):
    """Docstrings that begin with a word for something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if OPENINGS.match(text):
                yield text.splitlines()[0]


def is_read_as_a_value(node):
    """Whether a function is read as a noun: a property, or a context."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith(("property", "contextmanager")) for name in names)


def without_a_verb(tree):
    """Docstrings of functions that begin with an article, where a verb says what the function does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_read_as_a_value(node):
            text = ast.get_docstring(node) or ""
            if ARTICLES.match(text):
                yield f"{node.name}: {text.splitlines()[0]}"


@pytest.mark.slow
def test_no_variable_is_a_pronoun():
    trees = modules() | modules(TESTS)
    assert not {str(path): names for path, tree in trees.items() if (names := list(pronouns(tree)))}


def test_no_docstring_needs_its_neighbour():
    assert not {str(path): texts for path, tree in modules().items() if (texts := list(riddles(tree)))}


def test_a_function_s_docstring_begins_with_a_verb():
    assert not {str(path): texts for path, tree in modules().items() if (texts := list(without_a_verb(tree)))}


def test_what_is_wrong_is_found():
    tree = ast.parse(
        "class A:\n    own: int\n    def f(self):\n        'Of rows.'\n        return [one for one in self.own]\n"
        "def g(told): pass"
    )
    assert sorted(pronouns(tree)) == ["5: one", "6: told"]
    assert list(riddles(tree)) == ["Of rows."]
    assert list(without_a_verb(ast.parse("def f():\n    'The rows.'"))) == ["f: The rows."]


def test_the_glossary_is_short_and_its_classes_are_there():
    terms = re.findall(r"^\| (.+?) \|", ARCHITECTURE.read_text().partition("## Glossary")[2], re.MULTILINE)[2:]
    assert len(terms) == len(set(terms)) <= 40
    assert terms == sorted(terms, key=lambda term: term.strip("`").lower())
    classes = {node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert {term.strip("`") for term in terms if term.startswith("`")} <= classes
