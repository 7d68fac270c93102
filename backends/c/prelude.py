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
}
"""

PRODUCTS = """\
/* A batch of products as Fortran sees them: columns are contiguous. */
struct product {
  gemm *gemm;
  char ta, tb;
  i32 m, n, k, lda, ldb, ldc;
  const char *a, *b;
  char *c;
  i64 batch, step_a, step_b, step_c, size, next;
  int accumulate;
  i64 outer, far_a, far_b, far_c;
};

INLINE void lynx_multiply(const struct product *p, i64 at) {
  const f32 one_f32 = 1, beta_f32 = (f32)p->accumulate;
  const f64 one_f64 = 1, beta_f64 = p->accumulate;
  const void *one = p->size == 4 ? (const void *)&one_f32 : &one_f64;
  const void *beta = p->size == 4 ? (const void *)&beta_f32 : &beta_f64;
  const i64 far = at / p->batch, near = at % p->batch;
  const char *a = p->a + (far * p->far_a + near * p->step_a) * p->size;
  const char *b = p->b + (far * p->far_b + near * p->step_b) * p->size;
  char *c = p->c + (far * p->far_c + near * p->step_c) * p->size;
  p->gemm(&p->ta, &p->tb, &p->m, &p->n, &p->k, one, a, &p->lda, b, &p->ldb, beta, c,
          &p->ldc);
}

static void lynx_product_member(void *argument) {
  struct product *p = argument;
  for (;;) {
    const i64 at = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
    if (at >= p->batch * p->outer) break;
    lynx_multiply(p, at);
  }
}

/* A batch of small products runs in parallel, one thread each; a few large ones use all threads. */
__attribute__((noinline, unused)) static void lynx_product(struct product *p) {
  const i64 count = p->batch * p->outer;
  if (p->m <= 0 || p->n <= 0 || count <= 0) return;
  const f64 work = (f64)p->m * p->n * (f64)lynx_max(1, p->k);
  const int threads = count > 1 && work * (f64)count > 1e6 ? lynx_threads() : 1;
  if (threads > 1 && (count >= 4 * threads || work < 2e6)) {
    lynx_fork(lynx_product_member, p, (unsigned)threads, 0);
    return;
  }
  for (i64 at = 0; at < count; ++at) lynx_multiply(p, at);
}
"""
