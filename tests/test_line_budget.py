"""Lines of code by package. None grows without a commit that says why."""

import collections
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LIMITS = {
    "baselines": 650,
    "code": 450,
    "commands": 5_459,
    "data": 12_101,
    "doctor": 1_301,
    "evaluation": 3_899,
    "exports": 777,
    "flows": 3_805,
    "gate": 1_664,
    "kinds": 2_607,
    "monitoring": 3_226,
    "problems": 1_386,
    "project_files": 30,
    "provenance": 1_218,
    "ratchet": 3_586,
    "registry": 5_179,
    "reports": 2_401,
    "scale": 737,
    "search": 1_170,
    "servers": 1_500,
    "serving": 7_497,
    "settings": 2_626,
    "tasks": 7_139,
    "tokens": 400,
    "traffic": 1_338,
    "training": 11_319,
}


def lines() -> dict[str, int]:
    """Lines of each package; `ratchet` has the modules outside of packages."""
    counts: dict[str, int] = collections.Counter()
    for folder in ("src/ratchet", "flows", "tasks", "commands"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            inner = path.relative_to(REPOSITORY / folder).parts
            package = inner[0] if len(inner) > 1 and folder == "src/ratchet" else Path(folder).name
            counts[package] += path.read_text(encoding="utf-8").count("\n")
    return dict(counts)


def test_no_package_outgrows_its_limit() -> None:
    counts = lines()
    outgrown = {name: (count, LIMITS.get(name)) for name, count in counts.items() if count > LIMITS.get(name, 0)}
    assert not outgrown, "make it smaller; or raise its limit here, in the commit whose message says why it grows"
    assert counts.keys() == LIMITS.keys(), "remove the limit of a package that is gone"
