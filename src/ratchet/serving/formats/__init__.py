"""Request formats: bytes of a request to arrays of a model, and its answers to bytes.

envelopes.py       our own format and MLflow's
open_inference.py  Open Inference Protocol v2
uploads.py         image files and forms
refusals.py        errors of a request
"""
