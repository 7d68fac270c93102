/* Products of packed blocks for attention, in one type `real`, of tensors of `element`s.

   They are those of gemm.c: a micro-kernel keeps ROWS by COLUMNS sums in registers, reads columns
   from packs (slivers of COLUMNS numbers for each term), and rows from wherever they lie. Blocks
   are padded to whole micro-kernels, so that there are no edges.

   Where the processor multiplies pairs of bf16 numbers and adds both products to a sum in f32, packs
   hold pairs of neighbouring terms, and weights and their gradients are rounded to bf16 before they
   are multiplied, as they are in a model that computes in bf16. All else stays in f32. */

#if IS_BF16 && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define IS_PAIRED 1
typedef u32 TYPED(packed); /* the first of both terms is the low half */
#else
#define IS_PAIRED 0
typedef real TYPED(packed);
#endif

enum { TERMS = 1 + IS_PAIRED };
#define PACKED_TERMS(count) (((count) + TERMS - 1) / TERMS)

/* Scaled queries would be rounded: where they are packed in pairs the products are scaled. */
#define PACK_SCALE (IS_PAIRED ? (real)1 : (real)PRESCALE)
#define DOT_SCALE (IS_PAIRED ? (real)PRESCALE : (real)1)

typedef real TYPED(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef real TYPED(anywhere)
    __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef whole TYPED(bits) __attribute__((vector_size(VECTOR_BYTES)));

#if IS_PAIRED
typedef TYPED(packed) TYPED(pairs) __attribute__((vector_size(VECTOR_BYTES)));
typedef u16 TYPED(halves) __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef TYPED(halves) TYPED(halves_anywhere) __attribute__((aligned(2), may_alias));
typedef TYPED(pairs) TYPED(pairs_anywhere) __attribute__((aligned(4), may_alias));
typedef u32 TYPED(pair_anywhere) __attribute__((aligned(2), may_alias));

/* sum += a b, for one pair with all of b. */
INLINE void TYPED(add_products)(TYPED(vector) *sum, const TYPED(packed) *a, TYPED(pairs) b) {
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(b), "m"(*a));
}

/* To the nearest, half way to the even one; what is no number stays none. */
INLINE TYPED(halves) TYPED(rounded)(TYPED(vector) x) {
  TYPED(halves) result;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(result) : "v"(x));
  return result;
}

/* Rounds a row of a tile in its place, where pairs of its numbers then lie at its beginning. */
INLINE void TYPED(round_row)(i64 n, real *s) {
  TYPED(halves_anywhere) *to = (TYPED(halves_anywhere) *)s;
  for (i64 i = 0; i < n; i += LANES, to++) *to = TYPED(rounded)(*(const TYPED(vector) *)(s + i));
}

/* Makes pairs of the numbers of two rows of a tile, in the place of the first one. */
INLINE void TYPED(pair_rows)(i64 n, real *first, const real *second, u16 *rounded_first,
                             u16 *rounded_second) {
  for (i64 i = 0; i < n; i += LANES) {
    const TYPED(halves) low = TYPED(rounded)(*(const TYPED(vector) *)(first + i));
    const TYPED(halves) high = second ? TYPED(rounded)(*(const TYPED(vector) *)(second + i))
                                      : (TYPED(halves)){0};
    *(TYPED(pairs_anywhere) *)(first + i) = __builtin_convertvector(low, TYPED(pairs)) |
                                            __builtin_convertvector(high, TYPED(pairs)) << 16;
    if (rounded_first) *(TYPED(halves_anywhere) *)(rounded_first + i) = low;
    if (rounded_second) *(TYPED(halves_anywhere) *)(rounded_second + i) = high;
  }
}
#else
typedef TYPED(vector) TYPED(pairs);

INLINE void TYPED(add_products)(TYPED(vector) *sum, const real *a, TYPED(vector) b) {
  *sum += *a * b;
}
#endif

/* c = a b times a scale, or c += a b, for ROWS rows and COLUMNS columns. */
INLINE void TYPED(micro)(i64 terms, const TYPED(packed) *restrict a, i64 a_row, i64 a_term,
                         const TYPED(packed) *restrict b, i64 b_term, real *restrict c, i64 c_row,
                         int adds, real scale) {
  typedef TYPED(pairs) anywhere __attribute__((aligned(sizeof(real)), may_alias));
  TYPED(vector) sum[ROWS][VECTORS];
  EACH (int i = 0; i < ROWS; i++)
    EACH (int j = 0; j < VECTORS; j++) sum[i][j] = (TYPED(vector)){0};
  for (i64 term = 0; term < terms; term++, a += a_term, b += b_term) {
    TYPED(pairs) row[VECTORS];
    EACH (int j = 0; j < VECTORS; j++) row[j] = *(const anywhere *)(b + j * LANES);
    EACH (int i = 0; i < ROWS; i++)
      EACH (int j = 0; j < VECTORS; j++) TYPED(add_products)(&sum[i][j], a + i * a_row, row[j]);
  }
  EACH (int i = 0; i < ROWS; i++)
    EACH (int j = 0; j < VECTORS; j++) {
      TYPED(vector) *to = (TYPED(vector) *)(c + i * c_row + j * LANES);
      *to = adds ? *to + sum[i][j] : IS_PAIRED ? sum[i][j] * scale : sum[i][j];
    }
}

/* Rows in slivers, as `pack_rows` makes them: the scores of some queries for some keys, times
   `scale` if they are packed in pairs. */
NOINLINE void TYPED(multiply_slivers)(i64 rows, i64 columns, i64 depth, const TYPED(packed) *a,
                                      const TYPED(packed) *b, real *c, real scale) {
  const i64 terms = PACKED_TERMS(depth);
  for (i64 j = 0; j < columns; j += COLUMNS, b += COLUMNS * terms) {
    const TYPED(packed) *from = a;
    for (i64 i = 0; i < rows; i += ROWS, from += ROWS * terms)
      TYPED(micro)(terms, from, 1, ROWS, b, COLUMNS, c + i * PITCH + j, PITCH, 0, scale);
  }
}

/* Rows `a_row` apart, as they lie in a tile of scores; c has `columns` numbers a row, and is added
   to. The slivers of b are `b_step` numbers apart, its terms `b_term`. */
NOINLINE void TYPED(multiply_tile)(i64 rows, i64 columns, i64 depth, const void *tile, i64 a_row,
                                   const TYPED(packed) *b, i64 b_step, i64 b_term, real *c) {
  const TYPED(packed) *a = tile;
  for (i64 j = 0; j < columns; j += COLUMNS, b += b_step)
    for (i64 i = 0; i < rows; i += ROWS)
      TYPED(micro)(PACKED_TERMS(depth), a + i * a_row, a_row, 1, b, b_term, c + i * columns + j,
                   columns, 1, 1);
}

/* The same with the columns of a tile as rows; its pairs are those of rows, in the first of both. */
NOINLINE void TYPED(multiply_transposed)(i64 rows, i64 columns, i64 depth, const void *tile,
                                         const TYPED(packed) *b, i64 b_step, real *c) {
  const TYPED(packed) *a = tile;
  for (i64 j = 0; j < columns; j += COLUMNS, b += b_step)
    for (i64 i = 0; i < rows; i += ROWS)
      TYPED(micro)(PACKED_TERMS(depth), a + i, 1, TERMS * PITCH, b, COLUMNS, c + i * columns + j,
                   columns, 1, 1);
}

#undef TURNS
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && VECTOR_BYTES == 32 && REAL_BYTES == 4
#define TURNS 1
#endif
#endif

#if defined(TURNS)
/* Turns a square of numbers around: rows `step` apart become columns of rows `to_step` apart. */
INLINE void TYPED(turn)(const element *from, i64 step, real scale, real *to, i64 to_step) {
  TYPED(vector) a[8], b[8], c[8];
#define PAIR(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
  EACH (int i = 0; i < 8; i++) {
#if IS_ROUNDED
    EACH (int j = 0; j < 8; j++) a[i][j] = load_element(from[i * step + j]);
#else
    a[i] = *(const TYPED(anywhere) *)(from + i * step);
#endif
    a[i] *= scale;
  }
  EACH (int i = 0; i < 8; i += 2) {
    b[i] = PAIR(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[i + 1] = PAIR(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  EACH (int i = 0; i < 8; i += 4)
    EACH (int j = 0; j < 2; j++) {
      c[i + 2 * j] = PAIR(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      c[i + 2 * j + 1] = PAIR(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  EACH (int i = 0; i < 4; i++) {
    *(TYPED(anywhere) *)(to + i * to_step) = PAIR(c[i], c[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    *(TYPED(anywhere) *)(to + (i + 4) * to_step) = PAIR(c[i], c[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#undef PAIR
}
#endif

#if IS_PAIRED
/* Packs pairs of neighbouring terms; the last one of an odd number ends with 0. */
INLINE void TYPED(pack)(int width, i64 count, i64 depth, const element *from, i64 step,
                        i64 term_step, real scale, TYPED(packed) *to) {
  const i64 whole = depth / 2, terms = PACKED_TERMS(depth);
  for (i64 first = 0; first < count; first += width, to += width * terms) {
    const i64 some = lynx_min(width, count - first);
    const element *at = from + first * step;
    i64 pair = 0;
    if (some == width && step == 1)
      for (; pair < whole; pair++, at += 2 * term_step)
        EACH (int i = 0; i < width; i++) to[pair * width + i] = at[i] | (u32)at[term_step + i] << 16;
    else if (some == width && term_step == 1)
      for (; pair < whole; pair++, at += 2)
        EACH (int i = 0; i < width; i++)
          to[pair * width + i] = *(const TYPED(pair_anywhere) *)(at + i * step);
    else
      for (i64 i = 0; i < width * terms; i++) to[i] = 0;
    for (; pair < terms; pair++, at += 2 * term_step)
      for (i64 i = 0; i < some; i++) {
        const u32 second = 2 * pair + 1 < depth ? at[i * step + term_step] : 0;
        to[pair * width + i] = at[i * step] | second << 16;
      }
  }
}
#else
/* Packs `count` rows or columns of `depth` terms, each times `scale`, into slivers of `width`. */
INLINE void TYPED(pack)(int width, i64 count, i64 depth, const element *from, i64 step,
                        i64 term_step, real scale, real *to) {
  for (i64 first = 0; first < count; first += width, to += width * depth) {
    const i64 some = lynx_min(width, count - first);
    const element *at = from + first * step;
    if (some == width && step == 1) {
      for (i64 term = 0; term < depth; term++)
        EACH (int i = 0; i < width; i++)
          to[term * width + i] = load_element(at[term * term_step + i]) * scale;
      continue;
    }
    if (some < width)
      for (i64 i = 0; i < width * depth; i++) to[i] = 0;
    if (some == width && term_step == 1) {
      i64 term = 0;
#if defined(TURNS)
      if (width % 8 == 0)
        for (; term + 8 <= depth; term += 8)
          for (int i = 0; i < width; i += 8)
            TYPED(turn)(at + i * step + term, step, scale, to + term * width + i, width);
#endif
      for (; term < depth; term++)
        EACH (int i = 0; i < width; i++)
          to[term * width + i] = load_element(at[i * step + term]) * scale;
      continue;
    }
    for (i64 term = 0; term < depth; term++)
      for (i64 i = 0; i < some; i++)
        to[term * width + i] = load_element(at[term * term_step + i * step]) * scale;
  }
}
#endif

NOINLINE void TYPED(pack_rows)(i64 count, i64 depth, const element *from, i64 step, i64 term_step,
                               real scale, TYPED(packed) *to) {
  TYPED(pack)(ROWS, count, depth, from, step, term_step, scale, to);
}

NOINLINE void TYPED(pack_columns)(i64 count, i64 depth, const element *from, i64 step,
                                  i64 term_step, real scale, TYPED(packed) *to) {
  TYPED(pack)(COLUMNS, count, depth, from, step, term_step, scale, to);
}

/* Packs `depth` terms of `count` columns into slivers that are `to_step` numbers apart. */
NOINLINE void TYPED(pack_terms)(i64 count, i64 depth, const element *from, i64 step, i64 term_step,
                                real scale, TYPED(packed) *to, i64 to_step) {
  for (i64 first = 0; first < count; first += COLUMNS, to += to_step)
    TYPED(pack_columns)(lynx_min(COLUMNS, count - first), depth, from + first * step, step,
                        term_step, scale, to);
}

NOINLINE void TYPED(clear)(i64 count, real *to) {
  for (i64 i = 0; i < count; i++) to[i] = 0;
}

/* Whether no number is NaN or infinite. What a mask hides has a weight of zero, which is lost in
   what is finite, and makes NaN of the rest: only then does it have to be computed. */
NOINLINE int TYPED(are_finite)(i64 count, const real *x) {
  real sum = 0;
  _Pragma("omp simd reduction(+:sum)") for (i64 i = 0; i < count; i++) sum += x[i] - x[i];
  return sum == 0;
}

/* The same for a pack. */
NOINLINE int TYPED(is_finite_pack)(i64 count, const TYPED(packed) *x) {
#if IS_PAIRED
  u32 found = 0;
  _Pragma("omp simd reduction(|:found)") for (i64 i = 0; i < count; i++) found |=
      (u32)((x[i] & 0x7f80) == 0x7f80) | (u32)((x[i] & 0x7f800000) == 0x7f800000);
  return !found;
#else
  return TYPED(are_finite)(count, x);
#endif
}

/* 2^x for x <= 0, but 0 where it would not be a normal number; NaN stays. */
INLINE TYPED(vector) TYPED(exp2)(TYPED(vector) x) {
  const TYPED(vector) shifted = x + ROUNDER, f = x - (shifted - ROUNDER);
#if REAL_BYTES == 4
  /* A polynomial fitted with a relative error of 2e-9. */
  const TYPED(vector) z = f * f;
  const TYPED(vector) a = f * 1.5353359e-4f + 1.3398875e-3f;
  const TYPED(vector) b = f * 9.6184374e-3f + 5.5503325e-2f;
  const TYPED(vector) c = f * 2.4022648e-1f + 6.9314720e-1f;
  const TYPED(vector) y = (a * z + b) * (z * f) + (c * f + 1.0f);
#else
  const TYPED(vector) r = f * 0.69314718055994530942;
  TYPED(vector) y = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  y = y * r + 1.0 / 39916800.0;
  y = y * r + 1.0 / 3628800.0;
  y = y * r + 1.0 / 362880.0;
  y = y * r + 1.0 / 40320.0;
  y = y * r + 1.0 / 5040.0;
  y = y * r + 1.0 / 720.0;
  y = y * r + 1.0 / 120.0;
  y = y * r + 1.0 / 24.0;
  y = y * r + 1.0 / 6.0;
  y = y * r + 0.5;
  y = y * r + 1.0;
  y = y * r + 1.0;
#endif
  const TYPED(bits) power = ((TYPED(bits))shifted << MANTISSA) + EXPONENT_OF_ONE;
  const TYPED(bits) normal = ~(x < LEAST_EXPONENT);
  return (TYPED(vector))((TYPED(bits))(y * (TYPED(vector))power) & normal);
}

INLINE real TYPED(exp2_of)(real x) {
  TYPED(vector) v = {x};
  return TYPED(exp2)(v)[0];
}

INLINE TYPED(vector) TYPED(larger)(TYPED(vector) a, TYPED(vector) b) {
#if defined(__AVX512F__) || !defined(__AVX2__)
  const TYPED(bits) is_first = a > b;
  return (TYPED(vector))(((TYPED(bits))a & is_first) | ((TYPED(bits))b & ~is_first));
#elif REAL_BYTES == 4
  return __builtin_ia32_maxps256(a, b);
#else
  return __builtin_ia32_maxpd256(a, b);
#endif
}

/* The largest of a row, of which the rest up to whole vectors is set to minus infinity. NaN is
   passed over: it will show in the sum. */
INLINE real TYPED(row_max)(i64 n, real *s) {
  for (i64 i = n; i < ((n + LANES - 1) & -LANES); i++) s[i] = -INFINITE;
  TYPED(vector) most = (TYPED(vector)){0} - INFINITE;
  for (i64 i = 0; i < n; i += LANES) {
    most = TYPED(larger)(*(const TYPED(vector) *)(s + i), most);
  }
  real result = most[0];
  for (int i = 1; i < LANES; i++) result = most[i] > result ? most[i] : result;
  return result;
}

/* exp(before - now), where `now` is no infinity. Differences come first here and below: a large score
   times LOG2E is rounded by more than what is left of it. */
INLINE real TYPED(row_factor)(real before, real now) {
  return TYPED(exp2_of)((before - now) * (real)LOG2E);
}

/* A row of scores becomes exp(s - most); returns the sum. */
INLINE real TYPED(row_exp)(i64 n, real *s, real most) {
  TYPED(vector) sum = {0}, other = {0};
  i64 i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    TYPED(vector) *a = (TYPED(vector) *)(s + i), *b = a + 1;
    *a = TYPED(exp2)((*a - most) * (real)LOG2E);
    *b = TYPED(exp2)((*b - most) * (real)LOG2E);
    sum += *a;
    other += *b;
  }
  for (; i < n; i += LANES) {
    TYPED(vector) *a = (TYPED(vector) *)(s + i);
    *a = TYPED(exp2)((*a - most) * (real)LOG2E);
    sum += *a;
  }
  sum += other;
  real result = 0;
  for (int lane = 0; lane < LANES; lane++) result += sum[lane];
  return result;
}
