"""What runs inside the processes of a user's own training script: it watches the steps.

Loaded by the user's interpreter, which need not have scalebench: the standard library and torch
alone, Python 3.9, torch 2.4. `start` is the program; nothing here imports the rest of scalebench.
"""
