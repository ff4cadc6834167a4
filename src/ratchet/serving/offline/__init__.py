"""Serving without PyTorch, MLflow and a project: `writing` makes the folder, `running` serves it."""
