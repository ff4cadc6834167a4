"""The record of where a model came from."""

NO_RESULT = {"train": "the record goes to MLflow only", "evaluate": "the record goes to MLflow only"}
