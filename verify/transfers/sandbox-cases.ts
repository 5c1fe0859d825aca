import { posix } from 'node:path';
import { asFloeError, FloeError, type RandomSource, systemClock } from '@floe-rl/core';
import { type Runtime, runPrepare } from '@floe-rl/sandbox';
import { carryPatch } from '#evaluators/patch';
import type { Bench } from './bench.ts';
import type { Case } from './case.ts';
import type { Guard } from './guard.ts';
import { HAZARDS, type Hazard, randomName } from './hazards.ts';
import { type Brought, OPERATIONS, type Operation, type Site } from './operations.ts';
import { PATCHES } from './patches.ts';
import { makeSources } from './sources.ts';

/** Number of times that an operation is made while the agent keeps replacing the path. */
const RACES = 12;
/**
 * Time limit in milliseconds of an operation while the agent keeps replacing the path. An operation that reads a pipe waits until this limit.
 */
const RACE_MS = 4_000;

/** Returns a case for each source of an upload. */
export function sourceCases(bench: Bench, root: string, guard: Guard): Case[] {
  return makeSources(root, guard).map(({ name, action, code }) => ({
    backend: bench.backend,
    name,
    run: (signal) =>
      withSandboxes(bench, 1, async ([runtime]) => {
        const thrown = await runPrepare(runtime, [action], { uploadRoots: [root] }, signal).then(
          () => null,
          (error: unknown) => error,
        );
        if (thrown !== null && !FloeError.is(thrown)) throw thrown;
        const found = thrown === null ? null : asFloeError(thrown).code;
        const command = 'find uploaded -type f -size -1000k -exec cat {} + 2>/dev/null; true';
        const { stdout } = await runtime.exec({ command }, signal);
        return {
          bytes: Buffer.from(stdout),
          wrong: found === code ? [] : [`${found ?? 'no error'} instead of ${code}`],
        };
      }),
  }));
}

/** Returns a case for each patch that an agent prints. */
export function patchCases(bench: Bench, guard: Guard): Case[] {
  return PATCHES.map(({ name, text }) => ({
    backend: bench.backend,
    name: `carrying a patch with ${name}`,
    run: (signal) =>
      withSandboxes(bench, 2, async ([agent, fresh]) => {
        await agent.writeFiles([{ path: 'evil.patch', content: Buffer.from(text(guard.outside), 'latin1') }], signal);
        const config = { repo_dir: null, patch_command: 'cat evil.patch', apply_timeout: 20, exclude_patterns: [] };
        const options = { evaluator: 'transfers', config, env: {}, clock: systemClock, signal };
        // git accepts the paths of some of these patches as paths in the repository, so the case does not require a refusal. The guard finds
        // changes outside of the repository.
        const thrown = await carryPatch(agent, fresh, options).then(() => null, asFloeError);
        return { bytes: Buffer.alloc(0), wrong: thrown === null ? [] : [`it failed with ${thrown.message}`] };
      }),
  }));
}

/** Runs a function with new sandboxes, and stops them. */
async function withSandboxes<T>(
  bench: Bench,
  count: 1 | 2,
  use: (sandboxes: readonly [Runtime, Runtime]) => Promise<T>,
): Promise<T> {
  const first = await bench.start();
  const second = count === 2 ? await bench.start() : first;
  try {
    return await use([first, second]);
  } finally {
    await Promise.all([first.stop(), second.stop()]);
  }
}

/** Returns a case for each operation with each hazard. */
export function hazardCases(bench: Bench, uploads: string, guard: Guard, random: RandomSource): Case[] {
  // The local back end isolates nothing: an agent that still runs could change files of the host. Hazards with a running process are left out
  // there.
  const hazards = HAZARDS.filter(({ meanwhile }) => meanwhile === undefined || bench.backend !== 'local');
  return OPERATIONS.flatMap((operation) =>
    hazards.map((hazard) => {
      const fileName = (hazard.fileName ?? randomName)(random);
      return {
        backend: bench.backend,
        name: `${operation.name}, where there is ${hazard.name}`,
        run: (signal) =>
          withSandboxes(bench, operation.needsFresh ? 2 : 1, async ([agent, fresh]) => {
            const path = posix.join(agent.paths.workdir, fileName);
            const site = { agent, fresh, path, uploads: `${uploads}/tree`, signal };
            return transfer(operation, hazard, site, guard);
          }),
      } satisfies Case;
    }),
  );
}

async function transfer(operation: Operation, hazard: Hazard, site: Site, guard: Guard) {
  const { agent, path, signal } = site;
  const env = { P: path, CANARY: guard.canaryPath, OUTSIDE: guard.outside };
  const made = await agent.exec({ command: hazard.script, env }, signal);
  if (hazard.isPlain && made.exitCode !== 0) throw new Error(`the file was not made: ${made.stderr}`);
  if (hazard.meanwhile !== undefined) return race(operation, hazard.meanwhile, site, env);
  const brought = await operation.run(site).catch((thrown: unknown) => {
    if (hazard.isPlain && operation.takesPlain) return String(thrown);
    throw thrown;
  });
  if (typeof brought === 'string') return { bytes: Buffer.alloc(0), wrong: [brought] };
  const isLost = hazard.isPlain === true && brought.hasContent === false;
  return { bytes: brought.bytes, wrong: isLost ? ['the content of a plain file did not arrive'] : [] };
}

/** Makes the operation several times while a command of the agent replaces the path. Errors with a code are accepted. */
async function race(operation: Operation, command: string, site: Site, env: Record<string, string>) {
  const { agent, path, signal } = site;
  const running = agent.exec({ command, env }, signal);
  const all: Brought[] = [];
  try {
    for (let attempt = 0; attempt < RACES; attempt++) {
      const limited = new AbortController();
      const cancel = systemClock.schedule(RACE_MS, () =>
        limited.abort(new FloeError('cancelled', 'the operation took too long')),
      );
      try {
        all.push(await operation.run({ ...site, signal: limited.signal }));
      } catch (thrown) {
        if (!FloeError.is(thrown)) throw thrown;
      } finally {
        cancel();
      }
    }
  } finally {
    await agent.exec({ command: ': > "$P.end"', env: { P: path } }, signal);
    await running;
  }
  return { bytes: Buffer.concat(all.map(({ bytes }) => bytes)), wrong: [] };
}
