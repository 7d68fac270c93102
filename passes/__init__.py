"""Passes: what turns one program into a better one."""
