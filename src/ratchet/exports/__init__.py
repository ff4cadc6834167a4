"""Forms of a model for runtimes other than PyTorch.

onnx_export.py  write a model as model.onnx and program.json
program.py      read and run that program, and compare it with the model
quantize.py     int8 forms of the program
parity.py       measure a variant: accuracy, speed and size; the reasons to refuse it
text.py         parity sheets as text
variants.py     the parity sheets, and the choice of the variant that is served
"""
