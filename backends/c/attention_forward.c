/* One attention, forward: online softmax over tiles of queries and keys (Milakov and Gimelshein,
   2018; Dao et al., 2022), in base 2. What the model does to the scores is in the functions
   `bounds`, `is_visible`, `score` and `score_inside`, which are printed before this text. */

/* Packs some keys of a pair of a batch and a head: as columns of depth terms, and the values as
   terms if `packs_values` says so. Returns whether they are finite, where that matters. */
NOINLINE int OWN(pack_part)(const struct attention *x, i64 pair, i64 first,
                            TYPED(packed) *to, int packs_values) {
  const i64 count = lynx_min(PACKED_KEYS, x->keys - first), columns = x->padded_depth;
  const i64 b = pair / x->kv_heads, h = pair % x->kv_heads;
  const element *k = AT(const element, k, b, h, 0);
  const element *v = AT(const element, v, b, h, 0);
  TYPED(pack_columns)(count, x->depth, k + first * x->k.step[2], x->k.step[2], x->k.step[3], 1,
                      to + first * PACKED_TERMS(x->depth));
  int is_finite = 1;
#if HAS_SKIPS
  is_finite = TYPED(is_finite_pack)(
      (count + COLUMNS - 1) / COLUMNS * COLUMNS * PACKED_TERMS(x->depth),
      to + first * PACKED_TERMS(x->depth));
#endif
  to += x->padded_keys * PACKED_TERMS(x->depth) + first / TERMS * COLUMNS;
  v += first * x->v.step[2];
  if (packs_values)
    TYPED(pack_terms)(x->value_depth, count, v, x->v.step[3], x->v.step[2], 1, to,
                      x->padded_keys / TERMS * COLUMNS);
#if HAS_SKIPS
  if (packs_values)
    for (i64 i = 0; i < columns; i += COLUMNS, to += x->padded_keys / TERMS * COLUMNS)
      is_finite &= TYPED(is_finite_pack)(PACKED_TERMS(count) * COLUMNS, to);
#if !IS_ROUNDED
  else
    for (i64 i = 0; i < count; i++, v += x->v.step[2])
      is_finite &= TYPED(are_finite)(x->value_depth, v);
#endif
#endif
  return is_finite;
}

/* The numbers in the packs of the keys and values of a head. */
INLINE i64 OWN(head_numbers)(const struct attention *x) {
  return x->padded_keys * PACKED_TERMS(x->depth) + x->padded_keys / TERMS * x->padded_depth;
}

static void OWN(pack_keys)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const i64 parts = (x->keys + PACKED_KEYS - 1) / PACKED_KEYS;
  EACH_UNIT {
    const i64 head = unit / parts, first = unit % parts * PACKED_KEYS;
    TYPED(packed) *to = (TYPED(packed) *)x->packs + head * OWN(head_numbers)(x);
    x->is_finite[unit] = (u8)OWN(pack_part)(x, head + step->z[0], first, to, 1);
  }
}

#if HAS_SKIPS
/* Whether all keys and values of a head are finite, so that those may be skipped that are hidden. */
INLINE int OWN(may_skip)(const struct attention *x, i64 head) {
  const i64 parts = (x->keys + PACKED_KEYS - 1) / PACKED_KEYS;
  for (i64 part = 0; part < parts; part++)
    if (!x->is_finite[head * parts + part]) return 0;
  return 1;
}
#endif

/* Packs of keys, and values: as slivers `value_step` numbers apart, of terms `value_term` apart. */
struct OWN(packs) {
  const TYPED(packed) *keys, *values;
  i64 value_step, value_term;
};

INLINE struct OWN(packs) OWN(packs_at)(const struct attention *x, const TYPED(packed) *at) {
  return (struct OWN(packs)){at, at + x->padded_keys * PACKED_TERMS(x->depth),
                             x->padded_keys / TERMS * COLUMNS, COLUMNS};
}

/* Memory of a thread; each part begins at a multiple of 64 bytes. */
struct OWN(work) {
  TYPED(packed) *queries;
  real *tile, *sums, *most, *total;
};

static i64 OWN(work_size)(const struct attention *x) {
  const i64 rows = x->block_rows;
  return (rows * PACKED_TERMS(x->depth) + rows * PITCH + rows * x->padded_depth + 2 * rows) * (i64)sizeof(real) +
         5 * 64;
}

INLINE struct OWN(work) OWN(work_in)(const struct attention *x, char *memory) {
  const i64 rows = x->block_rows;
  struct OWN(work) w;
  real *next = (real *)(((u64)memory + 63) & ~63ULL);
#define PLACE(name, count)                                                                         \
  w.name = (void *)next;                                                                           \
  next = (real *)(((u64)(next + (count)) + 63) & ~63ULL)
  PLACE(queries, rows * PACKED_TERMS(x->depth));
  PLACE(tile, rows * PITCH);
  PLACE(sums, rows * x->padded_depth);
  PLACE(most, rows);
  PLACE(total, rows);
#undef PLACE
  return w;
}

/* Takes a tile of scores, of `n` keys from `k0` on, into the sums of a block of queries. */
INLINE void OWN(tile)(const struct attention *x, struct OWN(work) w, i64 b, i64 h, i64 q0,
                      i64 rows, i64 k0, i64 n, int is_inside) {
  for (i64 r = 0; r < rows; r++) {
    real *s = w.tile + r * PITCH;
    if (is_inside)
      OWN(score_inside)(x, b, h, q0 + r, k0, n, s);
    else
      OWN(score)(x, b, h, q0 + r, k0, n, s);
    const real here = TYPED(row_max)(n, s), before = w.most[r];
    const real most = here > before ? here : before, from = most == -INFINITE ? 0 : most;
    const real sum = TYPED(row_exp)(n, s, from);
    if (most != before) {
      const real factor = TYPED(row_factor)(before, from);
      w.total[r] *= factor;
      w.most[r] = most;
      real *sums = w.sums + r * x->padded_depth;
      for (i64 i = 0; i < x->padded_depth; i += LANES) *(TYPED(vector) *)(sums + i) *= factor;
    }
    w.total[r] += sum;
#if HAS_KEEP
    const u8 *keep = AT(const u8, keep, b, h, q0 + r) + k0 * x->keep.step[3];
    const i64 keep_step = x->keep.step[3];
    if (keep_step == 1)
      for (i64 i = 0; i < n; i++) s[i] = keep[i] ? s[i] : 0;
    else
      for (i64 i = 0; i < n; i++) s[i] = keep[i * keep_step] ? s[i] : 0;
#endif
  }
}

/* Not inlined, for the compiler takes most of its time over them. */
NOINLINE void OWN(take_tile_masked)(const struct attention *x, struct OWN(work) w, i64 b, i64 h,
                                    i64 q0, i64 rows, i64 k0, i64 n) {
  OWN(tile)(x, w, b, h, q0, rows, k0, n, 0);
}
#if HAS_INSIDE
NOINLINE void OWN(take_tile_inside)(const struct attention *x, struct OWN(work) w, i64 b, i64 h,
                                    i64 q0, i64 rows, i64 k0, i64 n) {
  OWN(tile)(x, w, b, h, q0, rows, k0, n, 1);
}
#endif

/* Goes over the keys from `low` to `high` that a block of queries sees. */
NOINLINE void OWN(sweep)(const struct attention *x, struct OWN(work) w, struct OWN(packs) packs,
                         i64 b, i64 h, i64 q0, i64 rows, int skips) {
  const i64 padded = (rows + ROWS - 1) / ROWS * ROWS;
  i64 low = 0, high = x->keys, inside_low = 0, inside_high = 0;
  if (skips) OWN(bounds)(x, b, h, q0, q0 + rows, &low, &high, &inside_low, &inside_high);
  TYPED(clear)(padded * x->padded_depth, w.sums);
  TYPED(clear)(rows, w.total);
  for (i64 r = 0; r < rows; r++) w.most[r] = -INFINITE;
  low = lynx_max(low, 0) / COLUMNS * COLUMNS;
  high = lynx_min(high, x->keys);
  for (i64 k0 = low, n; k0 < high; k0 += n) {
    n = lynx_min(TILE_KEYS, high - k0);
#if HAS_VISIBLE
    if (skips && !OWN(is_visible)(x, b, h, q0, q0 + rows, k0, n)) continue;
#endif
    TYPED(multiply_slivers)(padded, n, x->depth, w.queries,
                            packs.keys + k0 * PACKED_TERMS(x->depth), w.tile, DOT_SCALE);
#if HAS_INSIDE
    if (k0 >= inside_low && k0 + n <= inside_high)
      OWN(take_tile_inside)(x, w, b, h, q0, rows, k0, n);
    else
#endif
      OWN(take_tile_masked)(x, w, b, h, q0, rows, k0, n);
#if IS_PAIRED
    for (i64 r = 0; r < rows; r++) TYPED(round_row)(n, w.tile + r * PITCH);
#endif
    TYPED(multiply_tile)(padded, x->padded_depth, n, w.tile, PITCH,
                         packs.values + k0 / TERMS * packs.value_term, packs.value_step,
                         packs.value_term, w.sums);
  }
}

/* Whether some row has so small scores that what was skipped may matter. */
INLINE int OWN(is_low)(struct OWN(work) w, i64 rows) {
  for (i64 r = 0; r < rows; r++)
    if (!(w.most[r] > (real)SKIPPED_BELOW)) return 1;
  return 0;
}

/* Writes the results of a row. */
NOINLINE void OWN(finish_row)(const struct attention *x, struct OWN(work) w, i64 r, i64 b, i64 h,
                              i64 q) {
  real most = w.most[r], total = w.total[r], factor = 1;
#if HAS_SINK
  const real sink = load_sink(*AT(const sink_element, sink, b, h, q));
  const real larger = sink > most ? sink : most, from = larger == -INFINITE ? 0 : larger;
  factor = TYPED(row_factor)(most, from);
  total = total * factor + TYPED(row_factor)(sink, from);
  most = larger;
#endif
  const real scale = total == 0 ? (ZERO_EMPTY || x->keys == 0 ? (real)0 : (real)NOT_A_NUMBER)
                                : factor * (real)x->keep_scale / total;
  element *out = AT(element, out, b, h, q);
  const real *sums = w.sums + r * x->padded_depth;
  const i64 step = x->out.step[3], count = x->value_depth;
  if (step == 1)
    for (i64 i = 0; i < count; i++) out[i] = store_element(sums[i] * scale);
  else
    for (i64 i = 0; i < count; i++) out[i * step] = store_element(sums[i] * scale);
  real *lse = AT(real, lse, b, h, q);
  *lse = total == 0 ? -INFINITE : most + log_real(total);
}

/* A block of queries of one of the heads that share keys, which are packed. */
INLINE void OWN(attend_block)(const struct attention *x, struct OWN(work) w,
                              struct OWN(packs) packs, i64 pair, i64 member, i64 block, int skips) {
  const i64 groups = x->heads / x->kv_heads, b = pair / x->kv_heads;
  const i64 h = pair % x->kv_heads * groups + member;
  const i64 q0 = block * x->block_rows, rows = lynx_min(x->block_rows, x->queries - q0);
  const element *q = AT(const element, q, b, h, 0);
  TYPED(pack_rows)(rows, x->depth, q + q0 * x->q.step[2], x->q.step[2], x->q.step[3],
                   PACK_SCALE, w.queries);
#if HAS_SKIPS
  skips = skips &&
          TYPED(is_finite_pack)((rows + ROWS - 1) / ROWS * ROWS * PACKED_TERMS(x->depth), w.queries);
#endif
  OWN(sweep)(x, w, packs, b, h, q0, rows, skips);
  if (skips && SKIPPED_BELOW > -INFINITE && OWN(is_low)(w, rows))
    OWN(sweep)(x, w, packs, b, h, q0, rows, 0);
  for (i64 r = 0; r < rows; r++) OWN(finish_row)(x, w, r, b, h, q0 + r);
}

/* Blocks of queries; later ones, which may see more keys, come first. */
static void OWN(attend)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const struct OWN(work) w = OWN(work_in)(x, local);
  const i64 groups = x->heads / x->kv_heads;
  EACH_UNIT {
    const i64 block = x->blocks - 1 - unit % x->blocks, head = unit / x->blocks;
    const i64 pair = head / groups;
    const TYPED(packed) *packs = (const TYPED(packed) *)x->packs + pair * OWN(head_numbers)(x);
    int skips = 0;
#if HAS_SKIPS
    skips = OWN(may_skip)(x, pair);
#endif
    OWN(attend_block)(x, w, OWN(packs_at)(x, packs), pair + step->z[0], head % groups, block,
                      skips);
  }
}

/* All queries that share keys, whose packs stay in the thread's cache. Few queries read values
   where they lie. */
static void OWN(attend_alone)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const struct OWN(work) w = OWN(work_in)(x, local);
  TYPED(packed) *memory = (TYPED(packed) *)(((u64)(w.total + x->block_rows) + 63) & ~63ULL);
  const i64 rows = x->heads / x->kv_heads * x->blocks * x->block_rows;
  const int packs_values = IS_ROUNDED || rows > 4 * ROWS || x->v.step[3] != 1 ||
                           x->padded_depth != x->value_depth;
  EACH_UNIT {
    int is_finite = 1;
    for (i64 first = 0; first < x->keys; first += PACKED_KEYS)
      is_finite &= OWN(pack_part)(x, unit, first, memory, packs_values);
    struct OWN(packs) packs = OWN(packs_at)(x, memory);
#if !IS_ROUNDED
    if (!packs_values) {
      packs.values = AT(const element, v, unit / x->kv_heads, unit % x->kv_heads, 0);
      packs.value_step = COLUMNS;
      packs.value_term = x->v.step[2];
    }
#endif
    for (i64 member = 0; member < x->heads / x->kv_heads; member++)
      for (i64 block = 0; block < x->blocks; block++)
        OWN(attend_block)(x, w, packs, unit, member, block, HAS_SKIPS && is_finite);
  }
}

/* Runs it all with a unit of work for each pair of a batch and a head of keys. */
static i64 OWN(run_alone)(struct attention *x, i64 pairs, i64 groups, i64 head_size) {
  const i64 local = OWN(work_size)(x) + head_size + 64, depths = x->depth + x->value_depth;
  char *memory = x->take(local + (i64)sizeof(struct step) + 128);
  if (!memory) return 0;
  struct step *steps = (struct step *)(((u64)memory + 63) & ~63ULL);
  void *const arguments[] = {x};
  const i64 rows = groups * x->blocks * x->block_rows;
  plan_step(steps, OWN(attend_alone), arguments, 0, pairs,
            x->keys * (rows * (30 * depths + 500) + depths * 500), local, 0);
  x->run(steps, 1, (char *)(steps + 1));
  x->give(memory);
  return 1;
}

#if MAY_BE_FEW
/* The products of a query with some keys, whose numbers are neighbours. */
INLINE void OWN(few_products)(i64 n, i64 depth, const real *restrict q, const element *restrict k,
                              i64 step, real *restrict s) {
  i64 j = 0;
  for (; j + 4 <= n; j += 4, k += 4 * step) {
    real a = 0, b = 0, c = 0, d = 0;
    _Pragma("omp simd reduction(+:a, b, c, d)") for (i64 i = 0; i < depth; i++) {
      a += q[i] * load_element(k[i]);
      b += q[i] * load_element(k[step + i]);
      c += q[i] * load_element(k[2 * step + i]);
      d += q[i] * load_element(k[3 * step + i]);
    }
    s[j] = a;
    s[j + 1] = b;
    s[j + 2] = c;
    s[j + 3] = d;
  }
  for (; j < n; j++, k += step) {
    real sum = 0;
    _Pragma("omp simd reduction(+:sum)") for (i64 i = 0; i < depth; i++) sum +=
        q[i] * load_element(k[i]);
    s[j] = sum;
  }
}

/* Adds values times weights, four at a time. */
INLINE void OWN(few_values)(i64 n, i64 depth, const real *restrict s, const element *restrict v,
                            i64 step, real *restrict sums) {
  i64 j = 0;
  for (; j + 4 <= n; j += 4, v += 4 * step)
    _Pragma("omp simd") for (i64 i = 0; i < depth; i++) sums[i] +=
        s[j] * load_element(v[i]) + s[j + 1] * load_element(v[step + i]) +
        s[j + 2] * load_element(v[2 * step + i]) + s[j + 3] * load_element(v[3 * step + i]);
  for (; j < n; j++, v += step)
    _Pragma("omp simd") for (i64 i = 0; i < depth; i++) sums[i] += s[j] * load_element(v[i]);
}

/* Whether rows hold only finite numbers: others show in results, even where they are hidden. */
INLINE int OWN(few_are_finite)(i64 n, i64 depth, const element *from, i64 step) {
  real sum = 0;
  if (step == depth) depth *= n, n = 1;
  for (i64 j = 0; j < n; j++, from += step) {
    _Pragma("omp simd reduction(+:sum)") for (i64 i = 0; i < depth; i++) {
      const real x = load_element(from[i]);
      sum += x - x;
    }
  }
  return sum == 0;
}

/* Few queries read keys and values where they lie. A unit is a part of the keys of a head; what it
   finds for each query is a row of sums, its largest score and its total. */
static void OWN(attend_few)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const i64 groups = x->heads / x->kv_heads, count = groups * x->queries,
            width = x->padded_depth + COLUMNS;
  real *tile = (real *)(((u64)local + 63) & ~63ULL), *q = tile + PITCH;
  EACH_UNIT {
    const i64 part = unit % x->parts, pair = unit / x->parts, b = pair / x->kv_heads,
              shared = pair % x->kv_heads;
    const element *k = AT(const element, k, b, shared, 0);
    const element *v = AT(const element, v, b, shared, 0);
    const i64 first = part * x->part_keys, last = lynx_min(x->keys, first + x->part_keys);
    int skips = -1; /* not known yet */
    for (i64 at = 0; at < count; at++) {
      const i64 h = shared * groups + at / x->queries, query = at % x->queries;
      const element *from = AT(const element, q, b, h, query);
      for (i64 i = 0; i < x->depth; i++)
        q[i] = load_element(from[i * x->q.step[3]]) * (real)PRESCALE;
      real *sums = (real *)x->packs + (unit * count + at) * width;
      struct OWN(work) w = {.tile = tile,
                            .sums = sums,
                            .most = sums + x->padded_depth,
                            .total = sums + x->padded_depth + 1};
      TYPED(clear)(width, sums);
      w.most[0] = -INFINITE;
      i64 low = first, high = last, inside_low = 0, inside_high = 0;
      if (HAS_SKIPS && SKIPPED_BELOW == -INFINITE)
        OWN(bounds)(x, b, h, query, query + 1, &low, &high, &inside_low, &inside_high);
      low = lynx_max(low, first);
      high = lynx_min(high, last);
      if (low > first || high < last) {
        if (skips < 0)
          skips = OWN(few_are_finite)(last - first, x->depth, k + first * x->k.step[2],
                                      x->k.step[2]) &&
                  OWN(few_are_finite)(last - first, x->value_depth, v + first * x->v.step[2],
                                      x->v.step[2]);
        if (!skips || !TYPED(are_finite)(x->depth, q)) low = first, high = last;
      }
      for (i64 k0 = low, n; k0 < high; k0 += n) {
        n = lynx_min(TILE_KEYS, high - k0);
        OWN(few_products)(n, x->depth, q, k + k0 * x->k.step[2], x->k.step[2], tile);
        OWN(take_tile_masked)(x, w, b, h, query, 1, k0, n);
        OWN(few_values)(n, x->value_depth, tile, v + k0 * x->v.step[2], x->v.step[2], sums);
      }
    }
  }
}

/* Brings the parts of each query together, in their order. */
static void OWN(finish_few)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const i64 groups = x->heads / x->kv_heads, count = groups * x->queries,
            width = x->padded_depth + COLUMNS;
  EACH_UNIT {
    const i64 pair = unit / count, at = unit % count;
    real *sums = (real *)x->packs + (pair * x->parts * count + at) * width;
    struct OWN(work)
        w = {.sums = sums, .most = sums + x->padded_depth, .total = sums + x->padded_depth + 1};
    for (i64 part = 1; part < x->parts; part++) {
      const real *other = sums + part * count * width;
      const real here = other[x->padded_depth], before = w.most[0];
      const real most = here > before ? here : before, from = most == -INFINITE ? 0 : most;
      const real old = TYPED(row_factor)(before, from), new = TYPED(row_factor)(here, from);
      w.most[0] = most;
      w.total[0] = w.total[0] * old + other[x->padded_depth + 1] * new;
      for (i64 i = 0; i < x->value_depth; i++) sums[i] = sums[i] * old + other[i] * new;
    }
    OWN(finish_row)(x, w, 0, pair / x->kv_heads, pair % x->kv_heads * groups + at / x->queries,
                    at % x->queries);
  }
}

/* Runs it all for few queries a head of keys, so that packs would not pay. */
static i64 OWN(run_few)(struct attention *x, i64 pairs, i64 count) {
  x->parts = lynx_max(1, lynx_min((x->keys + 511) / 512, (16 + pairs - 1) / pairs));
  x->part_keys = (x->keys + x->parts - 1) / x->parts;
  const i64 width = x->padded_depth + COLUMNS, local = (PITCH + x->depth) * (i64)sizeof(real) + 64;
  const i64 size = pairs * x->parts * count * width * (i64)sizeof(real);
  char *memory = x->take(size + local + 2 * (i64)sizeof(struct step) + 256);
  if (!memory) return 0;
  struct step *steps = (struct step *)(((u64)memory + 63) & ~63ULL);
  x->packs = (char *)(((u64)(steps + 2) + 63) & ~63ULL);
  void *const arguments[] = {x};
  const i64 depths = x->depth + x->value_depth;
  plan_step(&steps[0], OWN(attend_few), arguments, 0, pairs * x->parts,
            count * x->part_keys * (100 * depths + 3000), local, 0);
  plan_step(&steps[1], OWN(finish_few), arguments, 0, pairs * count,
            x->parts * x->value_depth * 500, 0, 1);
  x->run(steps, 2, x->packs + size);
  x->give(memory);
  return 1;
}
#endif

/* Runs it all, some heads after the other, so that the packs of a few are in memory at a time.
   Returns whether there was memory. */
i64 OWN(attention)(struct attention *x) {
  const i64 groups = x->heads / lynx_max(1, x->kv_heads), pairs = x->batch * x->kv_heads;
  if (pairs <= 0 || groups <= 0 || x->queries <= 0) return 1;
  x->padded_depth = (x->value_depth + COLUMNS - 1) / COLUMNS * COLUMNS;
  x->padded_keys = (x->keys + COLUMNS - 1) / COLUMNS * COLUMNS;
#if MAY_BE_FEW
  if (groups * x->queries <= (x->queries == 1 ? 2 * FEW_ROWS : FEW_ROWS) && x->k.step[3] == 1 &&
      x->v.step[3] == 1)
    return OWN(run_few)(x, pairs, groups * x->queries);
#endif
  x->blocks = (x->queries + BLOCK_ROWS - 1) / BLOCK_ROWS;
  /* Blocks of equal size, of whole micro-kernels. */
  x->block_rows = ((x->queries + x->blocks - 1) / x->blocks + ROWS - 1) / ROWS * ROWS;
  x->blocks = (x->queries + x->block_rows - 1) / x->block_rows;
  const i64 head_size = OWN(head_numbers)(x) * (i64)sizeof(real);
  if (head_size <= ALONE_BYTES && (pairs >= 16 || groups * x->blocks == 1))
    return OWN(run_alone)(x, pairs, groups, head_size);
  const i64 wave = lynx_max(1, lynx_min(pairs, WAVE_BYTES / lynx_max(1, head_size)));
  const i64 waves = (pairs + wave - 1) / wave;
  const i64 local = OWN(work_size)(x), parts = (x->keys + PACKED_KEYS - 1) / PACKED_KEYS;
  const i64 plan = waves * (2 * (i64)sizeof(struct step) + 8) + wave * parts;
  char *memory = x->take(wave * head_size + local + plan + 192);
  if (!memory) return 0;
  struct step *steps = (struct step *)(((u64)memory + 63) & ~63ULL);
  i64 *first = (i64 *)(steps + 2 * waves);
  x->is_finite = (u8 *)(first + waves);
  x->packs = (void *)(((u64)(x->is_finite + wave * parts) + 63) & ~63ULL);
  void *const arguments[] = {x};
  for (i64 at = 0; at < waves; at++) {
    const i64 count = lynx_min(wave, pairs - at * wave);
    first[at] = at * wave;
    plan_step(&steps[2 * at], OWN(pack_keys), arguments, first + at, count * parts,
              PACKED_KEYS * (x->depth + x->value_depth) * 500, 0, at > 0);
    plan_step(&steps[2 * at + 1], OWN(attend), arguments, first + at, count * groups * x->blocks,
              x->block_rows * x->keys * (30 * (x->depth + x->value_depth) + 500), local, 1);
  }
  x->run(steps, 2 * waves, (char *)x->packs + wave * head_size);
  x->give(memory);
  return 1;
}
