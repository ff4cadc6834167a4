"""The section `search` of params.yaml: what a search tries, and how long."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ratchet.settings.section import Amount, Count, Positive, Section, Text, ValidationMetric, setting

__all__ = ["Objective", "SearchSettings"]

Objective = Literal[ValidationMetric, "parameters"]


class SearchSettings(Section):
    """Search for better settings."""

    captions: ClassVar[dict[str, str]] = {
        "space": "What is tried, and what counts",
        "trials": "Budget; a larger one continues a search that has ended",
        "sampler": "Method",
        "finalists": "The end",
        "workers": "Processes and storage",
    }

    space: dict[str, Any] = setting(
        {},
        "settings that differ between trials: {KEY: {choice: [...]}}, {KEY: {float: [LOW, HIGH]}} or int, with step, "
        "log and when",
    )
    study: Annotated[str, Field(pattern=r"^\w[\w.-]{0,63}$")] = setting(
        "auto", "name of the study, of letters, digits, _, . and -; auto: the name of the registered model"
    )
    objective: Literal["auto"] | Objective | Annotated[tuple[Objective, ...], Field(strict=False, min_length=1)] = (
        setting(
            "auto", "metric of the best epoch, parameters (number of weights), or a list of both; auto: training.best"
        )
    )

    trials: Positive = setting(40, "different settings that are tried")
    hours: Amount = setting(0.0, "hours in which at least one worker searches; 0: no limit")
    cpu_hours: Amount = setting(0.0, "hours of one core, of all trials; 0: no limit")

    sampler: Literal["tpe", "random", "grid", "gp"] = setting(
        "tpe", "how Optuna chooses the next settings; gp is a Gaussian process"
    )
    pruner: Literal["auto", "none", "median", "successive-halving", "hyperband"] = setting(
        "auto",
        "how bad trials end early; auto: successive-halving, or none for several objectives",
    )

    finalists: Positive = setting(3, "best trials that are trained with other seeds at the end")
    seeds: Positive = setting(3, "seeds of each finalist; the winner has the best mean; 1: the best trial wins")

    workers: Count = setting(0, "processes of this machine; 0: one per GPU, else one per core")
    storage: Text = setting(
        "sqlite:///mlruns/search.db", "Optuna's storage; postgresql://... if workers are on several machines"
    )
    folder: Text = setting("data/search", "folder of the trials' checkpoints; workers of several machines share it")
    lease: Annotated[float, Field(ge=1.0)] = setting(
        60.0, "seconds without a sign of a worker before another continues its trial"
    )
    max_losses: Positive = setting(3, "lost workers after which a trial counts as failed")
    winner: Annotated[str, Field(pattern=r"^(none|[\w.-]+/[0-9]+:[0-9a-f]{12})$")] = setting(
        "none", "study, trial and digest of the settings in this file; written by `ratchet search`"
    )
