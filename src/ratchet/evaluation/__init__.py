"""How good a model is: figures with intervals, predictions kept row by row, and the report.

Everything here is a function of arrays; nothing knows who trained the model or where the result is recorded.
"""
