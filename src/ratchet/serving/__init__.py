"""The ONNX program of a registered model, for runtimes other than PyTorch.

export.py   export a model to model.onnx and program.json
program.py  read and run the program, and compare it with the model
"""
