"""Serving without PyTorch, MLflow and a project: `bundle` makes the folder, `bundle_server` serves it."""
