#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>

#define RING_CAPACITY 4

typedef struct {
  int values[RING_CAPACITY];
  size_t start;
  size_t count;
} ring;

void ring_init(ring *r);
/* Overwrites the oldest value when the ring is full. */
void ring_push(ring *r, int value);
/* Takes the oldest value; false when the ring is empty. */
bool ring_pop(ring *r, int *value);

#endif
