/* What products of all types are written with, and what they are given. */

typedef long long i64;
typedef float f32;
typedef unsigned short u16;
typedef unsigned int u32;

#define EACH _Pragma("GCC unroll 16") for
#define INLINE static inline __attribute__((always_inline))

void *aligned_alloc(unsigned long, unsigned long);
void free(void *);

INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 larger(i64 a, i64 b) { return a > b ? a : b; }
INLINE i64 pieces(i64 size, i64 piece) { return (size + piece - 1) / piece; }
INLINE i64 take(i64 *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

/* c = a b, or c += a b, or c = a b + added: a is m by k, b is k by n. Strides are in numbers; one of
   c is 1. Only products of low precision are given `added`, null where nothing is. */
struct operands {
  i64 m, n, k;
  const void *a, *b;
  void *c;
  i64 a_row, a_term, b_column, b_term, c_row, c_column;
  i64 accumulate;
  const void *added;
  i64 added_row, added_column;
};
