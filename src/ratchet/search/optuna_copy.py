"""Copy a study to a storage of Optuna, for Optuna's own tools such as its dashboard."""

from dataclasses import replace

from ratchet import urls
from ratchet.errors import StudyError, first_line
from ratchet.search.records import Study, Trial
from ratchet.search.sampling import frozen
from ratchet.settings.search_space import Dimension

__all__ = ["copy_to_optuna"]


def copy_to_optuna(study: Study, space: tuple[Dimension, ...], storage: str) -> int:
    """Write the trials that are not running as an Optuna study of the same name; return how many.

    A study of that name in the storage is replaced if ratchet wrote it.

    Raises:
        StudyError: the storage cannot be opened, or has a study of that name which ratchet did not write.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        opened = optuna.storages.get_storage(storage)
        known = {each.study_name: each for each in optuna.get_all_study_summaries(opened)}
        if study.name in known:
            if "ratchet.study" not in known[study.name].user_attrs:
                raise StudyError(
                    f"{study.name}: {urls.redacted(storage)} has a study of this name that ratchet did not write. Fix: "
                    "name another storage"
                )
            optuna.delete_study(study_name=study.name, storage=opened)
        directions = ["maximize" if larger else "minimize" for larger in study.maximize]
        copied = optuna.create_study(storage=opened, study_name=study.name, directions=directions)  # type: ignore[arg-type]
        copied.set_user_attr("ratchet.study", study.name)
        copied.set_metric_names(list(study.objectives))
        trials = [_ended(trial) for trial in study.searched if trial.state not in ("running", "waiting")]
        copied.add_trials([frozen(trial, space, several=len(study.objectives) > 1) for trial in trials])
    except (SQLAlchemyError, ImportError, ValueError, OSError) as error:
        raise StudyError(
            f"--to: found {urls.redacted(storage)} ({first_line(error)}). Allowed: an address of an Optuna storage, "
            "such as sqlite:///optuna.db"
        ) from error
    return len(trials)


def _ended(trial: Trial) -> Trial:
    """Return a trial as one that has ended. Optuna has no state for a paused one."""
    return replace(trial, state="pruned") if trial.state == "paused" else trial
