"""C text of integer functions that must neither trap nor be undefined."""

from __future__ import annotations

from lynx.ir.types import DType

from .text import UNSIGNED, memory_type

_SIGNED = """\
/* A divisor of 0 was reported by a check, and -1 overflows for the least number */
INLINE {t} lynx_trunc_div_{t}({t} a, {t} b) {{
  return b == 0 || b == -1 ? ({t})(0 - ({u})a) : ({t})(a / (b == 0 || b == -1 ? 1 : b));
}}
INLINE {t} lynx_fmod_{t}({t} a, {t} b) {{ return ({t})(a % (b == 0 || b == -1 ? 1 : b)); }}
INLINE {t} lynx_remainder_{t}({t} a, {t} b) {{
  const {t} r = lynx_fmod_{t}(a, b);
  return r != 0 && (r < 0) != (b < 0) ? ({t})(r + b) : r;
}}
INLINE {t} lynx_floor_div_{t}({t} a, {t} b) {{
  const {t} r = lynx_fmod_{t}(a, b), q = lynx_trunc_div_{t}(a, b);
  return r != 0 && (r < 0) != (b < 0) ? ({t})(q - 1) : q;
}}
INLINE {t} lynx_shift_right_{t}({t} a, {t} b) {{
  return ({t})(b < 0 || b >= {w} ? (a < 0 ? -1 : 0) : a >> (b < 0 || b >= {w} ? 0 : b));
}}
INLINE {t} lynx_shift_left_{t}({t} a, {t} b) {{
  return ({t})(b < 0 || b >= {w} ? 0 : ({u})a << (b < 0 || b >= {w} ? 0 : b));
}}"""

_UNSIGNED = """\
INLINE {t} lynx_trunc_div_{t}({t} a, {t} b) {{ return ({t})(a / (b == 0 ? 1 : b)); }}
INLINE {t} lynx_floor_div_{t}({t} a, {t} b) {{ return ({t})(a / (b == 0 ? 1 : b)); }}
INLINE {t} lynx_fmod_{t}({t} a, {t} b) {{ return ({t})(a % (b == 0 ? 1 : b)); }}
INLINE {t} lynx_remainder_{t}({t} a, {t} b) {{ return ({t})(a % (b == 0 ? 1 : b)); }}
INLINE {t} lynx_shift_right_{t}({t} a, {t} b) {{
  return ({t})(b >= {w} ? 0 : a >> (b >= {w} ? 0 : b));
}}
INLINE {t} lynx_shift_left_{t}({t} a, {t} b) {{
  return ({t})(b >= {w} ? 0 : ({u})a << (b >= {w} ? 0 : b));
}}"""

_FLOATING = """\
INLINE {t} lynx_remainder_{t}({t} a, {t} b) {{
  const {t} r = __builtin_fmod{f}(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
INLINE {t} lynx_floor_div_{t}({t} a, {t} b) {{
  const {t} r = __builtin_fmod{f}(a, b);
  {t} q = (a - r) / b;
  q = r != 0 && (b < 0) != (r < 0) ? q - 1 : q;
  const {t} near = __builtin_floor{f}(q);
  const {t} whole = q == 0 ? __builtin_copysign{f}(0, a / b) : q - near > 0.5{f} ? near + 1 : near;
  return b == 0 ? a / b : whole;
}}"""


def division_text(body: str) -> str:
    """Return the definitions of the division and shift functions for the types that a text uses."""
    parts = []
    for dtype, unsigned in UNSIGNED.items():
        name = memory_type(dtype)
        if any(f"lynx_{f}_{name}(" in body for f in FUNCTIONS_OF_INTEGERS):
            template = _SIGNED if name.startswith("i") else _UNSIGNED
            parts.append(template.format(t=name, u=unsigned, w=dtype.itemsize * 8))
    for dtype, suffix in ((DType.F32, "f"), (DType.F64, "")):
        if any(f"lynx_{f}_{dtype}(" in body for f in ("remainder", "floor_div")):
            parts.append(_FLOATING.format(t=dtype.value, f=suffix))
    return "\n".join(parts)


FUNCTIONS_OF_INTEGERS = (
    "trunc_div", "floor_div", "fmod", "remainder", "shift_left", "shift_right",
)  # fmt: skip
