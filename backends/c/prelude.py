"""The C text of every generated file that is always the same: types, and the running of steps."""

from __future__ import annotations

TYPES = """\
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef _Bool truth;
#define INLINE static inline __attribute__((always_inline, unused))

INLINE u32 lynx_bits_f32(f32 x) { u32 u; __builtin_memcpy(&u, &x, 4); return u; }
INLINE f32 lynx_make_f32(u32 u) { f32 x; __builtin_memcpy(&x, &u, 4); return x; }
INLINE u64 lynx_bits_f64(f64 x) { u64 u; __builtin_memcpy(&u, &x, 8); return u; }
INLINE f64 lynx_make_f64(u64 u) { f64 x; __builtin_memcpy(&x, &u, 8); return x; }
#if defined(__FMA__) || defined(__aarch64__)
INLINE f32 lynx_fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
INLINE f64 lynx_fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
INLINE f32 lynx_fma_f32(f32 a, f32 b, f32 c) { return a * b + c; }
INLINE f64 lynx_fma_f64(f64 a, f64 b, f64 c) { return a * b + c; }
#endif
/* 1, of which the compiler knows nothing */
#if defined(__x86_64__)
#define HIDE(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define HIDE(x) __asm__("" : "+w"(x))
#else
#define HIDE(x) __asm__("" : "+m"(x))
#endif
INLINE f32 lynx_one_f32(void) { f32 x = 1; HIDE(x); return x; }
INLINE f64 lynx_one_f64(void) { f64 x = 1; HIDE(x); return x; }
/* What is noted of each number beside the largest (or smallest) one: whether it is NaN. Reductions
   of clang begin with the largest finite number, so there it is noted too whether any is better
   than an infinity. */
#ifdef __clang__
#define SEEN(x, better, neutral) (((x) != (x)) | (((x) better (neutral)) << 1))
#define FOUND(seen, x, nan, neutral) ((seen)&1 ? (nan) : (seen)&2 ? (x) : (neutral))
#else
#define SEEN(x, better, neutral) ((x) != (x))
#define FOUND(seen, x, nan, neutral) ((seen) ? (nan) : (x))
#endif
INLINE i64 lynx_min(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 lynx_max(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 lynx_floor_mod(i64 a, i64 b) {
  i64 r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
INLINE i64 lynx_floor_div(i64 a, i64 b) { return (a - lynx_floor_mod(a, b)) / b; }
"""

STEP = """\
/* One loop nest to run: `chunks` pieces of `grain` units of work, in any order, by any thread. */
struct step {
  void (*run)(const struct step *step, i64 chunk, char *local);
  void *const *p;
  const i64 *z;
  i64 chunks, grain, units, work, local;
  i64 *failed;
  int barrier;
  i64 next __attribute__((aligned(64)));
};

INLINE void lynx_fail(const struct step *step, i64 code) {
  i64 old = __atomic_load_n(step->failed, __ATOMIC_RELAXED);
  while ((old == 0 || code < old) &&
         !__atomic_compare_exchange_n(step->failed, &old, code, 0, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}
"""

RUNTIME = """\
void *malloc(unsigned long);
void free(void *);

typedef void gemm(const char *, const char *, const i32 *, const i32 *, const i32 *, const void *,
                  const void *, const i32 *, const void *, const i32 *, const void *, void *,
                  const i32 *);
static gemm *lynx_sgemm, *lynx_dgemm;
struct operands;
/* Our own products, null where that of the library is used; they return whether it was done. */
typedef int multiply(const struct operands *, i64 threads);
static multiply *lynx_multiply_f32, *lynx_multiply_bf16;

/* Segments only fill tables; optimizing that takes as long as compiling the kernels. */
#ifdef __clang__
#define ENTRY __attribute__((visibility("default"), cold, noinline, optnone))
#else
#define ENTRY __attribute__((visibility("default"), cold, noinline, optimize("O0")))
#endif

/* Work that is worth a second thread, in picoseconds on one. */
#define PARALLEL_WORK 40000000LL

/* Cuts the units into chunks by their sizes alone, so that sums do not depend on threads. */
__attribute__((noinline, unused)) static
void lynx_cut(struct step *step, i64 units, i64 points, i64 limit, i64 cost) {
  const i64 wanted = lynx_max(1, 12000000 / lynx_max(1, cost * lynx_max(1, points)));
  i64 grain = wanted;
  if (limit > 0) grain = lynx_max(grain, (units + limit - 1) / limit);
  step->units = units;
  step->grain = grain;
  step->chunks = units > 0 ? (units + grain - 1) / grain : 0;
  step->work = units * lynx_max(1, points) * cost;
  step->next = 0;
}

/* Scratch memory is kept from call to call; who finds it taken by another thread gets new one. */
struct scratch { i64 bytes; i64 pad[7]; };
static struct scratch *lynx_kept;

__attribute__((noinline, unused)) static char *lynx_take(i64 bytes) {
  struct scratch *found = __atomic_exchange_n(&lynx_kept, (struct scratch *)0, __ATOMIC_ACQUIRE);
  if (found && found->bytes >= bytes) return (char *)(found + 1);
  free(found);
  found = malloc((unsigned long)(bytes + (i64)sizeof *found));
  if (!found) return 0;
  found->bytes = bytes;
  return (char *)(found + 1);
}

__attribute__((noinline, unused)) static void lynx_give(char *memory) {
  if (!memory) return;
  free(__atomic_exchange_n(&lynx_kept, (struct scratch *)memory - 1, __ATOMIC_RELEASE));
}

/* The thread pool is that of torch: its functions are bound when the library is loaded. */
static void (*lynx_fork)(void (*)(void *), void *, unsigned, unsigned);
static void (*lynx_barrier)(void);
static int (*lynx_max_threads)(void);
static int (*lynx_in_parallel)(void);

INLINE int lynx_threads(void) {
  return !lynx_fork || lynx_in_parallel() ? 1 : lynx_max_threads();
}

struct team { struct step *steps; i64 count, bytes, taken; char *memory; };

static void lynx_member(void *argument) {
  struct team *team = argument;
  const i64 me = __atomic_fetch_add(&team->taken, 1, __ATOMIC_RELAXED);
  char *local = team->memory + me * team->bytes;
  for (i64 k = 0; k < team->count; ++k) {
    struct step *step = &team->steps[k];
    if (step->barrier) lynx_barrier();
    for (;;) {
      const i64 chunk = __atomic_fetch_add(&step->next, 1, __ATOMIC_RELAXED);
      if (chunk >= step->chunks) break;
      step->run(step, chunk, local);
    }
  }
}

__attribute__((noinline, unused)) static void lynx_run(struct step *steps, i64 count, char *local) {
  struct team team = {steps, count, 0, 0, local};
  i64 work = 0, most = 0;
  for (i64 k = 0; k < count; ++k) {
    work += steps[k].work;
    team.bytes = lynx_max(team.bytes, steps[k].local);
    most = lynx_max(most, steps[k].chunks);
  }
  int threads = work < PARALLEL_WORK || most < 2 ? 1 : lynx_threads();
  team.bytes = (team.bytes + 127) & ~127LL;
  char *memory = threads > 1 && team.bytes ? malloc((unsigned long)(team.bytes * threads)) : 0;
  if (team.bytes && !memory) threads = 1;
  if (threads > 1) {
    team.memory = memory;
    lynx_fork(lynx_member, &team, (unsigned)threads, 0);
    free(memory);
    return;
  }
  for (i64 k = 0; k < count; ++k)
    for (i64 chunk = 0; chunk < steps[k].chunks; ++chunk) steps[k].run(&steps[k], chunk, local);
}

__attribute__((visibility("default"))) void lynx_bind(void *const *functions) {
  lynx_fork = (void (*)(void (*)(void *), void *, unsigned, unsigned))functions[0];
  lynx_barrier = (void (*)(void))functions[1];
  lynx_max_threads = (int (*)(void))functions[2];
  lynx_in_parallel = (int (*)(void))functions[3];
  lynx_sgemm = (gemm *)functions[4];
  lynx_dgemm = (gemm *)functions[5];
  lynx_multiply_f32 = (multiply *)functions[6];
  lynx_multiply_bf16 = (multiply *)functions[7];
}
"""

PRODUCTS = """\
/* A batch of products of row-major matrices, or of transposed ones: strides are in numbers. */
struct product {
  i64 size;
  const char *a, *b;
  char *c;
  i64 m, n, k;
  i64 a_row, a_term, b_column, b_term, c_row, c_column;
  i64 accumulate;
  i64 batch, a_step, b_step, c_step;
  i64 outer, a_far, b_far, c_far;
  i64 next;
  const char *added; /* to each number before it is rounded, if this is not null */
  i64 added_row, added_column, added_step, added_far;
};

/* What our own products are given. */
struct operands {
  i64 m, n, k;
  const char *a, *b;
  char *c;
  i64 a_row, a_term, b_column, b_term, c_row, c_column, accumulate;
  const char *added;
  i64 added_row, added_column;
};

/* A matrix as Fortran sees it, whose columns are contiguous: whether it is transposed, and the
   distance of columns. Where both strides are 1 one size is 1, and either will do. */
INLINE i32 lynx_leading(i64 row, i64 column, i64 rows, i64 columns, char *transposed) {
  const int is_columns = row == 1 && (column != 1 || columns == 1);
  *transposed = is_columns ? 'N' : 'T';
  return (i32)lynx_max(is_columns ? column : row, lynx_max(1, is_columns ? rows : columns));
}

static void lynx_by_library(const struct operands *x, i64 size) {
  const f32 one_f32 = 1, beta_f32 = (f32)x->accumulate;
  const f64 one_f64 = 1, beta_f64 = (f64)x->accumulate;
  const void *one = size == 4 ? (const void *)&one_f32 : &one_f64;
  const void *beta = size == 4 ? (const void *)&beta_f32 : &beta_f64;
  char ta, tb, tc;
  const i32 lda = lynx_leading(x->a_row, x->a_term, x->m, x->k, &ta);
  const i32 ldb = lynx_leading(x->b_term, x->b_column, x->k, x->n, &tb);
  const i32 ldc = lynx_leading(x->c_row, x->c_column, x->m, x->n, &tc);
  const i32 m = (i32)x->m, n = (i32)x->n, k = (i32)x->k;
  gemm *const run = size == 4 ? lynx_sgemm : lynx_dgemm;
  if (tc == 'N') {
    run(&ta, &tb, &m, &n, &k, one, x->a, &lda, x->b, &ldb, beta, x->c, &ldc);
    return;
  }
  /* The result has contiguous rows: c^T = b^T a^T. */
  ta = ta == 'N' ? 'T' : 'N';
  tb = tb == 'N' ? 'T' : 'N';
  run(&tb, &ta, &n, &m, &k, one, x->b, &ldb, x->a, &lda, beta, x->c, &ldc);
}

INLINE f32 lynx_of_bf16(const char *x, i64 at) {
  return lynx_make_f32((u32)((const u16 *)x)[at] << 16);
}

/* Multiplications up to which torch takes no library for bf16. From there on numbers below the
   normal ones count as 0 there, and in our own product; below they count as what they are. */
#define PLAIN_WORK 4096

/* What our own product of bf16 leaves: small ones, sums of nothing, and all if there is no memory
   for packs. Several sums at once, as each addition waits for the one before. */
__attribute__((noinline)) static void lynx_plain_bf16(const struct operands *x) {
  for (i64 i = 0; i < x->m; ++i)
    for (i64 j = 0; j < x->n; ++j) {
      const i64 a = i * x->a_row, b = j * x->b_column;
      f32 sums[4] = {0}, sum;
      i64 term = 0;
      for (; term + 4 <= x->k; term += 4)
        for (i64 at = 0; at < 4; ++at)
          sums[at] += lynx_of_bf16(x->a, a + (term + at) * x->a_term) *
                      lynx_of_bf16(x->b, b + (term + at) * x->b_term);
      sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      for (; term < x->k; ++term)
        sum += lynx_of_bf16(x->a, a + term * x->a_term) * lynx_of_bf16(x->b, b + term * x->b_term);
      if (x->added) sum += lynx_of_bf16(x->added, i * x->added_row + j * x->added_column);
      const u32 bits = lynx_bits_f32(sum);
      const u32 near = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      ((u16 *)x->c)[i * x->c_row + j * x->c_column] = (u16)(sum != sum ? 0x7fc0 : near);
    }
}

INLINE void lynx_multiply_one(const struct product *p, i64 at, i64 threads, int is_small) {
  const i64 far = at / p->batch, near = at % p->batch;
  const struct operands x = {
      p->m, p->n, p->k,
      p->a + (far * p->a_far + near * p->a_step) * p->size,
      p->b + (far * p->b_far + near * p->b_step) * p->size,
      p->c + (far * p->c_far + near * p->c_step) * p->size,
      p->a_row, p->a_term, p->b_column, p->b_term, p->c_row, p->c_column, p->accumulate,
      p->added ? p->added + (far * p->added_far + near * p->added_step) * p->size : 0,
      p->added_row, p->added_column};
  multiply *const own = p->size == 4 ? lynx_multiply_f32 : p->size == 2 ? lynx_multiply_bf16 : 0;
  if (own && !(p->size == 2 && is_small) && own(&x, threads)) return;
  if (p->size == 2) lynx_plain_bf16(&x);
  else lynx_by_library(&x, p->size);
}

static void lynx_product_member(void *argument) {
  struct product *p = argument;
  for (;;) {
    const i64 at = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
    if (at >= p->batch * p->outer) break;
    lynx_multiply_one(p, at, 1, 0);
  }
}

/* A batch of small products runs in parallel, one thread each; a few large ones use all threads. */
__attribute__((noinline, unused)) static void lynx_product(struct product *p) {
  const i64 count = p->batch * p->outer;
  if (p->m <= 0 || p->n <= 0 || count <= 0) return;
  const f64 work = (f64)p->m * p->n * (f64)lynx_max(1, p->k);
  const int threads = work * (f64)count > 4e5 ? lynx_threads() : 1;
  if (threads > 1 && count > 1 && (count >= 4 * threads || work < 2e6)) {
    lynx_fork(lynx_product_member, p, (unsigned)threads, 0);
    return;
  }
  const int is_small = work * (f64)count <= PLAIN_WORK;
  for (i64 at = 0; at < count; ++at) lynx_multiply_one(p, at, work > 4e5 ? threads : 1, is_small);
}
"""
