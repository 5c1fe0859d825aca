#include <stdio.h>

#include "../src/ring.h"

static void report(const char *name, bool ok) { printf("%s ring::%s\n", ok ? "PASSED" : "FAILED", name); }

static bool pops(ring *r, const int *wanted, int n) {
  int value;
  for (int i = 0; i < n; i++) {
    if (!ring_pop(r, &value) || value != wanted[i]) return false;
  }
  return !ring_pop(r, &value);
}

int main(void) {
  ring r;

  ring_init(&r);
  report("empty", pops(&r, NULL, 0));

  ring_init(&r);
  ring_push(&r, 1);
  ring_push(&r, 2);
  report("first_in_first_out", pops(&r, (int[]){1, 2}, 2));

  ring_init(&r);
  for (int i = 1; i <= RING_CAPACITY; i++) ring_push(&r, i);
  report("full", pops(&r, (int[]){1, 2, 3, 4}, 4));

  ring_init(&r);
  for (int i = 1; i <= RING_CAPACITY + 2; i++) ring_push(&r, i);
  report("overwrites_the_oldest", pops(&r, (int[]){3, 4, 5, 6}, 4));
  return 0;
}
