"""`lynx.sharding_rule`: how an operator of the user runs on parts of tensors."""

from __future__ import annotations

import torch

from lynx.ir.errors import UsageError
from lynx.ir.space_rules import SPACE_RULES, parse_rule

from .callers import user_location


def sharding_rule(operator: str, rule: str) -> None:
    """Say how the dimensions of an operator's tensors belong together.

        lynx.sharding_rule("mylib::scale_rows", "b s d, d -> b s d")
        lynx.sharding_rule("mylib::project", "b s d, e d -> b s e; sum: d")

    Tensors may be cut along any name: each part of the results is what the operator makes of the
    parts of its operands. After `;` come names along which results of parts are combined (`sum`,
    `product`, `max`, `min`, `and`, `or`), and those that the operator needs as a whole (`opaque`),
    as it does those that no result has. An integer argument that is a size follows its name:
    `argument 2.0: b` is the first entry of the third argument, `argument size.1: d` the second one
    of a keyword. Nothing is tried out of what there is a rule for: it must be right.

    `UsageError` for a malformed rule, or an operator that torch does not know.
    """
    loc = user_location()
    namespace, colons, name = operator.partition("::")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace, None), packet, None) if colons else None
    if found is None or (overload and overload not in found.overloads()):
        message = f"torch knows no operator '{operator}', expected 'namespace::name'"
        raise UsageError("unknown-operator", message, loc)
    try:
        SPACE_RULES[f"{namespace}.{name}"] = parse_rule(rule)
    except UsageError as error:
        raise UsageError(error.code, f"'{operator}': {error.message}", loc) from None
