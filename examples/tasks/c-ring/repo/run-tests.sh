mkdir -p build && cc -std=c11 -Wall -o build/ring_test src/ring.c tests/ring_test.c && exec build/ring_test
