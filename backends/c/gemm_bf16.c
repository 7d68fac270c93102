/* What is particular to products of bf16 matrices, for processors with an instruction for them.

   The instruction multiplies pairs of neighbouring terms and adds both products to a sum in f32, so
   packs hold pairs. Sums stay in f32 over all terms, and are rounded once. Numbers below the
   normal ones count as 0, as they do for the library on the same processors; products that torch
   keeps from it do not come here. */

enum {
  LANES = 16, PAIRS = 2 * LANES, ROWS = 14, VECTORS = 2, COLUMNS = LANES * VECTORS,
  TERMS = 2,                        /* in one number of a pack */
  DEPTH = 1,                        /* of no account: sums are not cut */
  TALL = (112 / ROWS) * ROWS,       /* rows of a that stay in L2 */
  WIDE = (192 / COLUMNS) * COLUMNS, /* columns of b that stay in L2 */
  OWN = 1 << 16,                    /* numbers of a pack that stay in L2 */
  SHARED = 1 << 20,                 /* numbers that are packed for all threads at once */
  CUT = 512,                        /* additions to a sum, then it goes to a sum of sums */
  FEW = 16,                         /* rows up to which packing the columns of b does not pay */
};

typedef u16 number; /* of a matrix */
typedef u32 packed; /* of a pack: the first term of a pair is the low half */

typedef f32 vector __attribute__((vector_size(64)));
typedef u32 pairs __attribute__((vector_size(64)));
typedef u32 pairs_anywhere __attribute__((vector_size(64), aligned(2), may_alias));
typedef u16 numbers __attribute__((vector_size(32)));
typedef u16 numbers_anywhere __attribute__((vector_size(32), aligned(2), may_alias));
typedef u16 eight __attribute__((vector_size(16), aligned(2), may_alias));
typedef u32 wide_eight __attribute__((vector_size(32)));
typedef u32 wide_eight_anywhere __attribute__((vector_size(32), aligned(4), may_alias));
typedef u32 four __attribute__((vector_size(16), aligned(2), may_alias));
typedef u32 pair_anywhere __attribute__((aligned(2), may_alias));

#define MULTIPLY lynx_multiply_bf16
#define WHOLE 1 /* c is too narrow for sums to wait in it */

/* sum += a b, pair by pair. */
INLINE void add_pairs(vector *sum, pairs a, pairs b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

/* The same for one pair with all of b. */
INLINE void add_pair(vector *sum, const packed *a, pairs b) {
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(b), "m"(*a));
}

/* To the nearest, half way to the even one; what is no number stays none. */
INLINE numbers rounded(vector x) {
  numbers result;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(result) : "v"(x));
  return result;
}

INLINE u16 rounded_one(f32 x) { return rounded((vector){x})[0]; }

INLINE vector widened(numbers x) { return (vector)(__builtin_convertvector(x, pairs) << 16); }

INLINE f32 widened_one(u16 x) {
  const union { u32 bits; f32 value; } is = {(u32)x << 16};
  return is.value;
}

INLINE f32 added_at(const struct operands *x, i64 i, i64 j) {
  return widened_one(((const u16 *)x->added)[i * x->added_row + j * x->added_column]);
}

/* A block of c. */
INLINE void whole(const struct operands *x, const vector sum[ROWS][VECTORS], i64 i, i64 j) {
  const u16 *added = (const u16 *)x->added + (x->added ? i * x->added_row + j : 0);
  u16 *c = (u16 *)x->c + i * x->c_row + j;
  EACH (int row = 0; row < ROWS; row++)
    EACH (int at = 0; at < VECTORS; at++) {
      vector total = sum[row][at];
      if (x->added)
        total += widened(*(const numbers_anywhere *)(added + row * x->added_row + at * LANES));
      *(numbers_anywhere *)(c + row * x->c_row + at * LANES) = rounded(total);
    }
}

/* A block of c at the end of rows or columns. */
static void edge(const struct operands *x, const f32 *sum, i64 i, i64 j) {
  const i64 rows = smaller(ROWS, x->m - i), columns = smaller(COLUMNS, x->n - j);
  u16 *c = (u16 *)x->c + i * x->c_row + j;
  for (i64 row = 0; row < rows; row++)
    for (i64 column = 0; column < columns; column++) {
      f32 total = sum[row * COLUMNS + column];
      if (x->added) total += added_at(x, i + row, j + column);
      c[row * x->c_row + column] = rounded_one(total);
    }
}

/* Computes `rows` rows of the block of c at row i and column j, of which fewer may be there. */
INLINE void rows_of_tile(int rows, const struct operands *x, const u32 *a, const u32 *b, i64 i,
                         i64 j, i64 depth) {
  vector sum[ROWS][VECTORS], before[ROWS][VECTORS];
  EACH (int row = 0; row < rows; row++)
    EACH (int at = 0; at < VECTORS; at++) sum[row][at] = (vector){0};
  for (i64 term = 0;;) {
    for (const i64 end = smaller(depth, term + CUT); term < end; term++, a += ROWS, b += COLUMNS) {
      pairs columns[VECTORS];
      EACH (int at = 0; at < VECTORS; at++) columns[at] = *(const pairs *)(b + at * LANES);
      EACH (int row = 0; row < rows; row++)
        EACH (int at = 0; at < VECTORS; at++) add_pair(&sum[row][at], a + row, columns[at]);
    }
    if (depth <= CUT) break;
    const int is_first = term <= CUT, is_last = term == depth;
    EACH (int row = 0; row < rows; row++)
      EACH (int at = 0; at < VECTORS; at++) {
        if (!is_first) sum[row][at] += before[row][at];
        before[row][at] = sum[row][at];
        if (!is_last) sum[row][at] = (vector){0};
      }
    if (is_last) break;
  }
  if (rows == ROWS && i + ROWS <= x->m && j + COLUMNS <= x->n &&
      (!x->added || x->added_column == 1)) {
    whole(x, sum, i, j);
    return;
  }
  vector block[ROWS * VECTORS];
  EACH (int row = 0; row < rows; row++)
    EACH (int at = 0; at < VECTORS; at++) block[row * VECTORS + at] = sum[row][at];
  edge(x, (const f32 *)block, i, j);
}

static void tile(const struct operands *x, const u32 *a, const u32 *b, i64 i, i64 j, i64 depth,
                 i64 accumulate) {
  if (x->m - i > 8) rows_of_tile(ROWS, x, a, b, i, j, depth);
  else if (x->m - i > 4) rows_of_tile(8, x, a, b, i, j, depth);
  else rows_of_tile(4, x, a, b, i, j, depth);
}

/* Four rows of four pairs become four columns. */
INLINE void transpose(const u16 *from, i64 from_row, u32 *to, i64 to_row) {
  const four a = *(const four *)from, b = *(const four *)(from + from_row);
  const four c = *(const four *)(from + 2 * from_row), d = *(const four *)(from + 3 * from_row);
  const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *(four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *(four *)(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *(four *)(to + 2 * to_row) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  *(four *)(to + 3 * to_row) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* Pairs up the numbers of two rows. */
INLINE void pair_up(int width, const u16 *first, const u16 *second, u32 *to) {
  int i = 0;
  EACH (; i + LANES <= width; i += LANES) {
    const pairs low = __builtin_convertvector(*(const numbers_anywhere *)(first + i), pairs);
    const pairs high = __builtin_convertvector(*(const numbers_anywhere *)(second + i), pairs);
    *(pairs_anywhere *)(to + i) = low | high << 16;
  }
  EACH (; i + 8 <= width; i += 8) {
    const wide_eight low = __builtin_convertvector(*(const eight *)(first + i), wide_eight);
    const wide_eight high = __builtin_convertvector(*(const eight *)(second + i), wide_eight);
    *(wide_eight_anywhere *)(to + i) = low | high << 16;
  }
  EACH (; i < width; i++) to[i] = first[i] | (u32)second[i] << 16;
}

/* Packs a sliver: `width` numbers, of which `count` are there, for each of `real` terms. The last
   pair of an odd number of terms ends with 0. */
INLINE void pack(int width, i64 count, i64 real, const u16 *from, i64 step, i64 term_step,
                 u32 *to) {
  const i64 whole = real / 2;
  i64 pair = 0;
  if (count == width && step == 1) {
    for (; pair < whole; pair++, from += 2 * term_step, to += width) {
      __builtin_prefetch(from + 16 * term_step);
      __builtin_prefetch(from + 17 * term_step);
      pair_up(width, from, from + term_step, to);
    }
    if (real % 2)
      for (int i = 0; i < width; i++) to[i] = from[i];
    return;
  }
  if (count == width && term_step == 1) {
    for (; pair + 4 <= whole; pair += 4) {
      int i = 0;
      for (; i + 4 <= width; i += 4)
        transpose(from + i * step + 2 * pair, step, to + pair * width + i, width);
      for (; i < width; i++)
        for (int more = 0; more < 4; more++)
          to[(pair + more) * width + i] =
              *(const pair_anywhere *)(from + i * step + 2 * (pair + more));
    }
  }
  for (; 2 * pair < real; pair++) {
    const u16 *pair_from = from + 2 * pair * term_step;
    for (i64 i = 0; i < count; i++) {
      const u32 second = 2 * pair + 1 < real ? pair_from[i * step + term_step] : 0;
      to[pair * width + i] = pair_from[i * step] | second << 16;
    }
    for (i64 i = count; i < width; i++) to[pair * width + i] = 0;
  }
}

INLINE f32 over_lanes(vector x) {
  x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return x[0] + x[1];
}

/* Adds the terms from `term` to `stop` of the sums of `rows` rows of a, of which `real` are there,
   with `count` columns of b; both are contiguous along the terms. A row that is not there is the
   last one again. */
INLINE void dots(int rows, int count, i64 real, const struct operands *x, i64 i, i64 j, i64 term,
                 i64 stop, f32 total[4][4]) {
  vector sum[4][4];
  const u16 *row[4], *column[4];
  EACH (int r = 0; r < rows; r++)
    row[r] = (const u16 *)x->a + (i + smaller(r, real - 1)) * x->a_row;
  EACH (int c = 0; c < count; c++) column[c] = (const u16 *)x->b + (j + c) * x->b_column;
  EACH (int r = 0; r < rows; r++)
    EACH (int c = 0; c < count; c++) sum[r][c] = (vector){0};
  for (; term + PAIRS <= stop; term += PAIRS)
    EACH (int c = 0; c < count; c++) {
      const pairs b = *(const pairs_anywhere *)(column[c] + term);
      EACH (int r = 0; r < rows; r++)
        add_pairs(&sum[r][c], *(const pairs_anywhere *)(row[r] + term), b);
    }
  EACH (int r = 0; r < rows; r++)
    EACH (int c = 0; c < count; c++) {
      f32 more = over_lanes(sum[r][c]);
      for (i64 rest = term; rest < stop; rest++)
        more += widened_one(row[r][rest]) * widened_one(column[c][rest]);
      total[r][c] += more;
    }
}

/* Computes a block of c; lanes sum up no more terms than `CUT` says. */
INLINE void block(int rows, int count, i64 real, const struct operands *x, i64 i, i64 j) {
  f32 total[4][4] = {0};
  for (i64 term = 0; term < x->k; term += CUT * PAIRS)
    dots(rows, count, real, x, i, j, term, smaller(x->k, term + CUT * PAIRS), total);
  u16 *to = (u16 *)x->c + i * x->c_row + j * x->c_column;
  EACH (int r = 0; r < rows; r++)
    EACH (int c = 0; c < count; c++) {
      if (r >= real) break;
      if (x->added) total[r][c] += added_at(x, i + r, j + c);
      to[r * x->c_row + c * x->c_column] = rounded_one(total[r][c]);
    }
}

INLINE int takes_few(const struct operands *x) {
  return x->a_term == 1 && x->b_term == 1 && x->m <= FEW;
}

/* Columns from `start` to `stop` of a product of few rows with b as it lies. */
static void few_rows(const struct operands *x, i64 start, i64 stop) {
  for (i64 j = start, count; j < stop; j += count) {
    count = j + 4 <= stop ? 4 : 1;
    for (i64 i = 0, rows; i < x->m; i += rows) {
      rows = count == 4 ? smaller(4, x->m - i) : 1;
      if (count == 1) block(1, 1, 1, x, i, j);
      else if (rows == 1) block(1, 4, 1, x, i, j);
      else if (rows == 2) block(2, 4, 2, x, i, j);
      else block(4, 4, rows, x, i, j);
    }
  }
}
