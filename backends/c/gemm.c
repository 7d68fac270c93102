/* Products of f32 matrices, for processors on which the library does not use what they can do.

   The layers are those of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication,
   2008, section 4) and of BLIS: a micro-kernel keeps a block of the result in registers and reads
   both operands from packs, in which what it needs next is contiguous. The smaller operand is
   packed once by all threads; then each thread takes chunks of the larger one, packs them for
   itself, and multiplies. Threads so meet once, and each number of the result is summed up in the
   same order whatever their count. */

struct work {
  const struct operands *x;
  i64 threads;
  packed *shared, *own;
  i64 terms;                 /* numbers of a pack that a row or column fills */
  i64 own_size;              /* numbers that each thread has for itself */
  int shares_a;              /* whether a is packed for all, and b by each for itself, or not */
  i64 depth, span;           /* terms of a pack; terms that are packed for all at once */
  i64 chunk, chunks;         /* columns of b, or rows of a, that are multiplied at once */
  i64 large;                 /* chunks of that size; the others are a sliver each */
  i64 taken, to_pack, to_do; /* the next thread, pack and chunk */
};

/* The threads are those of torch. */
static void (*fork_threads)(void (*)(void *), void *, unsigned, unsigned);
static void (*barrier)(void);

__attribute__((visibility("default"))) void lynx_bind(void *const *functions) {
  fork_threads = (void (*)(void (*)(void *), void *, unsigned, unsigned))functions[0];
  barrier = (void (*)(void))functions[1];
}

static void pack_a(const struct operands *x, i64 row, i64 term, i64 depth, packed *to) {
  pack(ROWS, smaller(ROWS, x->m - row), smaller(depth * TERMS, x->k - term * TERMS),
       (const number *)x->a + row * x->a_row + term * TERMS * x->a_term, x->a_row, x->a_term, to);
}

static void pack_b(const struct operands *x, i64 column, i64 term, i64 depth, packed *to) {
  pack(COLUMNS, smaller(COLUMNS, x->n - column), smaller(depth * TERMS, x->k - term * TERMS),
       (const number *)x->b + column * x->b_column + term * TERMS * x->b_term, x->b_column,
       x->b_term, to);
}

/* Multiplies packed rows from `row` to `row_end` by packed columns. */
static void multiply(const struct operands *x, const packed *a, const packed *b, i64 row,
                     i64 row_end, i64 column, i64 column_end, i64 depth, i64 accumulate) {
  for (i64 j = column; j < column_end; j += COLUMNS, b += COLUMNS * depth) {
    const packed *rows = a;
    for (i64 i = row; i < row_end; i += ROWS, rows += ROWS * depth)
      tile(x, rows, b, i, j, depth, accumulate);
  }
}

/* Packs one chunk of the larger operand and multiplies it by all of the smaller one, for the terms
   from `first` to `end`. */
static void do_chunk(const struct work *w, i64 at, i64 first, i64 end, packed *own) {
  const struct operands *x = w->x;
  const i64 width = w->shares_a ? ROWS : COLUMNS;
  const i64 padded = pieces(w->shares_a ? x->m : x->n, width) * width;
  /* What is left when all threads have done as many large chunks is done in small ones. */
  const i64 own_width = w->shares_a ? COLUMNS : ROWS, small = larger(0, at - w->large);
  const i64 start = smaller(at, w->large) * w->chunk + small * own_width;
  const i64 end_of_chunk = start + (at < w->large ? w->chunk : own_width);
  const i64 stop = smaller(w->shares_a ? x->n : x->m, end_of_chunk);
  for (i64 term = first; term < end; term += w->depth) {
    const i64 depth = smaller(w->depth, end - term);
    const packed *shared = w->shared + (term - first) * padded;
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

static void meet(const struct work *w) {
  if (w->threads > 1) barrier();
}

static void member(void *argument) {
  struct work *w = argument;
  const struct operands *x = w->x;
  packed *own = w->own + take(&w->taken) * w->own_size;
  const i64 width = w->shares_a ? ROWS : COLUMNS;
  const i64 slivers = pieces(w->shares_a ? x->m : x->n, width);
  i64 pack_at = take(&w->to_pack), chunk_at = take(&w->to_do);
  /* Tickets count on from span to span, so that nobody needs to set them back. */
  i64 packs_before = 0, chunks_before = 0;
  for (i64 first = 0; first < w->terms; first += w->span) {
    const i64 end = smaller(w->terms, first + w->span);
    const i64 packs = pieces(end - first, w->depth) * slivers;
    if (first > 0) meet(w);
    for (; pack_at < packs_before + packs; pack_at = take(&w->to_pack)) {
      const i64 term = first + (pack_at - packs_before) / slivers * w->depth;
      const i64 depth = smaller(w->depth, end - term), sliver = (pack_at - packs_before) % slivers;
      packed *to = w->shared + ((term - first) * slivers + sliver * depth) * width;
      (w->shares_a ? pack_a : pack_b)(x, sliver * width, term, depth, to);
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

static packed *borrow(i64 numbers) {
  const i64 bytes = (numbers * 4 + 127) & ~63LL;
  struct memory *found = __atomic_exchange_n(&kept, (struct memory *)0, __ATOMIC_ACQUIRE);
  if (!found || found->bytes < bytes) {
    free(found);
    found = aligned_alloc(64, (unsigned long)(bytes + 64));
    if (!found) return 0;
    found->bytes = bytes;
  }
  return (packed *)(found + 1);
}

static void give_back(packed *memory) {
  free(__atomic_exchange_n(&kept, (struct memory *)memory - 1, __ATOMIC_RELEASE));
}

struct few { const struct operands *x; i64 chunk, chunks, next; };

static void few_member(void *argument) {
  struct few *w = argument;
  for (i64 at; (at = take(&w->next)) < w->chunks;)
    few_rows(w->x, at * w->chunk, smaller(w->x->n, (at + 1) * w->chunk));
}

INLINE struct operands swapped(const struct operands *x) {
  return (struct operands){
      .m = x->n, .n = x->m, .k = x->k, .a = x->b, .b = x->a, .c = x->c,
      .a_row = x->b_column, .a_term = x->b_term, .b_column = x->a_row, .b_term = x->a_term,
      .c_row = x->c_column, .c_column = x->c_row, .accumulate = x->accumulate,
      .added = x->added, .added_row = x->added_column, .added_column = x->added_row};
}

/* Long rows are read as they come; of columns a few at a time. */
static void multiply_few(const struct operands *x, i64 threads) {
  const int by_columns = x->b_term == 1;
  const i64 share = x->n / (by_columns ? 4 * threads : threads);
  const i64 most = by_columns ? (1 << 18) / x->k : share;
  const i64 chunk = (larger(1, smaller(share, most)) + 63) & ~63LL;
  struct few w = {x, chunk, pieces(x->n, chunk), 0};
  if (threads > 1)
    fork_threads(few_member, &w, (unsigned)threads, 0);
  else
    few_member(&w);
}

/* Returns whether there was memory for the packs. */
static int multiply_packs(const struct operands *x, i64 threads) {
  struct work w = {.x = x, .threads = threads, .shares_a = x->m <= x->n};
  const i64 width = w.shares_a ? COLUMNS : ROWS, size = w.shares_a ? x->n : x->m;
  const i64 other = w.shares_a ? ROWS : COLUMNS;
  const i64 padded = pieces(w.shares_a ? x->m : x->n, other) * other;
  /* Packs of equal depth, a multiple of four; as many of them as the shared memory takes. */
  w.terms = pieces(x->k, TERMS);
  w.depth = ((WHOLE ? w.terms : pieces(w.terms, pieces(w.terms, DEPTH))) + 3) & ~3LL;
  w.span = larger(1, smaller(pieces(w.terms, w.depth), SHARED / (padded * w.depth))) * w.depth;
  /* Chunks for several turns of each thread: one may be slower than the others. */
  const i64 slivers = pieces(size, width);
  const i64 most = larger(1, smaller(w.shares_a ? WIDE : TALL, OWN / w.depth) / width);
  i64 chunks = pieces(slivers, most);
  if (threads > 1) chunks = larger(chunks, smaller(4 * threads, pieces(slivers * width, 64)));
  const i64 count = pieces(slivers, pieces(chunks, threads) * threads);
  w.chunk = count * width;
  w.large = slivers / (count * threads) * threads;
  w.chunks = w.large + slivers - w.large * count;
  w.own_size = (w.chunk * w.depth + 15) & ~15LL;
  const i64 shared = (padded * smaller(w.span, (w.terms + 3) & ~3LL) + 15) & ~15LL;
  packed *memory = borrow(shared + threads * w.own_size);
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

/* The rows of a, or the columns of b where these are fewer, from `first` on. */
static struct operands part(const struct operands *x, i64 first, i64 count) {
  struct operands y = *x;
  const number *added = x->added;
  if (x->m <= x->n) {
    y.m = count;
    y.a = (const number *)x->a + first * x->a_row;
    y.c = (number *)x->c + first * x->c_row;
    y.added = added ? added + first * x->added_row : 0;
  } else {
    y.n = count;
    y.b = (const number *)x->b + first * x->b_column;
    y.c = (number *)x->c + first * x->c_column;
    y.added = added ? added + first * x->added_column : 0;
  }
  return y;
}

/* Multiplies with as many threads as that; returns 0 where another shall do it: there is nothing to
   sum up, or no memory for packs. */
__attribute__((visibility("default")))
int MULTIPLY(const struct operands *given, i64 threads) {
  struct operands x = *given;
  if (x.k <= 0) return 0;
  if (x.n <= FEW && x.m > x.n) x = swapped(&x);
  if (takes_few(&x)) {
    multiply_few(&x, threads);
    return 1;
  }
  if (x.c_column != 1) x = swapped(&x);
  if (x.c_column != 1) return 0;
  if (!WHOLE) return multiply_packs(&x, threads);
  /* Sums are not cut, so the operand is that all threads share. */
  const i64 size = smaller(x.m, x.n), unit = x.m <= x.n ? ROWS : COLUMNS;
  const i64 count = larger(1, SHARED / pieces(x.k, TERMS) / unit) * unit;
  for (i64 first = 0; first < size; first += count) {
    const struct operands y = part(&x, first, smaller(count, size - first));
    if (!multiply_packs(&y, threads)) return 0;
  }
  return 1;
}
