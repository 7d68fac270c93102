/* What all attentions share: how they are called, and the sizes of blocks in registers. */

#define NOINLINE static __attribute__((noinline, unused))
#define COLD static __attribute__((noinline, cold, unused))
#define EACH _Pragma("GCC unroll 16") for

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, ROWS = 14, VECTORS = 2 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32, ROWS = 6, VECTORS = 2 };
#elif defined(__aarch64__)
enum { VECTOR_BYTES = 16, ROWS = 8, VECTORS = 3 };
#else
enum { VECTOR_BYTES = 16, ROWS = 4, VECTORS = 2 };
#endif

#define LANES ((int)(VECTOR_BYTES / sizeof(real)))
#define COLUMNS (VECTORS * LANES)
#define FAR (1LL << 40)
#define LOG2E 1.44269504088896340736
#define LOG_OF_2 0.69314718055994530942

struct strided {
  char *data;
  i64 step[4];
};

INLINE i64 place(const struct strided *x, i64 i, i64 j, i64 k) {
  return i * x->step[0] + j * x->step[1] + k * x->step[2];
}

/* The address in a tensor of an attention `x` of what belongs to a batch, a head and a position. */
#define AT(type, name, b, h, i) ((type *)x->name.data + place(&x->name, b, h, i))

/* The units of work of a chunk. */
#define EACH_UNIT                                                                                  \
  for (i64 unit = chunk * step->grain; unit < lynx_min(step->units, (chunk + 1) * step->grain);    \
       unit++)

/* `blocks` of `block_rows` queries cover all queries; `padded` sizes are those of packs. */
struct attention {
  i64 batch, heads, kv_heads, queries, keys, depth, value_depth;
  struct strided q, k, v, out, lse, sink, keep;
  struct strided grad_out, grad_lse, grad_q, grad_k, grad_v, grad_sink;
  f64 keep_scale;
  i64 sink_shape[4];
  void *const *operands;
  void *const *grads;
  const i64 *numbers;
  i64 *failed;
  const i64 *codes;
  char *(*take)(i64);
  void (*give)(char *);
  void (*run)(struct step *, i64, char *);
  i64 padded_depth, padded_inner, padded_keys, padded_queries, blocks, block_rows;
  i64 parts, part_keys, copies;
  const i64 *grad_sizes;
  void **copied;
  f64 *of_sink;
  char *packs;
  u8 *is_finite;
};

/* Notes that a check failed; of several, the first one counts. */
NOINLINE void note_failure(const struct attention *x, i64 code) {
  i64 old = __atomic_load_n(x->failed, __ATOMIC_RELAXED);
  while ((old == 0 || code < old) &&
         !__atomic_compare_exchange_n(x->failed, &old, code, 0, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}

/* Cuts work into chunks by its amount alone, so that no sum depends on the number of threads.
   `cost` is that of a unit in picoseconds. */
NOINLINE void plan_step(struct step *step, void (*run)(const struct step *, i64, char *),
                        void *const *arguments, const i64 *numbers, i64 units, i64 cost, i64 local,
                        int barrier) {
  const i64 grain = lynx_max(1, 20000000 / lynx_max(1, cost));
  *step = (struct step){.run = run, .p = arguments, .z = numbers, .grain = grain, .units = units};
  step->chunks = (units + grain - 1) / grain;
  step->work = units * cost;
  step->local = local;
  step->barrier = barrier;
}
