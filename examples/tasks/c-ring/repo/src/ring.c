#include "ring.h"

void ring_init(ring *r) {
  r->start = 0;
  r->count = 0;
}

void ring_push(ring *r, int value) {
  r->values[(r->start + r->count) % RING_CAPACITY] = value;
  r->count++;
}

bool ring_pop(ring *r, int *value) {
  if (r->count == 0) return false;
  *value = r->values[r->start];
  r->start = (r->start + 1) % RING_CAPACITY;
  r->count--;
  return true;
}
