"""Images as a kind of samples."""
