"""Where a model came from and what became of it: found again in MLflow, compared, and told as a chain."""
