"""Request formats: bytes of a request to arrays of a model, and its answers to bytes.

request_formats.py  our own format and MLflow's
v2.py               Open Inference Protocol v2
uploads.py          image files and forms
"""
