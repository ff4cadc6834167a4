"""Token streams as a kind of samples."""
