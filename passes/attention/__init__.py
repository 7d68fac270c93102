"""Attention: score functions as regions and kernels, their gradients, and what computes them."""

from .choose import SUBJECT, Choice, ChooseAttention, choose
from .derivative import derivative_of, why_no_derivative
from .description import describe_attention, describe_score

__all__ = [
    "SUBJECT",
    "Choice",
    "ChooseAttention",
    "choose",
    "derivative_of",
    "describe_attention",
    "describe_score",
    "why_no_derivative",
]
