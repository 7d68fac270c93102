/* Products of f32 matrices, for processors on which the library does not use what they can do.

   The layers are those of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication,
   2008, section 4) and of BLIS: a micro-kernel keeps a block of the result in registers and reads
   both operands from packs, in which what it needs next is contiguous. The smaller operand is
   packed once by all threads; then each thread takes chunks of the larger one, packs them for
   itself, and multiplies. Threads so meet once, and each number of the result is summed up in the
   same order whatever their count. */

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
  SHARED = 1 << 20,                 /* numbers that are packed for all threads at once */
  FEW = 8, /* rows up to which packing the columns of b does not pay; of its rows half as many */
};

typedef long long i64;
typedef float f32;
typedef f32 vector __attribute__((vector_size(4 * LANES)));
typedef f32 anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef f32 four __attribute__((vector_size(16), aligned(4), may_alias));

#define EACH _Pragma("GCC unroll 16") for
#define INLINE static inline __attribute__((always_inline))

void *aligned_alloc(unsigned long, unsigned long);
void free(void *);

INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 larger(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 pieces(i64 size, i64 piece) { return (size + piece - 1) / piece; }
INLINE i64 take(i64 *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

/* c = a b, or c += a b: a is m by k, b is k by n. Strides are in numbers; one of c is 1. */
struct operands {
  i64 m, n, k;
  const f32 *a, *b;
  f32 *c;
  i64 a_row, a_term, b_column, b_term, c_row, c_column;
  i64 accumulate;
};

struct work {
  const struct operands *x;
  i64 threads;
  f32 *shared, *own;
  i64 own_size;              /* numbers that each thread has for itself */
  int shares_a;              /* whether a is packed for all, and b by each for itself, or not */
  i64 depth, span;           /* terms of a pack; terms that are packed for all at once */
  i64 chunk, chunks;         /* columns of b, or rows of a, that are multiplied at once */
  i64 taken, to_pack, to_do; /* the next thread, pack and chunk */
};

/* The threads are those of torch. */
static void (*fork_threads)(void (*)(void *), void *, unsigned, unsigned);
static void (*barrier)(void);

__attribute__((visibility("default"))) void lynx_bind(void *const *functions) {
  fork_threads = (void (*)(void (*)(void *), void *, unsigned, unsigned))functions[0];
  barrier = (void (*)(void))functions[1];
}

static void micro(i64 depth, const f32 *restrict a, const f32 *restrict b, f32 *restrict c,
                  i64 c_row, i64 accumulate) {
  vector sum[ROWS][VECTORS];
  EACH (int i = 0; i < ROWS; i++)
    EACH (int j = 0; j < VECTORS; j++) sum[i][j] = (vector){0};
  for (i64 term = 0; term < depth; term++, a += ROWS, b += COLUMNS) {
    vector row[VECTORS];
    EACH (int j = 0; j < VECTORS; j++) row[j] = *(const vector *)(b + j * LANES);
    EACH (int i = 0; i < ROWS; i++)
      EACH (int j = 0; j < VECTORS; j++) sum[i][j] += a[i] * row[j];
  }
  EACH (int i = 0; i < ROWS; i++)
    EACH (int j = 0; j < VECTORS; j++) {
      anywhere *to = (anywhere *)(c + i * c_row + j * LANES);
      if (accumulate) sum[i][j] += *to;
      *to = sum[i][j];
    }
}

/* The block at the end of rows or columns: it is computed as a whole, and copied in part. */
static void edge(i64 rows, i64 columns, i64 depth, const f32 *a, const f32 *b, f32 *c, i64 c_row,
                 i64 accumulate) {
  f32 block[ROWS * COLUMNS];
  micro(depth, a, b, block, COLUMNS, 0);
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < columns; j++) {
      f32 *to = c + i * c_row + j;
      *to = accumulate ? *to + block[i * COLUMNS + j] : block[i * COLUMNS + j];
    }
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

static void pack_a(const struct operands *x, i64 row, i64 term, i64 depth, f32 *to) {
  pack(ROWS, smaller(ROWS, x->m - row), depth, x->a + row * x->a_row + term * x->a_term, x->a_row,
       x->a_term, to);
}

static void pack_b(const struct operands *x, i64 column, i64 term, i64 depth, f32 *to) {
  pack(COLUMNS, smaller(COLUMNS, x->n - column), depth,
       x->b + column * x->b_column + term * x->b_term, x->b_column, x->b_term, to);
}

/* Multiplies packed rows from `row` to `row_end` by packed columns. */
static void multiply(const struct operands *x, const f32 *a, const f32 *b, i64 row, i64 row_end,
                     i64 column, i64 column_end, i64 depth, i64 accumulate) {
  for (i64 j = column; j < column_end; j += COLUMNS, b += COLUMNS * depth) {
    const f32 *rows = a;
    for (i64 i = row; i < row_end; i += ROWS, rows += ROWS * depth) {
      f32 *c = x->c + i * x->c_row + j;
      if (i + ROWS <= x->m && j + COLUMNS <= x->n)
        micro(depth, rows, b, c, x->c_row, accumulate);
      else
        edge(smaller(ROWS, x->m - i), smaller(COLUMNS, x->n - j), depth, rows, b, c, x->c_row,
             accumulate);
    }
  }
}

/* Packs one chunk of the larger operand and multiplies it by all of the smaller one, for the terms
   from `first` to `end`. */
static void do_chunk(const struct work *w, i64 at, i64 first, i64 end, f32 *own) {
  const struct operands *x = w->x;
  const i64 width = w->shares_a ? ROWS : COLUMNS;
  const i64 padded = pieces(w->shares_a ? x->m : x->n, width) * width;
  const i64 start = at * w->chunk, stop = smaller(w->shares_a ? x->n : x->m, start + w->chunk);
  for (i64 term = first; term < end; term += w->depth) {
    const i64 depth = smaller(w->depth, end - term);
    const f32 *shared = w->shared + (term - first) * padded;
    const i64 accumulate = x->accumulate || term > 0;
    if (w->shares_a) {
      for (i64 j = start; j < stop; j += COLUMNS) pack_b(x, j, term, depth, own + (j - start) * depth);
      for (i64 i = 0; i < x->m; i += TALL)
        multiply(x, shared + i * depth, own, i, smaller(x->m, i + TALL), start, stop, depth,
                 accumulate);
    } else {
      for (i64 i = start; i < stop; i += ROWS) pack_a(x, i, term, depth, own + (i - start) * depth);
      multiply(x, own, shared, start, stop, 0, x->n, depth, accumulate);
    }
  }
}

enum { GROUP = 8 }; /* slivers that a thread packs at once */

static void meet(const struct work *w) {
  if (w->threads > 1) barrier();
}

static void member(void *argument) {
  struct work *w = argument;
  const struct operands *x = w->x;
  f32 *own = w->own + take(&w->taken) * w->own_size;
  const i64 width = w->shares_a ? ROWS : COLUMNS;
  const i64 slivers = pieces(w->shares_a ? x->m : x->n, width), groups = pieces(slivers, GROUP);
  i64 pack_at = take(&w->to_pack), chunk_at = take(&w->to_do);
  /* Tickets count on from span to span, so that nobody needs to set them back. */
  i64 packs_before = 0, chunks_before = 0;
  for (i64 first = 0; first < x->k; first += w->span) {
    const i64 end = smaller(x->k, first + w->span);
    const i64 packs = pieces(end - first, w->depth) * groups;
    if (first > 0) meet(w);
    for (; pack_at < packs_before + packs; pack_at = take(&w->to_pack)) {
      const i64 term = first + (pack_at - packs_before) / groups * w->depth;
      const i64 depth = smaller(w->depth, end - term);
      const i64 from = (pack_at - packs_before) % groups * GROUP;
      f32 *to = w->shared + (term - first) * slivers * width;
      for (i64 sliver = from; sliver < smaller(slivers, from + GROUP); sliver++)
        (w->shares_a ? pack_a : pack_b)(x, sliver * width, term, depth, to + sliver * width * depth);
    }
    packs_before += packs;
    meet(w);
    for (; chunk_at < chunks_before + w->chunks; chunk_at = take(&w->to_do))
      do_chunk(w, chunk_at - chunks_before, first, end, own);
    chunks_before += w->chunks;
  }
}

/* Memory for packs is kept from call to call; who finds it taken gets new one. */
struct memory { i64 bytes; i64 pad[7]; };
static struct memory *kept;

static f32 *borrow(i64 numbers) {
  const i64 bytes = (numbers * 4 + 127) & ~63LL;
  struct memory *found = __atomic_exchange_n(&kept, (struct memory *)0, __ATOMIC_ACQUIRE);
  if (!found || found->bytes < bytes) {
    free(found);
    found = aligned_alloc(64, (unsigned long)(bytes + 64));
    if (!found) return 0;
    found->bytes = bytes;
  }
  return (f32 *)(found + 1);
}

static void give_back(f32 *memory) {
  free(__atomic_exchange_n(&kept, (struct memory *)memory - 1, __ATOMIC_RELEASE));
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
      f32 total = 0;
      for (int lane = 0; lane < LANES; lane++) total += sum[i][j][lane];
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

/* Columns from `start` to `stop` of a product of few rows with b as it lies: row by row, ... */
static void few_rows_of_rows(const struct operands *x, i64 start, i64 stop) {
  for (i64 j = start; j < stop; j += STRIPE) {
    const i64 count = smaller(STRIPE, stop - j);
    if (!x->accumulate)
      for (i64 i = 0; i < x->m; i++)
        for (i64 column = 0; column < count; column++) x->c[i * x->c_row + j + column] = 0;
    for (i64 term = 0, terms; term < x->k; term += terms) {
      const f32 *b = x->b + term * x->b_term + j;
      terms = term + 4 <= x->k ? 4 : 1;
      for (i64 i = 0; i < x->m; i++) {
        const f32 *a = x->a + i * x->a_row + term;
        f32 *c = x->c + i * x->c_row + j;
        if (terms == 4) add_terms(4, count, a, b, x->b_term, c);
        else add_terms(1, count, a, b, x->b_term, c);
      }
    }
  }
}

/* ... or column by column. */
static void few_rows_of_columns(const struct operands *x, i64 start, i64 stop) {
  for (i64 j = start, count; j < stop; j += count) {
    const f32 *b = x->b + j * x->b_column;
    count = j + 4 <= stop ? 4 : 1;
    for (i64 i = 0, rows; i < x->m; i += rows) {
      const f32 *a = x->a + i * x->a_row;
      f32 *c = x->c + i * x->c_row + j * x->c_column;
      rows = count == 4 ? smaller(4, x->m - i) : 1;
#define DOTS(R, N, J)                                                                      \
  dots(R, N, rows, x->k, a, x->a_row, b + (J)*x->b_column, x->b_column, c + (J)*x->c_column, \
       x->c_row, x->c_column, x->accumulate)
      if (count == 1) DOTS(1, 1, 0);
      else if (rows == 1) DOTS(1, 4, 0);
      else if (rows == 2) DOTS(2, 4, 0);
      else
        /* More sums than these do not fit into the registers. */
        for (int half = 0; half < 4; half += 2) DOTS(4, 2, half);
    }
  }
}

struct few { const struct operands *x; i64 chunk, chunks, next; };

static void few_member(void *argument) {
  struct few *w = argument;
  void (*const run)(const struct operands *, i64, i64) =
      w->x->b_term == 1 ? few_rows_of_columns : few_rows_of_rows;
  for (i64 at; (at = take(&w->next)) < w->chunks;)
    run(w->x, at * w->chunk, smaller(w->x->n, (at + 1) * w->chunk));
}

INLINE struct operands swapped(const struct operands *x) {
  return (struct operands){
      .m = x->n, .n = x->m, .k = x->k, .a = x->b, .b = x->a, .c = x->c,
      .a_row = x->b_column, .a_term = x->b_term, .b_column = x->a_row, .b_term = x->a_term,
      .c_row = x->c_column, .c_column = x->c_row, .accumulate = x->accumulate};
}

/* Multiplies with as many threads as that; returns 0 where the library shall do it: there is
   nothing to sum up, or no memory for packs. */
__attribute__((visibility("default")))
int lynx_multiply_f32(const struct operands *given, i64 threads) {
  struct operands x = *given;
  if (x.k <= 0) return 0;
  if (x.n <= FEW && x.m > x.n) x = swapped(&x);
  const int by_columns = x.b_term == 1, by_rows = x.b_column == 1 && x.c_column == 1;
  if (x.a_term == 1 && ((by_columns && x.m <= FEW) || (by_rows && x.m <= FEW / 2))) {
    /* Long rows are read as they come; of columns a few at a time. */
    const i64 share = x.n / (by_columns ? 4 * threads : threads);
    const i64 most = by_columns ? (1 << 18) / x.k : share;
    const i64 chunk = (larger(1, smaller(share, most)) + 63) & ~63LL;
    struct few w = {&x, chunk, pieces(x.n, chunk), 0};
    if (threads > 1)
      fork_threads(few_member, &w, (unsigned)threads, 0);
    else
      few_member(&w);
    return 1;
  }
  if (x.c_column != 1) x = swapped(&x);
  if (x.c_column != 1) return 0;
  struct work w = {.x = &x, .threads = threads, .shares_a = x.m <= x.n};
  const i64 width = w.shares_a ? COLUMNS : ROWS, size = w.shares_a ? x.n : x.m;
  const i64 slivers = pieces(size, width), most = (w.shares_a ? WIDE : TALL) / width;
  const i64 other = w.shares_a ? ROWS : COLUMNS;
  const i64 padded = pieces(w.shares_a ? x.m : x.n, other) * other;
  /* Packs of equal depth, a multiple of four; as many of them as the shared memory takes. */
  w.depth = (pieces(x.k, pieces(x.k, DEPTH)) + 3) & ~3LL;
  w.span = larger(1, smaller(pieces(x.k, w.depth), SHARED / (padded * w.depth))) * w.depth;
  /* Chunks for several turns of each thread: one may be slower than the others. */
  i64 chunks = pieces(slivers, most);
  if (threads > 1) chunks = larger(chunks, smaller(4 * threads, pieces(slivers * width, 64)));
  chunks = pieces(chunks, threads) * threads;
  w.chunk = pieces(slivers, chunks) * width;
  w.chunks = pieces(size, w.chunk);
  w.own_size = (w.chunk * w.depth + 15) & ~15LL;
  const i64 shared = (padded * smaller(w.span, (x.k + 3) & ~3LL) + 15) & ~15LL;
  f32 *memory = borrow(shared + threads * w.own_size);
  if (!memory) return 0;
  w.shared = memory;
  w.own = memory + shared;
  if (threads > 1)
    fork_threads(member, &w, (unsigned)threads, 0);
  else
    member(&w);
  give_back(memory);
  return 1;
}
