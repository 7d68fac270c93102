/* One attention, backward: scores and weights of each tile are computed once more, and serve five
   products (Dao et al., 2022, algorithm 4). Some keys of a head are a task; the gradients of their
   queries are kept for each task and added up in the end, in the order of keys. */

/* Where the packs of a head of queries lie, among those that are worked on. */
struct OWN(packs) {
  TYPED(packed) *queries, *query_terms, *grads, *grad_terms;
  real *most, *scale, *less, *of_q;
  u8 *is_whole;
};

static i64 OWN(packs_size)(const struct attention *x) {
  const i64 rows = x->padded_queries, depths = PACKED_TERMS(x->depth) + PACKED_TERMS(x->value_depth);
  const i64 packs = rows * depths + rows / TERMS * (x->padded_inner + x->padded_depth);
  return (packs + rows * 3 + x->parts * rows * x->padded_inner) * (i64)sizeof(real) + x->blocks +
         9 * 64;
}

#define PLACE(name, type, count)                                                                   \
  w.name = (type *)next;                                                                           \
  next = (char *)(((u64)(w.name + (count)) + 63) & ~63ULL)

INLINE struct OWN(packs) OWN(packs_of)(const struct attention *x, i64 head) {
  char *next = x->packs + head * ((OWN(packs_size)(x) + 63) & ~63LL);
  const i64 rows = x->padded_queries;
  struct OWN(packs) w;
  PLACE(queries, TYPED(packed), rows * PACKED_TERMS(x->depth));
  PLACE(query_terms, TYPED(packed), rows / TERMS * x->padded_inner);
  PLACE(grads, TYPED(packed), rows * PACKED_TERMS(x->value_depth));
  PLACE(grad_terms, TYPED(packed), rows / TERMS * x->padded_depth);
  PLACE(most, real, rows);
  PLACE(scale, real, rows);
  PLACE(less, real, rows);
  PLACE(of_q, real, x->parts * rows * x->padded_inner);
  PLACE(is_whole, u8, x->blocks);
  return w;
}

/* Memory of a thread. */
struct OWN(work) {
  TYPED(packed) *keys, *key_terms, *values;
  real *tile, *grads, *row, *of_k, *of_v, *sums;
  u16 *rounded; /* gradients of products, where packs hold pairs */
};

static i64 OWN(work_size)(const struct attention *x) {
  const i64 columns = TILE_KEYS + COLUMNS;
  const i64 packs = PACKED_TERMS(x->depth) + PACKED_TERMS(x->value_depth);
  return (columns * (packs + 2 * x->padded_inner + x->padded_depth) +
          2 * x->block_rows * PITCH + 2 * PITCH + PARTS_SIZE) *
             (i64)sizeof(real) +
         IS_PAIRED * x->block_rows * PITCH * 2 + 11 * 64;
}

INLINE struct OWN(work) OWN(work_in)(const struct attention *x, char *memory) {
  const i64 columns = TILE_KEYS + COLUMNS;
  char *next = (char *)(((u64)memory + 63) & ~63ULL);
  struct OWN(work) w;
  PLACE(keys, TYPED(packed), columns * PACKED_TERMS(x->depth));
  PLACE(key_terms, TYPED(packed), columns / TERMS * x->padded_inner);
  PLACE(values, TYPED(packed), columns * PACKED_TERMS(x->value_depth));
  PLACE(tile, real, x->block_rows * PITCH);
  PLACE(grads, real, x->block_rows * PITCH);
  PLACE(row, real, PITCH);
  PLACE(of_k, real, columns * x->padded_inner);
  PLACE(of_v, real, columns * x->padded_depth);
  PLACE(sums, real, PARTS_SIZE);
  PLACE(rounded, u16, IS_PAIRED * x->block_rows * PITCH);
  return w;
}
#undef PLACE

/* Finds the largest score of each of some queries and its denominator, where the logarithm of that
   is so large that it tells too little. */
COLD void OWN(find_sums)(const struct attention *x, struct OWN(packs) p, struct OWN(work) w, i64 b,
                         i64 h, i64 q0, i64 rows) {
  const i64 padded = (rows + ROWS - 1) / ROWS * ROWS;
  const element *k = AT(const element, k, b, h / (x->heads / x->kv_heads), 0);
  real *most = p.most + q0, *scale = p.scale + q0;
  for (i64 r = 0; r < rows; r++) most[r] = -INFINITE, scale[r] = 0;
  for (i64 k0 = 0, n; k0 < x->keys; k0 += n) {
    n = lynx_min(TILE_KEYS, x->keys - k0);
    TYPED(pack_columns)(n, x->depth, k + k0 * x->k.step[2], x->k.step[2], x->k.step[3], 1, w.keys);
    TYPED(multiply_slivers)(padded, n, x->depth, p.queries + q0 * PACKED_TERMS(x->depth), w.keys,
                            w.tile, DOT_SCALE);
    for (i64 r = 0; r < rows; r++) {
      real *s = w.tile + r * PITCH;
      OWN(score)(x, b, h, q0 + r, k0, n, s);
      const real here = TYPED(row_max)(n, s), now = here > most[r] ? here : most[r];
      const real from = now == -INFINITE ? 0 : now;
      scale[r] = scale[r] * TYPED(row_factor)(most[r], from) + TYPED(row_exp)(n, s, from);
      most[r] = now;
    }
  }
  for (i64 r = 0; r < rows; r++) {
#if HAS_SINK
    const real sink = load_sink(*AT(const sink_element, sink, b, h, q0 + r));
    const real larger = sink > most[r] ? sink : most[r], from = larger == -INFINITE ? 0 : larger;
    scale[r] = scale[r] * TYPED(row_factor)(most[r], from) + TYPED(row_factor)(sink, from);
    most[r] = larger;
#endif
    if (most[r] == -INFINITE) most[r] = 0;
    scale[r] = scale[r] == 0 ? (ZERO_EMPTY ? (real)0 : (real)NOT_A_NUMBER) : 1 / scale[r];
  }
}

/* Packs a block of queries and what belongs to it, and clears the gradients. */
static void OWN(prepare)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const struct OWN(work) w = OWN(work_in)(x, local);
  const i64 groups = x->heads / x->kv_heads;
  EACH_UNIT {
    const i64 block = unit % x->blocks, head = unit / x->blocks, all = step->z[0] * groups + head;
    const i64 b = all / x->heads, h = all % x->heads;
    const i64 q0 = block * x->block_rows, rows = lynx_min(x->block_rows, x->queries - q0);
    const struct OWN(packs) p = OWN(packs_of)(x, head);
    const element *q = AT(const element, q, b, h, q0);
    const element *g = AT(const element, grad_out, b, h, q0);
    const element *o = AT(const element, out, b, h, q0);
    TYPED(packed) *queries = p.queries + q0 * PACKED_TERMS(x->depth);
    TYPED(pack_rows)(rows, x->depth, q, x->q.step[2], x->q.step[3], PACK_SCALE, queries);
    TYPED(pack_terms)(x->depth, rows, q, x->q.step[3], x->q.step[2], PACK_SCALE,
                      p.query_terms + q0 / TERMS * COLUMNS, x->padded_queries / TERMS * COLUMNS);
    TYPED(pack_rows)(rows, x->value_depth, g, x->grad_out.step[2], x->grad_out.step[3], 1,
                     p.grads + q0 * PACKED_TERMS(x->value_depth));
    TYPED(pack_terms)(x->value_depth, rows, g, x->grad_out.step[3], x->grad_out.step[2], 1,
                      p.grad_terms + q0 / TERMS * COLUMNS, x->padded_queries / TERMS * COLUMNS);
    const i64 padded = (rows + ROWS - 1) / ROWS * ROWS;
    int is_far = 0, is_whole = !TYPED(is_finite_pack)(padded * PACKED_TERMS(x->depth), queries);
    for (i64 r = 0; r < rows; r++) {
      const real lse = *(AT(const real, lse, b, h, q0 + r));
      real less = 0;
      for (i64 i = 0; i < x->value_depth; i++)
        less += load_element(g[r * x->grad_out.step[2] + i * x->grad_out.step[3]]) *
                load_element(o[r * x->out.step[2] + i * x->out.step[3]]);
#if HAS_GRAD_LSE
      less -= *(AT(const real, grad_lse, b, h, q0 + r));
#endif
      p.less[q0 + r] = less;
      p.most[q0 + r] = lse;
      p.scale[q0 + r] = 1;
      /* So far from zero a logarithm is rounded by more than weights are. */
      if (!(lse > -FAR_FROM_ZERO && lse < FAR_FROM_ZERO)) is_far = 1;
      if (less - less != 0) is_whole = 1;
    }
    if (is_far) OWN(find_sums)(x, p, w, b, h, q0, rows);
    for (i64 r = 0; r < rows; r++) {
      if (!(p.most[q0 + r] > (real)SKIPPED_BELOW) || p.scale[q0 + r] != p.scale[q0 + r])
        is_whole = 1;
#if HAS_SINK && WANTS_SINK
      const real sink = load_sink(*AT(const sink_element, sink, b, h, q0 + r));
      x->of_sink[((b * x->heads) + h) * x->queries + q0 + r] =
          -(f64)(TYPED(row_factor)(sink, p.most[q0 + r]) * p.scale[q0 + r] * p.less[q0 + r]);
#endif
    }
    p.is_whole[block] = (u8)is_whole;
#if WANTS_Q
    for (i64 part = 0; part < x->parts; part++)
      TYPED(clear)(padded * x->padded_inner,
                   p.of_q + (part * x->padded_queries + q0) * x->padded_inner);
#endif
  }
}

/* Products become weights in `s`, and gradients of weights become those of products in `d`. */
INLINE void OWN(differentiate)(const struct attention *x, struct OWN(packs) p, struct OWN(work) w,
                               real *const *grads, i64 b, i64 h, i64 q, i64 k0, i64 n, real *s,
                               real *d, int is_inside) {
  real *t = s;
#if READS_DOT
  t = w.row;
  for (i64 i = 0; i < n; i++) t[i] = s[i];
#endif
  if (is_inside)
    OWN(score_inside)(x, b, h, q, k0, n, t);
  else
    OWN(score)(x, b, h, q, k0, n, t);
  const real most = p.most[q], scale = p.scale[q], less = p.less[q];
#if HAS_KEEP
  const u8 *keep = AT(const u8, keep, b, h, q) + k0 * x->keep.step[3];
  const i64 keep_step = x->keep.step[3];
  const real keep_scale = (real)x->keep_scale;
  for (i64 i = 0; i < n; i++) d[i] *= keep[i * keep_step] * keep_scale; /* so that NaN stays */
#endif
  for (i64 i = 0; i < n; i += LANES) {
    TYPED(vector) *weight = (TYPED(vector) *)(t + i), *grad = (TYPED(vector) *)(d + i);
    *weight = TYPED(exp2)((*weight - most) * (real)LOG2E) * scale;
    *grad = *weight * (*grad - less);
  }
#if HAS_KEEP
  for (i64 i = 0; i < n; i++) t[i] *= keep[i * keep_step] * keep_scale;
#endif
  if (is_inside)
    OWN(derive_inside)(x, b, h, q, k0, n, s, d, grads, w.sums);
  else
    OWN(derive)(x, b, h, q, k0, n, s, d, grads, w.sums);
#if READS_DOT
  for (i64 i = 0; i < n; i++) s[i] = t[i];
#endif
  /* The columns up to whole micro-kernels are rows of products. */
  EACH (int i = 0; i < COLUMNS; i++) s[n + i] = d[n + i] = 0;
}

#if IS_PAIRED
/* Rounds a tile of weights and one of gradients: to pairs of rows in their place, and the gradients
   to rows as well. Beyond the keys there are zeros for whole micro-kernels. */
NOINLINE void OWN(round_tiles)(struct OWN(work) w, i64 rows, i64 n) {
  const i64 columns = n + ROWS;
  for (i64 r = 0; r < rows; r += 2) {
    real *weights = w.tile + r * PITCH, *grads = w.grads + r * PITCH;
    u16 *rounded = w.rounded + r * PITCH;
    const int is_last = r + 1 == rows;
#if WANTS_V
    TYPED(pair_rows)(columns, weights, is_last ? 0 : weights + PITCH, 0, 0);
#endif
#if WANTS_K || WANTS_Q
    TYPED(pair_rows)(columns, grads, is_last ? 0 : grads + PITCH, rounded,
                     is_last ? 0 : rounded + PITCH);
#endif
  }
}
#endif

/* One block of queries and some of the keys of a tile, from `k0` + `from` on. */
INLINE void OWN(take_tile)(const struct attention *x, struct OWN(packs) p, struct OWN(work) w,
                           real *const *grads, real *of_q, i64 b, i64 h, i64 block, i64 tile,
                           i64 k0, i64 n, int is_inside) {
  const i64 q0 = block * x->block_rows, rows = lynx_min(x->block_rows, x->queries - q0);
  const i64 padded = (rows + ROWS - 1) / ROWS * ROWS, from = k0 - tile;
  const i64 depth = PACKED_TERMS(x->depth), value_depth = PACKED_TERMS(x->value_depth);
  TYPED(multiply_slivers)(padded, n, x->depth, p.queries + q0 * depth, w.keys + from * depth,
                          w.tile, DOT_SCALE);
  TYPED(multiply_slivers)(padded, n, x->value_depth, p.grads + q0 * value_depth,
                          w.values + from * value_depth, w.grads, 1);
  for (i64 r = 0; r < rows; r++)
    OWN(differentiate)(x, p, w, grads, b, h, q0 + r, k0, n, w.tile + r * PITCH, w.grads + r * PITCH,
                       is_inside);
  OWN(flush)(x, b, h, k0, n, grads, w.sums);
#if IS_PAIRED
  OWN(round_tiles)(w, rows, n);
#endif
#if WANTS_V
  TYPED(multiply_transposed)(n, x->padded_depth, rows, w.tile, p.grad_terms + q0 / TERMS * COLUMNS,
                             x->padded_queries / TERMS * COLUMNS, w.of_v + from * x->padded_depth);
#endif
#if WANTS_K
  TYPED(multiply_transposed)(n, x->padded_inner, rows, w.grads, p.query_terms + q0 / TERMS * COLUMNS,
                             x->padded_queries / TERMS * COLUMNS, w.of_k + from * x->padded_inner);
#endif
#if WANTS_Q
  const void *of_dots = IS_PAIRED ? (const void *)w.rounded : w.grads;
  TYPED(multiply_tile)(padded, x->padded_inner, n, of_dots, PITCH / TERMS,
                       w.key_terms + from / TERMS * COLUMNS,
                       (TILE_KEYS + COLUMNS) / TERMS * COLUMNS, COLUMNS,
                       of_q + q0 * x->padded_inner);
#endif
}

#if HAS_INSIDE
NOINLINE void OWN(take_tile_inside)(const struct attention *x, struct OWN(packs) p,
                                    struct OWN(work) w, real *const *grads, real *of_q, i64 b,
                                    i64 h, i64 block, i64 tile, i64 k0, i64 n) {
  OWN(take_tile)(x, p, w, grads, of_q, b, h, block, tile, k0, n, 1);
}
#endif
NOINLINE void OWN(take_tile_masked)(const struct attention *x, struct OWN(packs) p,
                                    struct OWN(work) w, real *const *grads, real *of_q, i64 b,
                                    i64 h, i64 block, i64 tile, i64 k0, i64 n) {
  OWN(take_tile)(x, p, w, grads, of_q, b, h, block, tile, k0, n, 0);
}

/* All that some keys of a head take part in. `pair` counts the heads that are worked on. */
static void OWN(task)(const struct attention *x, struct OWN(work) w, real *const *grads, i64 pair,
                      i64 all, i64 part) {
  const i64 groups = x->heads / x->kv_heads, b = all / x->kv_heads, shared = all % x->kv_heads;
  const element *k = AT(const element, k, b, shared, 0);
  const element *v = AT(const element, v, b, shared, 0);
  const i64 last = lynx_min(x->keys, (part + 1) * x->part_keys);
  for (i64 tile = part * x->part_keys, count; tile < last; tile += count) {
    count = lynx_min(TILE_KEYS, last - tile);
    TYPED(pack_columns)(count, x->depth, k + tile * x->k.step[2], x->k.step[2], x->k.step[3], 1,
                        w.keys);
    TYPED(pack_columns)(count, x->value_depth, v + tile * x->v.step[2], x->v.step[2], x->v.step[3],
                        1, w.values);
    TYPED(pack_terms)(x->depth, count, k + tile * x->k.step[2], x->k.step[3], x->k.step[2], 1,
                      w.key_terms, (TILE_KEYS + COLUMNS) / TERMS * COLUMNS);
#if HAS_SKIPS
    const i64 padded = (count + COLUMNS - 1) / COLUMNS * COLUMNS;
    const int skips = TYPED(is_finite_pack)(padded * PACKED_TERMS(x->depth), w.keys) &&
                      TYPED(is_finite_pack)(padded * PACKED_TERMS(x->value_depth), w.values);
#endif
    TYPED(clear)((count + COLUMNS) * x->padded_inner, w.of_k);
    TYPED(clear)((count + COLUMNS) * x->padded_depth, w.of_v);
    for (i64 at = 0; at < groups * x->blocks; at++) {
      const i64 h = shared * groups + at / x->blocks, block = at % x->blocks;
      const struct OWN(packs) p = OWN(packs_of)(x, pair * groups + at / x->blocks);
      real *of_q = p.of_q + part * x->padded_queries * x->padded_inner;
      const i64 q0 = block * x->block_rows, q1 = lynx_min(x->queries, q0 + x->block_rows);
      i64 low = tile, high = tile + count, inside_low = FAR, inside_high = -FAR;
#if HAS_SKIPS
      if (skips && !p.is_whole[block]) {
        OWN(bounds)(x, b, h, q0, q1, &low, &high, &inside_low, &inside_high);
        low = lynx_max(low, tile);
        low = tile + (low - tile) / COLUMNS * COLUMNS;
        high = lynx_min(high, tile + count);
        if (low >= high) continue;
#if HAS_VISIBLE
        if (!OWN(is_visible)(x, b, h, q0, q1, low, high - low)) continue;
#endif
      }
#else
      inside_low = -FAR, inside_high = FAR;
#endif
#if HAS_INSIDE
      if (low >= inside_low && high <= inside_high)
        OWN(take_tile_inside)(x, p, w, grads, of_q, b, h, block, tile, low, high - low);
      else
#endif
        OWN(take_tile_masked)(x, p, w, grads, of_q, b, h, block, tile, low, high - low);
    }
#if WANTS_K
    element *of_k = AT(element, grad_k, b, shared, tile);
    for (i64 r = 0; r < count; r++)
      for (i64 i = 0; i < x->depth; i++)
        of_k[r * x->grad_k.step[2] + i * x->grad_k.step[3]] =
            store_element(w.of_k[r * x->padded_inner + i] * DOT_SCALE);
#endif
#if WANTS_V
    element *of_v = AT(element, grad_v, b, shared, tile);
    for (i64 r = 0; r < count; r++)
      for (i64 i = 0; i < x->value_depth; i++)
        of_v[r * x->grad_v.step[2] + i * x->grad_v.step[3]] =
            store_element(w.of_v[r * x->padded_depth + i]);
#endif
  }
}

/* Units that add to the gradients of operands at places of their own: each does the tasks of one
   class, and of those the ones that add to one copy. */
static void OWN(backward)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  const struct OWN(work) w = OWN(work_in)(x, local);
  const i64 first = step->z[0], pairs = step->z[1];
  TYPED(clear)(PARTS_SIZE, w.sums);
  const i64 of_b = APART_B ? x->batch : 1, of_h = APART_H ? x->kv_heads : 1,
            of_k = APART_K ? x->parts : 1;
  const i64 others = x->batch * x->kv_heads * x->parts / (of_b * of_h * of_k);
#if GRADS == 0
  EACH_UNIT
    OWN(task)(x, w, 0, unit / x->parts, first + unit / x->parts, unit % x->parts);
#else
  EACH_UNIT {
    const i64 copy = unit % x->copies, kind = unit / x->copies;
    real *grads[GRADS];
    for (int i = 0; i < GRADS; i++) grads[i] = (real *)x->copied[i] + copy * x->grad_sizes[i];
    for (i64 pair = 0; pair < pairs; pair++)
      for (i64 part = 0; part < x->parts; part++) {
        const i64 b = (first + pair) / x->kv_heads, h = (first + pair) % x->kv_heads;
        i64 own = 0, other = 0;
        if (APART_B)
          own = own * x->batch + b;
        else
          other = other * x->batch + b;
        if (APART_H)
          own = own * x->kv_heads + h;
        else
          other = other * x->kv_heads + h;
        if (APART_K)
          own = own * x->parts + part;
        else
          other = other * x->parts + part;
        if (own == kind && other * x->copies / others == copy)
          OWN(task)(x, w, grads, pair, first + pair, part);
      }
  }
#endif
}

/* Adds up the gradients of queries. */
static void OWN(finish)(const struct step *step, i64 chunk, char *local) {
#if WANTS_Q
  const struct attention *x = step->p[0];
  const i64 groups = x->heads / x->kv_heads;
  EACH_UNIT {
    const i64 block = unit % x->blocks, head = unit / x->blocks, all = step->z[0] * groups + head;
    const i64 b = all / x->heads, h = all % x->heads;
    const struct OWN(packs) p = OWN(packs_of)(x, head);
    const i64 q0 = block * x->block_rows, q1 = lynx_min(x->queries, q0 + x->block_rows);
    for (i64 q = q0; q < q1; q++) {
      element *to = AT(element, grad_q, b, h, q);
      real *from = p.of_q + q * x->padded_inner;
      for (i64 part = 1; part < x->parts; part++)
        for (i64 i = 0; i < x->depth; i++)
          from[i] += from[part * x->padded_queries * x->padded_inner + i];
      for (i64 i = 0; i < x->depth; i++)
        to[i * x->grad_q.step[3]] = store_element(from[i] * (real)PRESCALE);
    }
  }
#endif
}

#if GRADS > 0
/* Sets the copies of the gradients of operands to zero, a share of each. */
static void OWN(clear_copies)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  EACH_UNIT
    for (int i = 0; i < GRADS; i++) {
      const i64 all = x->grad_sizes[i] * x->copies;
      const i64 from = all * unit / step->units, to = all * (unit + 1) / step->units;
      TYPED(clear)(to - from, (real *)x->copied[i] + from);
    }
}

/* Adds up the copies of a share of each gradient, and writes it. */
static void OWN(write_copies)(const struct step *step, i64 chunk, char *local) {
  const struct attention *x = step->p[0];
  EACH_UNIT
    for (int i = 0; i < GRADS; i++) {
      real *sums = x->copied[i];
      const i64 size = x->grad_sizes[i], from = size * unit / step->units,
                to = size * (unit + 1) / step->units;
      for (i64 copy = 1; copy < x->copies; copy++)
        for (i64 at = from; at < to; at++) sums[at] += sums[copy * size + at];
      OWN(write_gradient)(x, i, sums, from, to);
    }
}
#endif

#if HAS_SINK && WANTS_SINK
/* Adds up what each query gives to the sink, in the order of the queries. */
static void OWN(write_sink)(const struct attention *x) {
  const i64 *shape = x->sink_shape;
  for (i64 ib = 0; ib < shape[0]; ib++)
    for (i64 ih = 0; ih < shape[1]; ih++)
      for (i64 iq = 0; iq < shape[2]; iq++) {
        f64 sum = 0;
        for (i64 b = ib; b < (shape[0] == 1 ? x->batch : ib + 1); b++)
          for (i64 h = ih; h < (shape[1] == 1 ? x->heads : ih + 1); h++)
            for (i64 q = iq; q < (shape[2] == 1 ? x->queries : iq + 1); q++)
              sum += x->of_sink[(b * x->heads + h) * x->queries + q];
        ((sink_element *)x->grad_sink.data)[ib * x->grad_sink.step[0] + ih * x->grad_sink.step[1] +
                                            iq * x->grad_sink.step[2]] = store_sink((real)sum);
      }
}
#endif

i64 OWN(attention)(struct attention *x) {
  const i64 groups = x->heads / lynx_max(1, x->kv_heads), pairs = x->batch * x->kv_heads;
  const i64 rows_of_all = x->batch * x->heads * x->queries;
  x->padded_depth = (x->value_depth + COLUMNS - 1) / COLUMNS * COLUMNS;
  x->padded_inner = (x->depth + COLUMNS - 1) / COLUMNS * COLUMNS;
  x->blocks = lynx_max(1, (x->queries + BLOCK_ROWS - 1) / BLOCK_ROWS);
  x->block_rows = lynx_max(1, ((x->queries + x->blocks - 1) / x->blocks + ROWS - 1) / ROWS) * ROWS;
  x->blocks = (x->queries + x->block_rows - 1) / x->block_rows;
  x->padded_queries = x->blocks * x->block_rows;
  const i64 tiles = (x->keys + TILE_KEYS - 1) / TILE_KEYS;
  x->parts = lynx_max(1, lynx_min(tiles, (TASKS + pairs - 1) / lynx_max(1, pairs)));
  x->part_keys = (tiles + x->parts - 1) / x->parts * TILE_KEYS;
  x->parts = lynx_max(1, (x->keys + x->part_keys - 1) / lynx_max(1, x->part_keys));
  const i64 of_b = APART_B ? x->batch : 1, of_h = APART_H ? x->kv_heads : 1,
            of_k = APART_K ? x->parts : 1;
  const i64 kinds = of_b * of_h * of_k, others = kinds ? pairs * x->parts / kinds : 1;
  i64 grads_size = 0;
#if GRADS > 0
  i64 grad_sizes[GRADS];
  real *copied[GRADS];
  OWN(sizes_of_gradients)(x, grad_sizes);
  for (int i = 0; i < GRADS; i++) grads_size += grad_sizes[i];
  x->copies = lynx_max(1, lynx_min(others, COPIED_NUMBERS / lynx_max(1, grads_size)));
  grads_size = grads_size * x->copies * (i64)sizeof(real) + GRADS * 64;
#endif
  const i64 head_size = (OWN(packs_size)(x) + 63) & ~63LL, pair_size = head_size * groups;
  const i64 wave = lynx_max(1, lynx_min(pairs, WAVE_BYTES / lynx_max(1, pair_size)));
  const i64 waves = (pairs + wave - 1) / wave, local = OWN(work_size)(x);
  const i64 count = 3 * waves + 2, plan = count * (i64)sizeof(struct step) + 16 * waves + 128;
  const i64 sink_size = WANTS_SINK ? rows_of_all * 8 : 0;
  char *memory = x->take(wave * pair_size + grads_size + local + plan + sink_size + 512);
  if (!memory) return 0;
  struct step *steps = (struct step *)(((u64)memory + 63) & ~63ULL);
  i64 *numbers = (i64 *)(steps + count);
  x->of_sink = (f64 *)(numbers + 2 * waves);
  x->packs = (char *)(((u64)x->of_sink + (u64)sink_size + 63) & ~63ULL);
  char *next = x->packs + wave * pair_size;
#if GRADS > 0
  for (int i = 0; i < GRADS; i++) {
    copied[i] = (real *)next;
    next = (char *)(((u64)(copied[i] + grad_sizes[i] * x->copies) + 63) & ~63ULL);
  }
  x->grad_sizes = grad_sizes;
  x->copied = (void **)copied;
#endif
  void *const arguments[] = {x};
  i64 used = 0;
  const i64 depths = x->depth + x->value_depth;
#if GRADS > 0
  plan_step(&steps[used++], OWN(clear_copies), arguments, numbers, 16, grads_size * 10, 0, 0);
#endif
  for (i64 at = 0; at < waves && groups > 0; at++) {
    const i64 some = lynx_min(wave, pairs - at * wave), blocks = some * groups * x->blocks;
    i64 *const z = numbers + 2 * at;
    z[0] = at * wave;
    z[1] = some;
    plan_step(&steps[used++], OWN(prepare), arguments, z, blocks, x->block_rows * depths * 2000,
              local, at > 0);
    const i64 units = GRADS ? kinds * x->copies : some * x->parts;
    const i64 cost = groups * x->queries * x->keys * (75 * depths + 1000) / x->parts;
    plan_step(&steps[used++], OWN(backward), arguments, z, units,
              GRADS ? cost * others / x->copies : cost, local, 1);
    plan_step(&steps[used++], OWN(finish), arguments, z, blocks,
              x->block_rows * x->depth * (1000 + 500 * x->parts), 0, 1);
  }
#if GRADS > 0
  plan_step(&steps[used++], OWN(write_copies), arguments, numbers, 16, grads_size * 10, 0, 1);
#endif
  x->run(steps, used, next);
#if HAS_SINK && WANTS_SINK
  OWN(write_sink)(x);
#endif
  x->give(memory);
  return 1;
}
