"""What a registered model is used by: so far its program, for runtimes other than PyTorch.

export.py   a model -> model.onnx and program.json
program.py  these, read and run, and held against the model's own answers
"""
