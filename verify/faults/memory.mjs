// What a process holds in memory once its garbage is gone: a leak shows there, and not in its resident set, which goes up and down.
import { once } from 'node:events';

const MIB = 2 ** 20;

/** In the process: on SIGUSR2 it collects its garbage and prints `{"memory_mb"}`. Needs --expose-gc. */
export function tellMemory() {
  process.on('SIGUSR2', () => {
    // Twice: what the first pass finalises the second one frees.
    globalThis.gc();
    globalThis.gc();
    const { heapUsed, external } = process.memoryUsage();
    process.stdout.write(`${JSON.stringify({ memory_mb: (heapUsed + external) / MIB })}\n`);
  });
}

/** Of the process of a `Child`, MiB. */
export async function memoryOf(child) {
  const line = once(child.lines, 'line');
  child.signal('SIGUSR2');
  return JSON.parse((await line)[0]).memory_mb;
}
