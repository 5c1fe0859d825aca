// Tests whether the simulation finds defects: plants known defects, one at a time, into a copy of floe's compiled code, and simulates seeds
// until a check reports a violation.

import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { linkModules } from '../../tools/linked-modules.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { DEFECTS, type Defect, withDefect } from './planted-defects.ts';
import { OWN_MODULE, simulateSeeds } from './seeds.ts';

/**
 * Maximum number of seeds that are simulated for one planted defect. When none of them violates an invariant, the defect counts as not
 * caught.
 */
const MAX_SEEDS = 3_000;

export type Hunt = {
  /** Number of defects that are tested concurrently, each in a separate copy of the compiled code. */
  readonly jobs: number;
  /** Only defects whose name contains this text are planted. */
  readonly only: string;
  readonly print: (line: string) => void;
};

/** Plants each chosen defect, simulates until a check catches it, and prints the defect with the seed that caught it. */
export async function hunt({
  jobs,
  only,
  print,
}: Hunt): Promise<{ readonly planted: number; readonly caught: number }> {
  const root = repositoryRoot();
  const chosen = DEFECTS.filter(({ name }) => name.includes(only));
  const next = chosen.values();
  let caught = 0;
  const lane = async (): Promise<void> => {
    const home = mkdtempSync(join(tmpdir(), 'floe-planted-'));
    try {
      for (const path of ['packages', join('.build', 'verify', 'control-plane'), 'package.json']) {
        const isCopied = (source: string): boolean => !/\.map$|\.ts$|\/node_modules$/.test(source);
        cpSync(join(root, path), join(home, path), { recursive: true, filter: isCopied });
      }
      linkModules(root, home);
      const module = join(home, relative(root, OWN_MODULE));
      for (const defect of next) {
        const restore = plant(home, defect);
        const { failures } = await simulateSeeds({ module, from: 1, count: MAX_SEEDS, jobs: 1, maxFailures: 1 });
        restore();
        const [first] = failures;
        if (first !== undefined) caught++;
        const result = first === undefined ? 'NOT CAUGHT' : 'caught';
        const by =
          first === undefined ? `in ${MAX_SEEDS} seeds` : `by seed ${first.seed}: ${first.invariant}: ${first.message}`;
        print(`${result}  ${defect.name}\n        ${by}`);
      }
    } finally {
      rmSync(home, { recursive: true, force: true });
    }
  };
  await Promise.all(Array.from({ length: jobs }, lane));
  return { planted: chosen.length, caught };
}

/** Writes a defect into the compiled code of the checkout `root`. The returned function restores the original file. */
function plant(root: string, defect: Defect): () => void {
  const path = join(root, defect.file);
  const { before, after } = withDefect(root, defect);
  writeFileSync(path, after);
  return () => writeFileSync(path, before);
}
