/* The arithmetic of sgemm.c for one instruction set. sgemm.c includes this file once per set, after defining NAME,
 * TARGET, ROWS, WIDTH and the operations on a VECTOR of WIDTH floats. This file undefines them at its end.
 *
 * The numbers of rows and columns are compile-time constants, so the loops over them are unrolled. */

INLINED void NAME(terms)(const struct product *g, int rows, int columns, const float *x, const float *w, int is_whole,
                         MASK which, VECTOR sum[ROWS][4]) {
  VECTOR a[ROWS];
  for (int i = 0; i < rows; i++)
    a[i] = is_whole ? LOAD(x + (size_t)i * g->ldx) : LOAD_SOME(which, x + (size_t)i * g->ldx);
  for (int j = 0; j < columns; j++) {
    const float *at = w + (size_t)j * g->ldw;
    VECTOR b = is_whole ? LOAD(at) : LOAD_SOME(which, at);
    for (int i = 0; i < rows; i++)
      sum[i][j] = FMA(a[i], b, sum[i][j]);
  }
}

/* `rows` rows of x by `columns` rows of w. Prefetches `next`: `step` floats for each vector of x. */
INLINED void NAME(tile)(const struct product *g, int rows, int columns, const float *x, const float *w, float *y,
                        const float *next, int step) {
  VECTOR sum[ROWS][4];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < 4; j++)
      sum[i][j] = ALL_OF(0);
  int p = 0;
  for (; p + WIDTH <= g->k; p += WIDTH, next += step) {
    for (int line = 0; line < step; line += LINE)
      if (g->is_large)
        _mm_prefetch((const char *)(next + line), _MM_HINT_T1);
      else
        _mm_prefetch((const char *)(next + line), _MM_HINT_T0);
    NAME(terms)(g, rows, columns, x + p, w + p, 1, NAME(first)(WIDTH), sum);
  }
  if (p < g->k)
    NAME(terms)(g, rows, columns, x + p, w + p, 0, NAME(first)(g->k - p), sum);
  for (int i = 0; i < rows; i++) {
    __m128 sums = _mm_mul_ps(_mm_set1_ps(g->alpha), NAME(four_sums)(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
    float *at = y + (size_t)i * g->ldy;
    if (columns == 4)
      _mm_storeu_ps(at, g->beta ? _mm_add_ps(sums, _mm_loadu_ps(at)) : sums);
    else
      for (int j = 0; j < columns; j++)
        at[j] = g->beta ? sums[j] + at[j] : sums[j];
  }
}

/* Each of the first `parts` tiles of a column prefetches an equal part of the next column, to keep memory busy. */
INLINED void NAME(tiles)(const struct product *g, int columns, int parts, int from, int to, const float *w, float *y) {
  const float *x = g->x + (size_t)from * g->ldx, *next = w + (size_t)AHEAD * g->ldw;
  int rows = (to - from) % ROWS, step = (AHEAD * WIDTH + parts - 1) / parts;
  switch (rows) {
#if ROWS > 3
  case 3: NAME(tile)(g, 3, columns, x, w, y, next, step); break;
#endif
  case 2: NAME(tile)(g, 2, columns, x, w, y, next, step); break;
  case 1: NAME(tile)(g, 1, columns, x, w, y, next, step); break;
  default: rows = ROWS; NAME(tile)(g, ROWS, columns, x, w, y, next, step);
  }
  while ((from += rows) < to) {
    x += (size_t)rows * g->ldx, y += (size_t)rows * g->ldy, next += g->k / WIDTH * step;
    rows = ROWS;
    if (--parts > 0)
      NAME(tile)(g, ROWS, columns, x, w, y, next, step);
    else
      NAME(tile)(g, ROWS, columns, x, w, y, next, 0);
  }
}

INLINED void NAME(column_of_tiles)(const struct product *g, int columns, int from, int to, int j) {
  const float *w = g->w + (size_t)j * g->ldw;
  float *y = g->y + (size_t)from * g->ldy + j;
  switch (columns == 4 ? (to - from + ROWS - 1) / ROWS : 4) { /* few columns share one variant, to compile less */
  case 1: NAME(tiles)(g, columns, 1, from, to, w, y); break;
  case 2: NAME(tiles)(g, columns, 2, from, to, w, y); break;
  case 3: NAME(tiles)(g, columns, 3, from, to, w, y); break;
  default: NAME(tiles)(g, columns, 4, from, to, w, y);
  }
}

static TARGET void NAME(piece)(const struct product *g, int index) {
  int begin = index * g->columns, end = begin + g->columns < g->n ? begin + g->columns : g->n;
  int rows = CHUNK / g->k / ROWS * ROWS;
  if (rows < ROWS)
    rows = ROWS;
  for (int from = 0; from < g->m; from += rows) {
    int to = from + rows < g->m ? from + rows : g->m, j = begin;
    for (; j + 4 <= end; j += 4)
      NAME(column_of_tiles)(g, 4, from, to, j);
    for (; j < end; j++)
      NAME(column_of_tiles)(g, 1, from, to, j);
  }
}

/* Weights times values: `rows` rows of x by `vectors` vectors of columns; the last vector may be partial. */
INLINED void NAME(sum_of_rows)(const struct product *g, int rows, int vectors, int is_whole, MASK last, const float *x,
                               const float *v, float *y) {
  VECTOR sum[ROWS][4];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++)
      sum[i][j] = ALL_OF(0);
  for (int p = 0; p < g->k; p++, v += g->ldw)
    for (int j = 0; j < vectors; j++) {
      const float *at = v + WIDTH * j;
      VECTOR b = is_whole || j + 1 < vectors ? LOAD(at) : LOAD_SOME(last, at);
      for (int i = 0; i < rows; i++)
        sum[i][j] = FMA(ALL_OF(x[(size_t)i * g->ldx + p]), b, sum[i][j]);
    }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) {
      float *at = y + (size_t)i * g->ldy + WIDTH * j;
      VECTOR found = TIMES(ALL_OF(g->alpha), sum[i][j]);
      int is_full = is_whole || j + 1 < vectors;
      if (g->beta)
        found = ADD(found, is_full ? LOAD(at) : LOAD_SOME(last, at));
      if (is_full)
        STORE(at, found);
      else
        STORE_SOME(at, last, found);
    }
}

INLINED void NAME(sums_of_rows)(const struct product *g, int vectors, int is_whole, MASK last, int j) {
  const float *x = g->x;
  float *y = g->y + j;
  int i = 0;
  for (; i + ROWS <= g->m; i += ROWS, x += (size_t)ROWS * g->ldx, y += (size_t)ROWS * g->ldy)
    NAME(sum_of_rows)(g, ROWS, vectors, is_whole, last, x, g->w + j, y);
  for (; i < g->m; i++, x += g->ldx, y += g->ldy)
    NAME(sum_of_rows)(g, 1, vectors, is_whole, last, x, g->w + j, y);
}

static TARGET void NAME(weighted_sums)(const struct product *g) {
  MASK all = NAME(first)(WIDTH);
  int j = 0;
  for (; j + 4 * WIDTH <= g->n; j += 4 * WIDTH)
    NAME(sums_of_rows)(g, 4, 1, all, j);
  for (; j + 2 * WIDTH <= g->n; j += 2 * WIDTH)
    NAME(sums_of_rows)(g, 2, 1, all, j);
  for (; j < g->n; j += WIDTH)
    NAME(sums_of_rows)(g, 1, g->n - j >= WIDTH, g->n - j < WIDTH ? NAME(first)(g->n - j) : all, j);
}

#undef NAME
#undef TARGET
#undef ROWS
#undef WIDTH
#undef VECTOR
#undef MASK
#undef LOAD
#undef LOAD_SOME
#undef STORE
#undef STORE_SOME
#undef ALL_OF
#undef FMA
#undef TIMES
#undef ADD
