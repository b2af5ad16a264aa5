/* cblas_sgemm for MLX, from OpenBLAS, which is slow where the left matrix has few rows: a decoder's passes.
 *
 * One row: OpenBLAS packs the whole right matrix as if it were to be used again; its own matrix-vector product reads it
 * once, at twice the speed. Up to 64 rows: its kernels compute eight at a time and fall back to slower ones for a rest, so
 * that eight cost less than two to seven, and sixteen less than ten to fifteen (docs/LOG.md, "Few rows"). blas.py compiles this where there is a
 * compiler; without one everything works as well, slower. */

#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112, TILE = 8, FEW = 64 };
enum { SMALL = 128 * 128 }; /* elements of a right matrix for which copying rows does not pay */

/* As declared in the cblas.h of the scipy-openblas32 wheel. */
void scipy_cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
void scipy_cblas_sgemv(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
void scipy_cblas_dgemm(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
                       int);
void scipy_cblas_cgemm(int, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *,
                       void *, int);

static _Thread_local float *scratch; /* of rows in and rows out, in whole tiles; grows, and is kept */
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
  if (order == ROW_MAJOR && m == 1 && k > 0) { /* the row (1, k) times op(b) is op(b) transposed times a vector */
    int step = trans_a == NO_TRANS ? 1 : lda;
    if (trans_b == NO_TRANS)
      scipy_cblas_sgemv(ROW_MAJOR, TRANS, k, n, alpha, b, ldb, a, step, beta, c, 1);
    else
      scipy_cblas_sgemv(ROW_MAJOR, NO_TRANS, n, k, alpha, b, ldb, a, step, beta, c, 1);
    return;
  }
  int rows = (m + TILE - 1) / TILE * TILE;
  int pays = (m < TILE || m % TILE > 1) && m < FEW && (size_t)n * k >= SMALL;
  float *x;
  if (order == ROW_MAJOR && trans_a == NO_TRANS && beta == 0 && rows > m && pays &&
      (x = scratch_of((size_t)rows * ((size_t)n + k))) != NULL) {
    float *y = x + (size_t)rows * k;
    for (int i = 0; i < m; i++)
      memcpy(x + (size_t)i * k, a + (size_t)i * lda, k * sizeof(float));
    memset(x + (size_t)m * k, 0, (size_t)(rows - m) * k * sizeof(float));
    scipy_cblas_sgemm(ROW_MAJOR, NO_TRANS, trans_b, rows, n, k, alpha, x, k, b, ldb, 0, y, n);
    for (int i = 0; i < m; i++)
      memcpy(c + (size_t)i * ldc, y + (size_t)i * n, n * sizeof(float));
    return;
  }
  scipy_cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
  scipy_cblas_dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
  scipy_cblas_cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
