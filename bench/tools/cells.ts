import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { systemClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { createRuntimeProviders, createSpawner } from '@floe-rl/sandbox';
import { percentile } from '../report.ts';

const never = new AbortController().signal;
const CELL = 'x = 20\nprint("hello")\nx + 1';

/**
 * Python program that measures a kernel of Jupyter over ZeroMQ. For each line of its input, a number, it runs the cell that often and prints the
 * durations in milliseconds as JSON. A cell has ended when its reply and the kernel's state `idle` have arrived.
 */
const JUPYTER = `
import json, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
cell = ${JSON.stringify(CELL)}
def run():
    start = time.perf_counter()
    seen = []
    client.execute_interactive(cell, output_hook=lambda message: seen.append(message["msg_type"]), timeout=60)
    assert "stream" in seen and "execute_result" in seen
    return (time.perf_counter() - start) * 1000
try:
    for line in sys.stdin:
        print(json.dumps([run() for _ in range(int(line))]), flush=True)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
`;

export type CellLatencies = { readonly floeMs: readonly number[]; readonly jupyterMs: readonly number[] };

/**
 * Measures the time of a cell in IPython through floe's tools and in a kernel of Jupyter, with the same `python`. Alternates between both,
 * `rounds` times after a warm-up.
 */
export async function measureCells(python: string, rounds: number, cellsPerRound: number): Promise<CellLatencies> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const spawner = await createSpawner();
  const jupyter = spawn(python, ['-c', JUPYTER], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const answers = createInterface({ input: jupyter.stdout })[Symbol.asyncIterator]();
  const measureJupyter = async (count: number): Promise<number[]> => {
    jupyter.stdin.write(`${count}\n`);
    const { value, done } = await answers.next();
    if (done === true) throw new Error('the program that measures Jupyter has ended');
    return JSON.parse(value) as number[];
  };
  try {
    const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir: dir }).get('local');
    if (provider === undefined) throw new Error('there is no back end local');
    const request = { name: 'cells', spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] };
    const runtime = await provider.start(request, never);
    const cells = (await runtime.openTools(never)).python({ program: python });
    const measureFloe = async (count: number): Promise<number[]> => {
      const measured: number[] = [];
      for (let index = 0; index < count; index += 1) {
        const startedMs = systemClock.monotonicMs();
        const { stdout, result } = await cells.run(CELL, { timeoutMs: 60_000 }, never);
        measured.push(systemClock.monotonicMs() - startedMs);
        if (stdout !== 'hello\n' || result !== '21') throw new Error(`a cell of floe returned ${stdout} and ${result}`);
      }
      return measured;
    };
    const [floeMs, jupyterMs]: [number[], number[]] = [[], []];
    for (let round = 0; round <= rounds; round += 1) {
      const pair = [await measureFloe(cellsPerRound), await measureJupyter(cellsPerRound)] as const;
      // The first round is the warm-up.
      if (round === 0) continue;
      floeMs.push(...pair[0]);
      jupyterMs.push(...pair[1]);
    }
    await runtime.stop();
    return { floeMs, jupyterMs };
  } finally {
    jupyter.stdin.end();
    await spawner.close();
    await rm(dir, { recursive: true, force: true });
  }
}

/** Returns the median time of a cell in floe, and the median time in Jupyter divided by it. */
export function cellKeys({ floeMs, jupyterMs }: CellLatencies): {
  readonly ipython_p50_ms: number;
  readonly ipython_over_jupyter: number;
} {
  const own = percentile(floeMs, 0.5) ?? Number.NaN;
  return { ipython_p50_ms: own, ipython_over_jupyter: (percentile(jupyterMs, 0.5) ?? Number.NaN) / own };
}
