// Measures the memory that a process uses after a garbage collection, in order to detect leaks. The resident set size is less suitable,
// because it also varies without a leak.
import { once } from 'node:events';
import { MIB, parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import type { Child } from '../runner/child.ts';

const reportSchema = z.object({ memory_mb: z.number() });

/** Makes this process collect garbage and print `{"memory_mb"}` when it receives SIGUSR2. Requires `node --expose-gc`. */
export function reportMemoryOnSignal(): void {
  process.on('SIGUSR2', () => {
    // The second garbage collection frees the objects that finalizers released after the first.
    globalThis.gc?.();
    globalThis.gc?.();
    const { heapUsed, external } = process.memoryUsage();
    process.stdout.write(`${JSON.stringify({ memory_mb: (heapUsed + external) / MIB })}\n`);
  });
}

/** Returns the memory in MiB of a child process that has called `reportMemoryOnSignal`. */
export async function memoryOf(child: Child): Promise<number> {
  const line = once(child.lines, 'line');
  child.signal('SIGUSR2');
  const [text] = await line;
  return parseAs(reportSchema, parseJson(String(text)), 'memory report').memory_mb;
}
