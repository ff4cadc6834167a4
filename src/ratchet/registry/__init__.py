"""MLflow: what happened, and which models are known to be good."""

NO_RESULT = {"train": "metrics and settings go to MLflow only", "evaluate": "metrics and settings go to MLflow only"}
