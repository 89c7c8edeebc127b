"""Estimates with intervals, and the rule that says when a series of step times is steady.

Only numpy and ``scipy.special``: the worker imports this in every launch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

CONFIDENCE = 0.95
