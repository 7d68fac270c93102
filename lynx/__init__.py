"""Lynx: a whole-graph optimizing compiler for PyTorch."""
