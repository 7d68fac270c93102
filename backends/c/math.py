"""C text of mathematical functions, written without branches so that loops over them vectorize.

Each is accurate to a few units in the last place over its whole range, subnormal numbers included,
and right for NaN, infinities and signed zeros. None depends on fast-math options.

Each takes 1 as its last argument, hidden from the compiler. Limits that are multiplied by it are no
constants, so that comparisons with them become the instructions for minimum and maximum, which do
with NaN what the C text says. With constants, gcc takes the saturated cases out as branches and
turns these into chains of blends: exp then takes nearly twice as long.

Sources: exp, log and tan follow Cephes; log in `f64` is fdlibm's; the
reduction of large angles splits 2/pi for each exponent into three parts whose products are exact.
"""

from __future__ import annotations

import functools
import re

_F32 = {
    "lynx_scale_f32": """\
INLINE f32 lynx_scale_f32(f32 x, i32 n) {
  const i32 h = n >> 1;
  return x * lynx_make_f32((u32)(h + 127) << 23) * lynx_make_f32((u32)(n - h + 127) << 23);
}""",
    "lynx_exp_tail_f32": """\
/* (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2, where z = r^2; by pairs, so that less waits */
INLINE f32 lynx_exp_tail_f32(f32 r, f32 z) {
  const f32 a = lynx_fma_f32(1.9875691500e-4f, r, 1.3981999507e-3f);
  const f32 b = lynx_fma_f32(8.3334519073e-3f, r, 4.1665795894e-2f);
  const f32 c = lynx_fma_f32(1.6666665459e-1f, r, 5.0000001201e-1f);
  return lynx_fma_f32(lynx_fma_f32(a, z, b), z, c);
}""",
    "lynx_clamp_f32": """\
/* NaN stays; each comparison is one instruction if the compiler does not know the limits */
INLINE f32 lynx_clamp_f32(f32 x, f32 low, f32 high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}""",
    "lynx_expm1_rest_f32": """\
INLINE f32 lynx_expm1_rest_f32(f32 r) {
  const f32 z = r * r;
  return lynx_fma_f32(lynx_exp_tail_f32(r, z), z, r);
}""",
    "lynx_halve_f32": """\
/* The rest of x after the multiple n of log(2) nearest to it; n is added to the bits of `t` */
INLINE f32 lynx_halve_f32(f32 x, f32 *t) {
  *t = lynx_fma_f32(x, 1.44269504f, 12582912.0f);
  const f32 n = *t - 12582912.0f;
  return lynx_fma_f32(n, 2.12194440e-4f, lynx_fma_f32(n, -0.693359375f, x));
}""",
    "lynx_exp_rest_f32": """\
INLINE f32 lynx_exp_rest_f32(f32 r) { return lynx_expm1_rest_f32(r) + 1.0f; }""",
    "lynx_exp_f32": """\
INLINE f32 lynx_exp_f32(f32 x, f32 one) {
  f32 t;
  const f32 r = lynx_halve_f32(lynx_clamp_f32(x, -104.0f * one, 89.0f * one), &t);
  return lynx_scale_f32(lynx_exp_rest_f32(r), (i32)(lynx_bits_f32(t) - 0x4b400000u));
}""",
    "lynx_exp_near_f32": """\
/* exp for results that are normal numbers */
INLINE f32 lynx_exp_near_f32(f32 x) {
  f32 t;
  const f32 r = lynx_halve_f32(x, &t);
  /* a product, since added bits could make a number of NaN */
  return lynx_exp_rest_f32(r) * lynx_make_f32((lynx_bits_f32(t) << 23) + 0x3f800000u);
}""",
    "lynx_exp2_f32": """\
INLINE f32 lynx_exp2_f32(f32 x, f32 one) {
  x = lynx_clamp_f32(x, -151.0f * one, 129.0f * one);
  const f32 t = x + 12582912.0f, f = x - (t - 12582912.0f);
  const f32 r = f * 0.693147181f;
  const f32 e = lynx_fma_f32(f, 0.693147181f, -r) + f * -1.90465421e-9f;
  const f32 y = lynx_fma_f32(lynx_exp_tail_f32(r, r * r), r * r, e) + r + 1.0f;
  return lynx_scale_f32(y, (i32)(lynx_bits_f32(t) - 0x4b400000u));
}""",
    "lynx_expm1_f32": """\
INLINE f32 lynx_expm1_f32(f32 x, f32 one) {
  f32 t;
  const f32 r = lynx_halve_f32(lynx_clamp_f32(x, -104.0f * one, 89.0f * one), &t);
  const f32 q = lynx_expm1_rest_f32(r);
  /* 2^n (q + 1) - 1, with 2^n halved so that it cannot overflow early */
  const f32 s = lynx_scale_f32(0.5f, (i32)(lynx_bits_f32(t) - 0x4b400000u));
  const f32 y = 2.0f * lynx_fma_f32(s, q, s - 0.5f);
  return __builtin_fabsf(x) < 1e-20f ? x : y;
}""",
    "lynx_log_parts_f32": """\
/* x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f + the returned number */
INLINE f32 lynx_log_parts_f32(f32 x, f32 *e, f32 *f) {
  const truth tiny = x < 1.17549435e-38f;
  const u32 u = lynx_bits_f32(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;
  *e = (f32)((i32)u >> 23) - (tiny ? 23.0f : 0.0f);
  const f32 g = lynx_make_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  f32 p = 7.0376836292e-2f;
  p = lynx_fma_f32(p, g, -1.1514610310e-1f);
  p = lynx_fma_f32(p, g, 1.1676998740e-1f);
  p = lynx_fma_f32(p, g, -1.2420140846e-1f);
  p = lynx_fma_f32(p, g, 1.4249322787e-1f);
  p = lynx_fma_f32(p, g, -1.6668057665e-1f);
  p = lynx_fma_f32(p, g, 2.0000714765e-1f);
  p = lynx_fma_f32(p, g, -2.4999993993e-1f);
  p = lynx_fma_f32(p, g, 3.3333331174e-1f);
  *f = g;
  return g * g * lynx_fma_f32(p, g, -0.5f);
}""",
    "lynx_log_ends_f32": """\
INLINE f32 lynx_log_ends_f32(f32 x, f32 y) {
  y = x == 0.0f ? -__builtin_inff() : y;
  y = x < 0.0f ? __builtin_nanf("") : y;
  return (x == __builtin_inff()) | (x != x) ? x : y;
}""",
    "lynx_log_f32": """\
INLINE f32 lynx_log_f32(f32 x, f32 one) {
  f32 e, f;
  const f32 y = lynx_log_parts_f32(x, &e, &f);
  return lynx_log_ends_f32(x, e * 0.693359375f + (f + (y + e * -2.12194440e-4f)));
}""",
    "lynx_log2_f32": """\
INLINE f32 lynx_log2_f32(f32 x, f32 one) {
  f32 e, f;
  const f32 y = lynx_log_parts_f32(x, &e, &f);
  /* log2(e) = 1 + 0.4426950408889634 */
  return lynx_log_ends_f32(x, e + (f + (y + (y * 0.44269504f + f * 0.44269504f))));
}""",
    "lynx_log10_f32": """\
INLINE f32 lynx_log10_f32(f32 x, f32 one) {
  f32 e, f;
  const f32 y = lynx_log_parts_f32(x, &e, &f);
  /* log10(e) = 0.4375 - 0.0032055181; log10(2) = 0.30078125 + 2.4874566e-4 */
  const f32 low = e * 2.48745663981195e-4f + ((f + y) * -3.20551809674e-3f + y * 0.4375f);
  return lynx_log_ends_f32(x, e * 0.30078125f + (f * 0.4375f + low));
}""",
    "lynx_log1p_f32": """\
/* log(u) with the rounding of u = 1 + x, to first order, among the small terms */
INLINE f32 lynx_log1p_f32(f32 x, f32 one) {
  f32 e, f, u = one + x, y = lynx_log_parts_f32(u, &e, &f);
  y += e * -2.12194440e-4f + (x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x)) / u;
  return u == 1.0f ? x : lynx_log_ends_f32(u, e * 0.693359375f + (f + y));
}""",
    "lynx_expm1_near_f32": """\
/* expm1 for numbers between -80 and 80; zero loses its sign */
INLINE f32 lynx_expm1_near_f32(f32 x) {
  f32 t;
  const f32 r = lynx_halve_f32(x, &t);
  const f32 q = lynx_expm1_rest_f32(r);
  const f32 s = lynx_make_f32((lynx_bits_f32(t) << 23) + 0x3f800000u);
  return lynx_fma_f32(s, q, s - 1.0f);
}""",
    "lynx_tanh_f32": """\
INLINE f32 lynx_tanh_f32(f32 x, f32 one) {
  f32 a = 2.0f * __builtin_fabsf(x);
  a = a > 20.0f * one ? 20.0f * one : a;
  const f32 q = lynx_expm1_near_f32(a);
  return __builtin_copysignf(q / (q + 2.0f), x);
}""",
    "lynx_sigmoid_f32": """\
INLINE f32 lynx_sigmoid_f32(f32 x, f32 one) {
  f32 t;
  const f32 r = lynx_halve_f32(lynx_clamp_f32(-x, -80.0f * one, 89.0f * one), &t);
  /* exp(-x) as twice itself times 2^(n - 1), so that it overflows no earlier than it must */
  const f32 twice = lynx_fma_f32(lynx_expm1_rest_f32(r), 2.0f, 2.0f);
  return 1.0f / (1.0f + twice * lynx_make_f32((lynx_bits_f32(t) << 23) + 0x3f000000u));
}""",
    "lynx_erf_f32": """\
/* -log(1 - erf(t)) / t on [0, 4] as a polynomial, fitted to the relative error of erf */
INLINE f32 lynx_erf_f32(f32 x, f32 one) {
  f32 t = __builtin_fabsf(x);
  t = t > 4.0f * one ? 4.0f * one : t;
  const f32 s = t * t;
  const f32 a = lynx_fma_f32(-9.256267730961554e-6f, t, 1.1764129158109426e-4f);
  const f32 b = lynx_fma_f32(-6.328369490802288e-4f, t, 1.6670275945216417e-3f);
  const f32 c = lynx_fma_f32(-1.6039628640655428e-4f, t, -1.9153064116835594e-2f);
  const f32 d = lynx_fma_f32(1.0277783125638962e-1f, t, 6.366193890571594e-1f);
  f32 p = lynx_fma_f32(lynx_fma_f32(lynx_fma_f32(a, s, b), s, c), s, d);
  p = lynx_fma_f32(lynx_fma_f32(p, t, 1.2837917e-1f), t, t);
  return __builtin_copysignf(lynx_expm1_near_f32(-p), x);
}""",
    "lynx_sinh_f32": """\
INLINE f32 lynx_sinh_f32(f32 x, f32 one) {
  const f32 a = __builtin_fabsf(x);
  const f32 q = lynx_expm1_near_f32(a > 80.0f * one ? 80.0f * one : a);
  const f32 h = lynx_exp_f32(0.5f * a, one);
  return __builtin_copysignf(a > 80.0f ? 0.5f * h * h : 0.5f * (q + q / (q + 1.0f)), x);
}""",
    "lynx_cosh_f32": """\
INLINE f32 lynx_cosh_f32(f32 x, f32 one) {
  const f32 a = __builtin_fabsf(x), h = lynx_exp_f32(0.5f * a, one);
  const f32 e = lynx_exp_near_f32(a > 80.0f * one ? 80.0f * one : a);
  return a > 80.0f ? 0.5f * h * h : 0.5f * e + 0.5f / e;
}""",
    "lynx_quadrant_f32": """\
/* The angle in quarter turns from the nearest multiple, times pi/2; the multiple modulo 4 in `n` */
INLINE f64 lynx_quadrant_f32(f32 x, i32 *n) {
  const u32 u = lynx_bits_f32(x), e = (u >> 23) & 255;
  const f64 m = (f64)(i32)((u & 0x7fffff) | (e ? 0x800000 : 0));
  f64 a = m * lynx_turns[e][0];
  /* 1.5 * 2^54 and 1.5 * 2^52 round to multiples of 4 and of 1 */
  a = a - ((a + 27021597764222976.0) - 27021597764222976.0);
  const f64 b = m * lynx_turns[e][1];
  const f64 t = (a + b) + 6755399441055744.0, k = t - 6755399441055744.0;
  const f64 r = (((a - k) + b) + m * lynx_turns[e][2]) * 1.5707963267948966;
  const i32 c = (i32)(u32)lynx_bits_f64(t);
  *n = u >> 31 ? -c : c;
  return u >> 31 ? -r : r;
}""",
    "lynx_sin_poly_f32": """\
INLINE f32 lynx_sin_poly_f32(f32 x, f32 s) {
  f32 p = lynx_fma_f32(-1.9515295891e-4f, s, 8.3321608736e-3f);
  p = lynx_fma_f32(p, s, -1.6666654611e-1f);
  return lynx_fma_f32(p * s, x, x);
}""",
    "lynx_cos_poly_f32": """\
INLINE f32 lynx_cos_poly_f32(f32 s) {
  f32 p = lynx_fma_f32(2.443315711809948e-5f, s, -1.388731625493765e-3f);
  p = lynx_fma_f32(p, s, 4.166664568298827e-2f);
  return lynx_fma_f32(p * s, s, lynx_fma_f32(s, -0.5f, 1.0f));
}""",
    "lynx_sin_f32": """\
INLINE f32 lynx_sin_f32(f32 x, f32 one) {
  i32 n;
  const f32 r = (f32)lynx_quadrant_f32(x, &n), s = r * r;
  const f32 y = n & 1 ? lynx_cos_poly_f32(s) : lynx_sin_poly_f32(r, s);
  return x == 0.0f ? x : n & 2 ? -y : y;
}""",
    "lynx_cos_f32": """\
INLINE f32 lynx_cos_f32(f32 x, f32 one) {
  i32 n;
  const f32 r = (f32)lynx_quadrant_f32(x, &n), s = r * r;
  const f32 y = n & 1 ? lynx_sin_poly_f32(r, s) : lynx_cos_poly_f32(s);
  return (n + 1) & 2 ? -y : y;
}""",
    "lynx_tan_f32": """\
INLINE f32 lynx_tan_f32(f32 x, f32 one) {
  i32 n;
  const f32 r = (f32)lynx_quadrant_f32(x, &n), s = r * r;
  const f32 a = lynx_sin_poly_f32(r, s), b = lynx_cos_poly_f32(s);
  return x == 0.0f ? x : n & 1 ? -b / a : a / b;
}""",
    "lynx_log2_wide": """\
/* log2 of a positive finite number to about 40 bits */
INLINE f64 lynx_log2_wide(f32 x) {
  const truth tiny = x < 1.17549435e-38f;
  const u32 u = lynx_bits_f32(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;
  const f64 e = (f64)(((i32)u >> 23) - (tiny ? 23 : 0));
  const f64 m = (f64)lynx_make_f32((u & 0x7fffffu) + 0x3f3504f3u);
  const f64 s = (m - 1.0) / (m + 1.0), z = s * s;
  f64 p = lynx_fma_f64(z, 1.0 / 15, 1.0 / 13);
  p = lynx_fma_f64(p, z, 1.0 / 11);
  p = lynx_fma_f64(p, z, 1.0 / 9);
  p = lynx_fma_f64(p, z, 1.0 / 7);
  p = lynx_fma_f64(p, z, 1.0 / 5);
  p = lynx_fma_f64(p, z, 1.0 / 3);
  return lynx_fma_f64(lynx_fma_f64(p, z, 1.0) * s, 2.8853900817779268, e);
}""",
    "lynx_exp2_wide": """\
/* 2^t for |t| <= 300, rounded to f32 */
INLINE f32 lynx_exp2_wide(f64 t) {
  const f64 k = t + 6755399441055744.0, r = (t - (k - 6755399441055744.0)) * 0.6931471805599453;
  f64 p = lynx_fma_f64(r, 1.0 / 3628800, 1.0 / 362880);
  p = lynx_fma_f64(p, r, 1.0 / 40320);
  p = lynx_fma_f64(p, r, 1.0 / 5040);
  p = lynx_fma_f64(p, r, 1.0 / 720);
  p = lynx_fma_f64(p, r, 1.0 / 120);
  p = lynx_fma_f64(p, r, 1.0 / 24);
  p = lynx_fma_f64(p, r, 1.0 / 6);
  p = lynx_fma_f64(p, r, 0.5);
  p = lynx_fma_f64(p, r, 1.0);
  p = lynx_fma_f64(p, r, 1.0);
  return (f32)(p * lynx_make_f64((lynx_bits_f64(k) - 0x4338000000000000ull + 1023) << 52));
}""",
    "lynx_pow_f32": """\
INLINE f32 lynx_pow_f32(f32 x, f32 y, f32 one) {
  const f32 inf = __builtin_inff(), a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  const truth whole = (b >= 8388608.0f) | (b == (b + 8388608.0f) - 8388608.0f);
  const f32 half = 0.5f * b;
  const truth odd = whole & (b < 16777216.0f) & (half != (half + 8388608.0f) - 8388608.0f);
  f64 t = (f64)y * lynx_log2_wide((a > 0.0f) & (a < inf) ? a : 1.0f);
  t = t < -300.0 ? -300.0 : t;
  t = t > 300.0 ? 300.0 : t;
  f32 z = lynx_exp2_wide(t);
  z = a == 0.0f ? (y < 0.0f ? inf : 0.0f) : z;
  z = a == inf ? (y < 0.0f ? 0.0f : inf) : z;
  z = b == inf ? (a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? inf : 0.0f) : z;
  z = (lynx_bits_f32(x) >> 31 != 0) & odd ? -z : z;
  z = (x < 0.0f) & (x > -inf) & !whole ? __builtin_nanf("") : z;
  z = (x != x) | (y != y) ? x + y : z;
  return (y == 0.0f) | (x == 1.0f) ? 1.0f : z;
}""",
}

_F64 = {
    "lynx_exp_tail_f64": """\
INLINE f64 lynx_exp_tail_f64(f64 r) {
  f64 p = lynx_fma_f64(r, 1.0 / 6227020800.0, 1.0 / 479001600.0);
  p = lynx_fma_f64(p, r, 1.0 / 39916800.0);
  p = lynx_fma_f64(p, r, 1.0 / 3628800.0);
  p = lynx_fma_f64(p, r, 1.0 / 362880.0);
  p = lynx_fma_f64(p, r, 1.0 / 40320.0);
  p = lynx_fma_f64(p, r, 1.0 / 5040.0);
  p = lynx_fma_f64(p, r, 1.0 / 720.0);
  p = lynx_fma_f64(p, r, 1.0 / 120.0);
  p = lynx_fma_f64(p, r, 1.0 / 24.0);
  p = lynx_fma_f64(p, r, 1.0 / 6.0);
  return lynx_fma_f64(p, r, 0.5);
}""",
    "lynx_reduced_f64": """\
INLINE f64 lynx_reduced_f64(f64 n, f64 x) {
  const f64 high = lynx_fma_f64(n, -6.93147180369123816490e-01, x);
  return lynx_fma_f64(n, -1.90821492927058770002e-10, high);
}""",
    "lynx_clamp_f64": """\
INLINE f64 lynx_clamp_f64(f64 x, f64 low, f64 high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}""",
    "lynx_scale_f64": """\
INLINE f64 lynx_scale_f64(f64 x, i64 n) {
  const i64 h = (i64)((u64)(n + 4096) >> 1) - 2048;
  return x * lynx_make_f64((u64)(h + 1023) << 52) * lynx_make_f64((u64)(n - h + 1023) << 52);
}""",
    "lynx_exp_f64": """\
INLINE f64 lynx_exp_f64(f64 x, f64 one) {
  x = lynx_clamp_f64(x, -746.0 * one, 710.0 * one);
  const f64 t = lynx_fma_f64(x, 1.4426950408889634, 6755399441055744.0);
  const f64 r = lynx_reduced_f64(t - 6755399441055744.0, x);
  const f64 y = lynx_fma_f64(lynx_exp_tail_f64(r) * r, r, r) + 1.0;
  return lynx_scale_f64(y, (i64)(lynx_bits_f64(t) - 0x4338000000000000ull));
}""",
    "lynx_expm1_f64": """\
INLINE f64 lynx_expm1_f64(f64 x, f64 one) {
  const f64 a = lynx_clamp_f64(x, -746.0 * one, 710.0 * one);
  const f64 t = lynx_fma_f64(a, 1.4426950408889634, 6755399441055744.0);
  const f64 r = lynx_reduced_f64(t - 6755399441055744.0, a);
  const f64 q = lynx_fma_f64(lynx_exp_tail_f64(r) * r, r, r);
  const f64 s = lynx_scale_f64(0.5, (i64)(lynx_bits_f64(t) - 0x4338000000000000ull));
  const f64 y = 2.0 * lynx_fma_f64(s, q, s - 0.5);
  return __builtin_fabs(x) < 1e-40 ? x : y;
}""",
    "lynx_log_f64": """\
INLINE f64 lynx_log_f64(f64 x, f64 one) {
  const truth tiny = x < 2.2250738585072014e-308;
  const u64 u = lynx_bits_f64(tiny ? x * 18014398509481984.0 : x) - 0x3fe6a09e667f3bcdull;
  /* the exponent, converted by adding it to the bits of 1.5 * 2^52 */
  const u64 k = (u >> 52) ^ 0x800ull;
  const f64 g = lynx_make_f64(0x4338000000000000ull + k) - 6755399441055744.0 - 2048.0;
  const f64 e = g - (tiny ? 54.0 : 0.0);
  const f64 f = lynx_make_f64((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  const f64 s = f / (2.0 + f), z = s * s, w = z * z, h = 0.5 * f * f;
  f64 a = lynx_fma_f64(w, 1.531383769920937332e-01, 2.222219843214978396e-01);
  a = w * lynx_fma_f64(a, w, 3.999999999940941908e-01);
  f64 b = lynx_fma_f64(w, 1.479819860511658591e-01, 1.818357216161805012e-01);
  b = lynx_fma_f64(b, w, 2.857142874366239149e-01);
  b = z * lynx_fma_f64(b, w, 6.666666666666735130e-01);
  f64 y = e * 6.93147180369123816490e-01
      - ((h - (s * (h + (a + b)) + e * 1.90821492927058770002e-10)) - f);
  y = x == 0.0 ? -__builtin_inf() : y;
  y = x < 0.0 ? __builtin_nan("") : y;
  return (x == __builtin_inf()) | (x != x) ? x : y;
}""",
    "lynx_log1p_f64": """\
INLINE f64 lynx_log1p_f64(f64 x, f64 one) {
  const f64 u = 1.0 + x;
  const f64 y = lynx_log_f64(u, one) * (x / (u - 1.0));
  return (u == 1.0) | (x == __builtin_inf()) ? x : y;
}""",
    "lynx_tanh_f64": """\
INLINE f64 lynx_tanh_f64(f64 x, f64 one) {
  f64 a = __builtin_fabs(x);
  a = a > 20.0 * one ? 20.0 * one : a;
  const f64 q = lynx_expm1_f64(2.0 * a, one);
  return __builtin_copysign(q / (q + 2.0), x);
}""",
    "lynx_sigmoid_f64": """\
INLINE f64 lynx_sigmoid_f64(f64 x, f64 one) {
  const f64 e = lynx_exp_f64(-__builtin_fabs(x), one), r = 1.0 / (1.0 + e);
  return x < 0.0 ? e * r : r;
}""",
}

_BOTH = {
    "lynx_sign_T": """\
INLINE T lynx_sign_T(T x) { return (T)(x > 0) - (T)(x < 0); }""",
    "lynx_maximum_T": """\
INLINE T lynx_maximum_T(T x, T y) { return (x != x) | (x > y) ? x : y; }""",
    "lynx_minimum_T": """\
INLINE T lynx_minimum_T(T x, T y) { return (x != x) | (x < y) ? x : y; }""",
    "lynx_fmax_T": """\
INLINE T lynx_fmax_T(T x, T y) { return (y != y) | (x > y) ? x : y; }""",
    "lynx_fmin_T": """\
INLINE T lynx_fmin_T(T x, T y) { return (y != y) | (x < y) ? x : y; }""",
}

_HALF = {
    "lynx_from_bf16": """\
INLINE f32 lynx_from_bf16(u16 h) { return lynx_make_f32((u32)h << 16); }""",
    "lynx_to_bf16": """\
INLINE u16 lynx_to_bf16(f32 x) {
  const u32 u = lynx_bits_f32(x);
  return (u16)(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}""",
    "lynx_from_f16": """\
INLINE f32 lynx_from_f16(u16 h) {
  const u32 w = (u32)h << 16, sign = w & 0x80000000u, twice = w + w;
  const f32 normal = lynx_make_f32((twice >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  const f32 subnormal = lynx_make_f32((twice >> 17) | (126u << 23)) - 0.5f;
  const u32 a = lynx_bits_f32(subnormal), b = lynx_bits_f32(normal);
  return lynx_make_f32(sign | (twice < (1u << 27) ? a : b));
}""",
    "lynx_to_f16": """\
INLINE u16 lynx_to_f16(f32 x) {
  const u32 w = lynx_bits_f32(x), twice = w + w, sign = w & 0x80000000u;
  const u32 top = twice & 0xff000000u, bias = top < 0x71000000u ? 0x71000000u : top;
  const f32 base = (__builtin_fabsf(x) * 0x1.0p+112f) * 0x1.0p-110f;
  const u32 bits = lynx_bits_f32(lynx_make_f32((bias >> 1) + 0x07800000u) + base);
  const u32 magnitude = ((bits >> 13) & 0x7c00u) + (bits & 0xfffu);
  return (u16)((sign >> 16) | (twice > 0xff000000u ? 0x7e00u : magnitude));
}""",
}


def _expanded() -> dict[str, str]:
    texts = {**_HALF, **_F32, **_F64}
    for kind in ("f32", "f64"):
        for name, text in _BOTH.items():
            texts[name.replace("_T", f"_{kind}")] = re.sub(r"\bT\b", kind, text).replace(
                "_T", f"_{kind}"
            )
    return texts


HELPERS = _expanded()
"""The text of each helper; those that it calls are found by their names."""

_NAME = re.compile(r"\blynx_\w+")


def helpers_text(body: str) -> str:
    """Return the definitions of the helpers that a text uses, each after those that it uses."""
    ordered: dict[str, str] = {}
    pending = [name for name in dict.fromkeys(_NAME.findall(body)) if name in HELPERS]
    while pending:
        name = pending[-1]
        needed = [
            other
            for other in dict.fromkeys(_NAME.findall(HELPERS[name]))
            if other != name and other in HELPERS and other not in ordered
        ]
        if needed:
            pending.extend(needed)
            continue
        ordered.setdefault(name, HELPERS[name])
        pending.pop()
    table = [turns_table()] if "lynx_quadrant_f32" in ordered else []
    return "\n".join([*table, *ordered.values()])


@functools.cache
def turns_table() -> str:
    """Return, for each exponent of `f32`, 2/pi times the last place, modulo 4, in three parts.

    The first has 26 bits down to 2^-24, the second 26 more, so that products with a significand of
    24 bits are exact; the third is rounded.
    """
    precision = 400
    quarter_turns = (1 << (2 * precision + 1)) // _pi(precision)
    rows = []
    for exponent in range(255):
        shift = max(exponent, 1) - 150
        scaled = (
            quarter_turns << shift if shift >= 0 else quarter_turns >> -shift
        ) & ((4 << precision) - 1)  # fmt: skip
        first = scaled >> (precision - 24)
        rest = scaled - (first << (precision - 24))
        second = rest >> (precision - 50)
        rest -= second << (precision - 50)
        third = rest / (1 << precision)
        rows.append(
            f"{{{(first / 2**24).hex()}, {(second / 2**50).hex()}, {third.hex()}}}"
        )  # fmt: skip
    rows.append('{__builtin_nan(""), 0, 0}')
    return "static const f64 lynx_turns[256][3] = {\n  " + ",\n  ".join(rows) + "};"


def _pi(bits: int) -> int:
    """Return pi * 2^bits by Machin's formula."""

    def arctan_of_inverse(x: int, one: int) -> int:
        term = one // x
        total, square, n, sign = term, x * x, 3, -1
        while term:
            term //= square
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    one = 1 << (bits + 20)
    return 4 * (4 * arctan_of_inverse(5, one) - arctan_of_inverse(239, one)) >> 20
