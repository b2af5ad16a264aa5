/* cblas_sgemm for MLX: the matmuls of a decoder's forward pass. README.md has measurements.
 *
 * Most of them are x times W transposed, where x has few rows. OpenBLAS first packs all of W, which costs more than such a
 * product. This code reads W once and in place, with all threads; a tile of a few rows by four columns stays in registers.
 * The small matmuls of attention are computed here as well. Each element is summed in the same order for any number of
 * rows, so a row of x gives the same bits in every batch.
 *
 * No matmul of a decoding round may go to OpenBLAS. Its threads spin after each matmul, by default for 25 ms, and occupy
 * the cores that our threads need. All other matmuls use OpenBLAS. Without AVX2, OpenBLAS computes everything: a single
 * row as a matrix-vector product, and up to 64 rows padded to tiles of eight, because it is slower for partial tiles.
 * setup.py compiles this file, and blas.py loads it. */

#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

/* OpenBLAS's functions, declared as in the cblas.h of the scipy-openblas32 wheel. They are set at run time, because the
 * wheel's location is unknown when this file is compiled. */
static struct {
  void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
  void (*sgemv)(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
  void (*dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *, int);
  void (*cgemm)(int, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *, void *, int);
  int (*get_num_threads)(void);
} openblas;

/* Call before any matmul, with the functions in the order above. */
void speculative_decoding_use_openblas(void *sgemm, void *sgemv, void *dgemm, void *cgemm, void *get_num_threads) {
  openblas.sgemm = sgemm;
  openblas.sgemv = sgemv;
  openblas.dgemm = dgemm;
  openblas.cgemm = cgemm;
  openblas.get_num_threads = get_num_threads;
}

#if defined(__x86_64__) && !defined(WITHOUT_TILES)
#include <immintrin.h>

/* y (m, n) = alpha x (m, k) w (n, k) transposed + beta y, with row strides. beta is 0 (y is not read) or 1. */
struct product {
  int m, n, k, ldx, ldw, ldy;
  float alpha, beta;
  const float *x, *w;
  float *y;
  int columns;  /* columns of y in one piece of the work */
  int is_large; /* whether w exceeds the L2 cache; then it is prefetched into that cache, otherwise into L1 */
};

enum { AHEAD = 4 };           /* rows of w to prefetch: one tile */
enum { LINE = 16 };           /* floats in a cache line */
enum { PIECE = 16 * 1024 };   /* minimum floats of w in a piece */
enum { SHARES = 8 };          /* maximum pieces per thread: the prefetch at the end of a piece is wasted */
enum { LARGE = 512 * 1024 };  /* floats of w that fill an L2 cache */
enum { CHUNK = 128 * 1024 };  /* floats of x that stay in the L2 cache while a piece of w streams through */

/* ---- arithmetic, once per instruction set: ROWS by four sums stay in registers */

#define INLINED TARGET __attribute__((always_inline)) static inline

#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define ROWS 4
#define WIDTH 16
#define VECTOR __m512
#define MASK __mmask16
#define LOAD _mm512_loadu_ps
#define LOAD_SOME(which, from) _mm512_maskz_loadu_ps(which, from)
#define STORE _mm512_storeu_ps
#define STORE_SOME _mm512_mask_storeu_ps
#define ALL_OF _mm512_set1_ps
#define FMA _mm512_fmadd_ps
#define TIMES _mm512_mul_ps
#define ADD _mm512_add_ps
INLINED MASK NAME(first)(int count) { return (MASK)(0xffff >> (WIDTH - count)); }
INLINED VECTOR NAME(added_pairs)(VECTOR a, VECTOR b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
/* The sum of each of four vectors. */
INLINED __m128 NAME(four_sums)(VECTOR a, VECTOR b, VECTOR c, VECTOR d) {
  __m512d ab = _mm512_castps_pd(NAME(added_pairs)(a, b)), cd = _mm512_castps_pd(NAME(added_pairs)(c, d));
  __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), upper);
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#include "sgemm_tiles.h"

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define ROWS 3
#define WIDTH 8
#define VECTOR __m256
#define MASK __m256i
#define LOAD _mm256_loadu_ps
#define LOAD_SOME(which, from) _mm256_maskload_ps(from, which)
#define STORE _mm256_storeu_ps
#define STORE_SOME _mm256_maskstore_ps
#define ALL_OF _mm256_set1_ps
#define FMA _mm256_fmadd_ps
#define TIMES _mm256_mul_ps
#define ADD _mm256_add_ps
INLINED MASK NAME(first)(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINED __m128 NAME(four_sums)(VECTOR a, VECTOR b, VECTOR c, VECTOR d) {
  __m256 half = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#include "sgemm_tiles.h"

static void (*piece)(const struct product *, int);     /* `can_compute` selects the best instruction set */
static void (*weighted_sums)(const struct product *);

int speculative_decoding_avx512 = 1; /* tests set it to 0, to use AVX2 on every processor */

static int can_compute(void) {
  if (speculative_decoding_avx512 && __builtin_cpu_supports("avx512f")) {
    piece = piece_avx512, weighted_sums = weighted_sums_avx512;
    return 1;
  }
  piece = piece_avx2, weighted_sums = weighted_sums_avx2;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* ---- threads: each takes the next piece when it is free */

enum { SPINS = 2000, YIELDS = 500 }; /* before an idle thread sleeps: matmuls follow each other within microseconds */

static struct product job;
static _Atomic int waiting, unfinished, asleep; /* pieces not taken; pieces not done; sleeping threads */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static int helpers;

static int take_one(void) {
  int left = atomic_load(&waiting);
  while (left > 0)
    if (atomic_compare_exchange_weak(&waiting, &left, left - 1)) {
      piece(&job, left - 1); /* `job` is not replaced before all its pieces are done */
      atomic_fetch_sub(&unfinished, 1);
      return 1;
    }
  return 0;
}

static void *help(void *nothing) {
  for (;;) {
    while (take_one())
      ;
    for (int i = 0; i < SPINS && !atomic_load(&waiting); i++)
      _mm_pause();
    for (int i = 0; i < YIELDS && !atomic_load(&waiting); i++)
      sched_yield();
    atomic_fetch_add(&asleep, 1);
    syscall(SYS_futex, &waiting, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); /* returns immediately if there is work */
    atomic_fetch_sub(&asleep, 1);
  }
  return nothing;
}

static void forget_helpers(void) { /* a forked process has no helper threads */
  started = PTHREAD_ONCE_INIT;
  waiting = unfinished = asleep = 0;
  pthread_mutex_init(&one_at_a_time, NULL);
}

static void start_helpers(void) {
  static int registered;
  if (!registered++)
    pthread_atfork(NULL, NULL, forget_helpers);
  helpers = 0;
  for (int threads = openblas.get_num_threads(); helpers < threads - 1; helpers++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL))
      break;
    pthread_detach(thread);
  }
}

static void multiply(struct product g) {
  pthread_once(&started, start_helpers);
  int least = PIECE / g.k, share = g.n / (SHARES * (helpers + 1));
  g.columns = ((least > share ? least : share) + 4) / 4 * 4;
  g.is_large = (size_t)g.n * g.k > LARGE;
  int pieces = (g.n + g.columns - 1) / g.columns;
  if (pieces <= 1 || pthread_mutex_trylock(&one_at_a_time)) { /* little work, or another matmul is using the threads */
    for (int i = 0; i < pieces; i++)
      piece(&g, i);
    return;
  }
  job = g;
  atomic_store(&unfinished, pieces);
  atomic_store(&waiting, pieces);
  if (atomic_load(&asleep))
    syscall(SYS_futex, &waiting, FUTEX_WAKE_PRIVATE, helpers, NULL, NULL, 0);
  while (take_one())
    ;
  for (int i = 0; atomic_load(&unfinished); i++)
    i < SPINS ? _mm_pause() : (void)sched_yield();
  pthread_mutex_unlock(&one_at_a_time);
}

/* ---- attention weights times values: y (m, n) = alpha x (m, k) v (k, n) + beta y, by one thread; attention has one such
 * matmul per row and head */

enum { MOST_WORK = 64 * 1024 * 1024 }; /* multiplications; enough for attention over a thousand tokens */

static int computed_here(int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc) {
  struct product g = {m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, 0, 0};
  if (!can_compute() || k <= 0)
    return 0;
  if (trans_b == TRANS)
    multiply(g);
  else if ((size_t)m * n * k <= MOST_WORK)
    weighted_sums(&g);
  else
    return 0;
  return 1;
}

#else

static int computed_here(int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc) {
  return 0;
}

#endif

/* ---- OpenBLAS, with rows padded to its tile size */

enum { TILE = 8, FEW = 64 };
enum { SMALL = 128 * 128 }; /* elements of a right matrix that is too small to repay copying rows */

static _Thread_local float *scratch; /* padded input and output rows; grows and is reused */
static _Thread_local size_t room;

static float *scratch_of(size_t floats) {
  if (floats > room) {
    free(scratch);
    scratch = malloc(floats * sizeof(float));
    room = scratch ? floats : 0;
  }
  return scratch;
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
  int in_rows = order == ROW_MAJOR && (trans_a == NO_TRANS || (m == 1 && lda == 1)), plain = in_rows && beta == 0;
  if ((plain || (in_rows && beta == 1)) && computed_here(trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
    return;
  if (order == ROW_MAJOR && m == 1 && k > 0) { /* the row (1, k) times op(b) is op(b) transposed times a vector */
    int step = trans_a == NO_TRANS ? 1 : lda;
    if (trans_b == NO_TRANS)
      openblas.sgemv(ROW_MAJOR, TRANS, k, n, alpha, b, ldb, a, step, beta, c, 1);
    else
      openblas.sgemv(ROW_MAJOR, NO_TRANS, n, k, alpha, b, ldb, a, step, beta, c, 1);
    return;
  }
  int rows = (m + TILE - 1) / TILE * TILE;
  int pays = (m < TILE || m % TILE > 1) && m < FEW && (size_t)n * k >= SMALL;
  float *x;
  if (plain && rows > m && pays && (x = scratch_of((size_t)rows * ((size_t)n + k))) != NULL) {
    float *y = x + (size_t)rows * k;
    for (int i = 0; i < m; i++)
      memcpy(x + (size_t)i * k, a + (size_t)i * lda, k * sizeof(float));
    memset(x + (size_t)m * k, 0, (size_t)(rows - m) * k * sizeof(float));
    openblas.sgemm(ROW_MAJOR, NO_TRANS, trans_b, rows, n, k, alpha, x, k, b, ldb, 0, y, n);
    for (int i = 0; i < m; i++)
      memcpy(c + (size_t)i * ldc, y + (size_t)i * n, n * sizeof(float));
    return;
  }
  openblas.sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
  openblas.dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
  openblas.cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
