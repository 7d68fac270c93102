/* What is particular to products of f32 matrices. */

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 14, VECTORS = 2 };
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 6, VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS = 8, VECTORS = 3 };
#else
enum { LANES = 4, ROWS = 4, VECTORS = 2 };
#endif

enum {
  COLUMNS = LANES * VECTORS,
  DEPTH = 256,                      /* terms of a sum in one pack: a sliver of b stays in L1 */
  TALL = (192 / ROWS) * ROWS,       /* rows of a that stay in L2 */
  WIDE = (256 / COLUMNS) * COLUMNS, /* columns of b that stay in L2 */
  OWN = 1 << 16,                    /* numbers of a pack that stay in L2 */
  SHARED = 1 << 20,                 /* numbers that are packed for all threads at once */
  CUT = 4 * DEPTH,                  /* terms that are added to c itself, where it is not packed */
  FEW = 8, /* rows up to which packing the columns of b does not pay; of its rows half as many */
};

enum { TERMS = 1 }; /* in one number of a pack */

typedef f32 number; /* of a matrix */
typedef f32 packed; /* of a pack */

typedef f32 vector __attribute__((vector_size(4 * LANES)));
typedef f32 anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef f32 four __attribute__((vector_size(16), aligned(4), may_alias));

#define MULTIPLY lynx_multiply_f32
#define WHOLE 0 /* sums wait in c from pack to pack */

/* Computes `rows` rows of a block of c. */
INLINE void micro(int rows, i64 depth, const f32 *restrict a, const f32 *restrict b,
                  f32 *restrict c, i64 c_row, i64 accumulate) {
  vector sum[ROWS][VECTORS];
  EACH (int i = 0; i < rows; i++)
    EACH (int j = 0; j < VECTORS; j++) sum[i][j] = (vector){0};
  for (i64 term = 0; term < depth; term++, a += ROWS, b += COLUMNS) {
    vector row[VECTORS];
    EACH (int j = 0; j < VECTORS; j++) row[j] = *(const vector *)(b + j * LANES);
    EACH (int i = 0; i < rows; i++)
      EACH (int j = 0; j < VECTORS; j++) sum[i][j] += a[i] * row[j];
  }
  EACH (int i = 0; i < rows; i++)
    EACH (int j = 0; j < VECTORS; j++) {
      anywhere *to = (anywhere *)(c + i * c_row + j * LANES);
      if (accumulate) sum[i][j] += *to;
      *to = sum[i][j];
    }
}

static void all_rows(i64 depth, const f32 *a, const f32 *b, f32 *c, i64 c_row, i64 accumulate) {
  micro(ROWS, depth, a, b, c, c_row, accumulate);
}

enum { SOME = 4 }; /* rows; the last ones of a matrix may be few */

static void some_rows(i64 depth, const f32 *a, const f32 *b, f32 *c, i64 c_row, i64 accumulate) {
  micro(SOME, depth, a, b, c, c_row, accumulate);
}

/* The block at the end of rows or columns: more of it is computed than is there. */
static void edge(i64 rows, i64 columns, i64 depth, const f32 *a, const f32 *b, f32 *c, i64 c_row,
                 i64 accumulate) {
  f32 block[ROWS * COLUMNS];
  (rows <= SOME ? some_rows : all_rows)(depth, a, b, block, COLUMNS, 0);
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < columns; j++) {
      f32 *to = c + i * c_row + j;
      *to = accumulate ? *to + block[i * COLUMNS + j] : block[i * COLUMNS + j];
    }
}

/* The block of c at row i and column j, for the terms of these packs. */
static void tile(const struct operands *x, const f32 *a, const f32 *b, i64 i, i64 j, i64 depth,
                 i64 accumulate) {
  f32 *c = (f32 *)x->c + i * x->c_row + j;
  if (i + ROWS <= x->m && j + COLUMNS <= x->n)
    all_rows(depth, a, b, c, x->c_row, accumulate);
  else
    edge(smaller(ROWS, x->m - i), smaller(COLUMNS, x->n - j), depth, a, b, c, x->c_row, accumulate);
}

/* Four rows of four numbers become four columns. */
INLINE void transpose(const f32 *from, i64 from_row, f32 *to, i64 to_row) {
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

/* Packs a sliver: `width` numbers, of which `count` are there, for each of `depth` terms. */
INLINE void pack(int width, i64 count, i64 depth, const f32 *from, i64 step, i64 term_step,
                 f32 *to) {
  if (count == width && step == 1) {
    for (i64 term = 0; term < depth; term++, from += term_step, to += width) {
      int i = 0;
      __builtin_prefetch(from + 16 * term_step);
      EACH (; i + LANES <= width; i += LANES) *(anywhere *)(to + i) = *(const anywhere *)(from + i);
      EACH (; i < width; i++) to[i] = from[i];
    }
    return;
  }
  if (count == width && term_step == 1) {
    i64 term = 0;
    for (; term + 4 <= depth; term += 4) {
      int i = 0;
      for (; i + 4 <= width; i += 4)
        transpose(from + i * step + term, step, to + term * width + i, width);
      for (; i < width; i++)
        for (int more = 0; more < 4; more++)
          to[(term + more) * width + i] = from[i * step + term + more];
    }
    for (; term < depth; term++)
      for (int i = 0; i < width; i++) to[term * width + i] = from[i * step + term];
    return;
  }
  for (i64 term = 0; term < depth; term++) {
    for (i64 i = 0; i < count; i++) to[term * width + i] = from[i * step + term * term_step];
    for (i64 i = count; i < width; i++) to[term * width + i] = 0;
  }
}

INLINE f32 over_lanes(vector x) {
  const union { vector all; four parts[LANES / 4]; } lanes = {x};
  four sum = lanes.parts[0];
  EACH (int at = 1; at < LANES / 4; at++) sum += lanes.parts[at];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* The sums of `rows` rows of a, of which `real` are there, with `count` columns of b; both are
   contiguous along the terms. A row that is not there is the last one again. */
INLINE void dots(int rows, int count, i64 real, i64 k, const f32 *a, i64 a_row, const f32 *b,
                 i64 b_column, f32 *c, i64 c_row, i64 c_column, i64 accumulate) {
  vector sum[4][4];
  const f32 *row[4];
  EACH (int i = 0; i < rows; i++) row[i] = a + smaller(i, real - 1) * a_row;
  EACH (int i = 0; i < rows; i++)
    EACH (int j = 0; j < count; j++) sum[i][j] = (vector){0};
  i64 term = 0;
  for (; term + LANES <= k; term += LANES) {
    EACH (int j = 0; j < count; j++) {
      const vector column = *(const anywhere *)(b + j * b_column + term);
      EACH (int i = 0; i < rows; i++) sum[i][j] += *(const anywhere *)(row[i] + term) * column;
    }
  }
  for (i64 i = 0; i < real; i++)
    for (int j = 0; j < count; j++) {
      f32 total = over_lanes(sum[i][j]);
      for (i64 more = term; more < k; more++) total += a[i * a_row + more] * b[j * b_column + more];
      f32 *to = c + i * c_row + j * c_column;
      *to = accumulate ? *to + total : total;
    }
}

/* Adds products of four terms to a row of c; the rows of b are contiguous. */
INLINE void add_terms(int terms, i64 count, const f32 *a, const f32 *b, i64 b_term, f32 *c) {
  i64 j = 0;
  for (; j + LANES <= count; j += LANES) {
    vector sum = *(anywhere *)(c + j);
    EACH (int term = 0; term < terms; term++)
      sum += a[term] * *(const anywhere *)(b + term * b_term + j);
    *(anywhere *)(c + j) = sum;
  }
  for (; j < count; j++) {
    f32 sum = c[j];
    for (int term = 0; term < terms; term++) sum += a[term] * b[term * b_term + j];
    c[j] = sum;
  }
}

enum { STRIPE = 8192 }; /* columns of c that stay in the cache while all terms are added */

INLINE void clear(f32 *c, i64 count) {
  for (i64 j = 0; j < count; j++) c[j] = 0;
}

/* Adds the products of the terms from `term` to `end` to `count` columns from j on. */
INLINE void add_rows(const struct operands *x, i64 term, i64 end, i64 j, i64 count, f32 *to,
                     i64 to_row) {
  for (i64 terms; term < end; term += terms) {
    const f32 *b = (const f32 *)x->b + term * x->b_term + j;
    terms = term + 4 <= end ? 4 : 1;
    for (i64 i = 0; i < x->m; i++) {
      const f32 *a = (const f32 *)x->a + i * x->a_row + term;
      if (terms == 4) add_terms(4, count, a, b, x->b_term, to + i * to_row);
      else add_terms(1, count, a, b, x->b_term, to + i * to_row);
    }
  }
}

/* Columns from `start` to `stop` of a product of few rows with b as it lies: row by row, ... */
static void few_rows_of_rows(const struct operands *x, i64 start, i64 stop) {
  for (i64 j = start; j < stop; j += STRIPE) {
    const i64 count = smaller(STRIPE, stop - j);
    f32 *const c = (f32 *)x->c + j;
    /* Long sums would lose what they hold: further terms are summed up apart. */
    f32 part[FEW / 2][STRIPE];
    for (i64 first = 0; first < x->k; first += CUT) {
      const int is_part = first > 0 || x->accumulate;
      f32 *const to = is_part ? part[0] : c;
      const i64 to_row = is_part ? STRIPE : x->c_row;
      for (i64 i = 0; i < x->m; i++) clear(to + i * to_row, count);
      add_rows(x, first, smaller(x->k, first + CUT), j, count, to, to_row);
      for (i64 i = 0; is_part && i < x->m; i++)
        for (i64 column = 0; column < count; column++) c[i * x->c_row + column] += part[i][column];
    }
  }
}

/* ... or column by column, for `k` terms. */
static __attribute__((noinline)) void add_columns(const struct operands *x, i64 start, i64 stop,
                                                  i64 k, i64 accumulate) {
  for (i64 j = start, count; j < stop; j += count) {
    const f32 *b = (const f32 *)x->b + j * x->b_column;
    count = j + 4 <= stop ? 4 : 1;
    for (i64 i = 0, rows; i < x->m; i += rows) {
      const f32 *a = (const f32 *)x->a + i * x->a_row;
      f32 *c = (f32 *)x->c + i * x->c_row + j * x->c_column;
      rows = count == 4 ? smaller(4, x->m - i) : 1;
#define DOTS(R, N, J)                                                                      \
  dots(R, N, rows, k, a, x->a_row, b + (J)*x->b_column, x->b_column, c + (J)*x->c_column, \
       x->c_row, x->c_column, accumulate)
      if (count == 1) DOTS(1, 1, 0);
      else if (rows == 1) DOTS(1, 4, 0);
      else if (rows == 2) DOTS(2, 4, 0);
      else
        /* More sums than these do not fit into the registers. */
        for (int half = 0; half < 4; half += 2) DOTS(4, 2, half);
    }
  }
}

/* Lanes sum up no more terms than packs have. */
static void few_rows_of_columns(const struct operands *x, i64 start, i64 stop) {
  struct operands y = *x;
  for (i64 first = 0; first < x->k; first += DEPTH * LANES) {
    y.a = (const f32 *)x->a + first;
    y.b = (const f32 *)x->b + first;
    add_columns(&y, start, stop, smaller(DEPTH * LANES, x->k - first), x->accumulate || first > 0);
  }
}

INLINE int takes_few(const struct operands *x) {
  return x->a_term == 1 && ((x->b_term == 1 && x->m <= FEW) ||
                            (x->b_column == 1 && x->c_column == 1 && x->m <= FEW / 2));
}

static void few_rows(const struct operands *x, i64 start, i64 stop) {
  (x->b_term == 1 ? few_rows_of_columns : few_rows_of_rows)(x, start, stop);
}
