"""MLflow: what happened, and which models are known to be good."""
