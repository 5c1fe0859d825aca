// Memory that a process holds after a garbage collection. A leak shows there; the resident set goes up and down without one.
import { once } from 'node:events';
import { z } from 'zod';
import { MIB } from '../../src/core/bytes.ts';
import { parseAs, parseJson } from '../../src/core/parse.ts';
import type { Child } from './child.ts';

const reportSchema = z.object({ memory_mb: z.number() });

/** Makes this process collect its garbage on SIGUSR2 and print `{"memory_mb"}`. Needs `node --expose-gc`. */
export function reportMemoryOnSignal(): void {
  process.on('SIGUSR2', () => {
    // The second pass frees what finalizers of the first pass released.
    globalThis.gc?.();
    globalThis.gc?.();
    const { heapUsed, external } = process.memoryUsage();
    process.stdout.write(`${JSON.stringify({ memory_mb: (heapUsed + external) / MIB })}\n`);
  });
}

/** Memory of a child that called `reportMemoryOnSignal`, in MiB. */
export async function memoryOf(child: Child): Promise<number> {
  const line = once(child.lines, 'line');
  child.signal('SIGUSR2');
  const [text] = await line;
  return parseAs(reportSchema, parseJson(String(text)), 'memory report').memory_mb;
}
