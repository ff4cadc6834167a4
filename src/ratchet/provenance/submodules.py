"""The git submodules of a checkout, from the project's own copies of their repositories where it has them."""

from collections.abc import Iterator
from pathlib import Path

from ratchet import git

__all__ = ["update_submodules"]

_PATHS = ("config", "--file", ".gitmodules", "--null", "--get-regexp", r"^submodule\..*\.path$")


def update_submodules(checkout: Path, project: Path) -> None:
    """Check out the submodules that the index of a checkout names, and those inside of them.

    The project's copies need no network. git fetches the others from the address in .gitmodules.

    Args:
        checkout: top folder of the checkout.
        project: top folder of the project's repository.

    Raises:
        GitError: naming a submodule whose commit cannot be fetched.
    """
    for name, path, commit in _submodules(checkout):
        modules = _git_folder(project, "--git-common-dir") / "modules"
        copies = (modules / name, _git_folder(project / path, "--git-dir"))  # a worktree of git has its own
        copy = next((each for each in copies if each.is_dir() and _has(each, commit)), None)
        local = ("-c", "protocol.file.allow=always", "-c", f"submodule.{name}.url={copy}") if copy else ()
        try:
            git.run(checkout, *local, "submodule", "update", "--quiet", "--init", "--", path)
        except git.GitError as error:
            raise git.GitError(
                f"the submodule {path} at commit {commit[:12]} is not in {project / path}, and git cannot fetch it "
                f"({error}). Fix: fetch that commit there with git",
                error.code,
            ) from error
        update_submodules(checkout / path, project / path)


def _submodules(checkout: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, path and commit of each submodule."""
    listed = (git.line(checkout, *_PATHS) or "") if (checkout / ".gitmodules").is_file() else ""
    for entry in filter(None, listed.split("\0")):
        key, path = entry.split("\n", 1)  # both may have spaces
        staged = git.line(checkout, "ls-files", "--stage", "--", path) or ""
        if staged.startswith("160000 "):  # the mode of a submodule
            yield key.removeprefix("submodule.").removesuffix(".path"), path, staged.split()[1]


def _git_folder(checkout: Path, option: str) -> Path:
    """Return the folder of git of a checkout, which can be a submodule or missing."""
    folder = git.line(checkout, "rev-parse", "--path-format=absolute", option) if checkout.is_dir() else None
    return Path(folder or checkout)


def _has(repository: Path, commit: str) -> bool:
    try:
        git.run(repository, "--git-dir=.", "--work-tree=.", "cat-file", "-e", f"{commit}^{{commit}}")
    except git.GitError:
        return False
    return True
