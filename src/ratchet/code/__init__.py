"""Code as data: digests of what it does, and the modules that a result depends on. Nothing is imported for it."""

NO_RESULT = "it only reads code; the digests that it computes are tracked"
