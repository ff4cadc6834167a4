"""Request formats: bytes of a request to arrays of a model, and its answers to bytes.

envelopes.py       our own format and MLflow's
open_inference.py  Open Inference Protocol v2
request_values.py  values of a request to arrays, with one message for each wrong value
raw_inputs.py      raw values that are known to be right, to arrays and tensors
"""
