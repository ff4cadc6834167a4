"""Words and sentences that must not come back: the readers are engineers from every country."""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PYTHON = ("src", "tasks", "flows", "commands")
TEXT = ("README.md", "CONTRIBUTING.md", "params.yaml", "dvc.yaml", "prefect.yaml", "docs/*.md", "examples/*.yaml")
# Archaic or unusual words, and words that the glossary of CONTRIBUTING.md replaces; with the word to use.
INSTEAD = {
    r"told|(?<![.\"])tell(?:s|ing)?": "reported, says, records",
    r"nobody": "no user, none",
    r"spoilt": "damaged",
    r"mend(?:s|ed|ing)?": "fix",
    r"amiss": "wrong",
    r"anew": "again",
    r"befall(?:s|en)?|befell": "happens to",
    r"bears|borne": "has, allows",
    r"ways? out": "fix",
    r"pictures?": "image",
    r"whoever|whomever": "the user who",
    r"lest": "so that ... not",
    r"reckon(?:s|ed)?": "count, estimate",
    r"beyond chance": "significant",
    r"put right": "fixed",
    r"heeds?": "follows",
    r"for ever": "permanently",
}
VAGUE = {"one", "ones", "found", "told", "made", "said", "asked", "words"}  # names that do not say what they hold
# Participles that name nothing, in the packages that are free of them.
PARTICIPLES = {"assigned", "broken", "described", "given", "kept", "known", "loaded", "meant", "settled"}
WITHOUT_PARTICIPLES = (
    "src/ratchet/training/",
    "src/ratchet/doctor/",
    "src/ratchet/servers/",
    "src/ratchet/code/",
    "flows/",
)
WORDS = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)


def texts() -> list[Path]:
    files = [path for folder in PYTHON for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".j2")]
    files += (path for path in (REPOSITORY / "tests").rglob("*.py") if path != Path(__file__))
    return sorted(files + [path for pattern in TEXT for path in REPOSITORY.glob(pattern)])


def modules() -> list[Path]:
    return [path for path in texts() if path.suffix == ".py"]


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_there_is_text_to_read() -> None:
    assert len(modules()) > 100
    assert len(texts()) > len(modules()) + 10


def test_words_that_readers_stumble_over_are_not_used() -> None:
    faults = [
        f"{name(path)}:{number}: {match.group()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in WORDS.finditer(line)
    ]
    assert not faults, f"use instead {INSTEAD}"


def test_docstrings_begin_with_a_verb_or_a_thing() -> None:
    faults = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(?:What|Who|Whom|Whose|That which|How|Where)\b", text):
                    faults.append(f"{name(path)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert not faults


def test_names_of_variables_say_what_they_hold() -> None:
    faults = []
    for path in modules():
        names = VAGUE | PARTICIPLES if name(path).startswith(WITHOUT_PARTICIPLES) else VAGUE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names
            if stored or (isinstance(node, ast.arg) and node.arg in names):
                faults.append(f"{name(path)}:{node.lineno}")
    assert not faults, f"use a noun instead of {sorted(VAGUE | PARTICIPLES)}"


def test_names_of_tests_have_at_most_ten_words() -> None:
    long = []
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name.count("_") > 10:
                long.append(f"{name(path)}:{node.lineno}: {node.name}")
    assert not long
