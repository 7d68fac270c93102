"""Attention: score functions as regions and kernels, their gradients, and what computes them."""

from .choose import Choice, ChooseAttention, choose
from .derivative import derivative_of, why_no_derivative

__all__ = ["Choice", "ChooseAttention", "choose", "derivative_of", "why_no_derivative"]
