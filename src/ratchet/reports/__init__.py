"""Pages and cards."""
