// Plants defects into a copy of dist/, one at a time: the simulation must catch each.
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ROOT } from '../../tools/setup.mjs';
import { BUGS, withDefect } from './planted-defects.mjs';
import { simulateSeeds } from './seeds.mjs';

/** A defect that is not seen in so many worlds is not caught. */
const MAX_SEEDS = 3_000;
/** What a simulation does not load. */
const NOT_COPIED = /\.(map|d\.ts)$|[/\\]dist[/\\](sim|cli|cluster)([/\\]|$)/;

function plant(dist, bug) {
  const path = join(dist, bug.file);
  const { before, text } = withDefect(dist, bug);
  writeFileSync(path, text);
  return () => writeFileSync(path, before);
}

/** Plants each of the defects and simulates until it is caught. Prints each with the seed that caught it. */
export async function hunt({ dist, jobs, say, only = '' }) {
  const chosen = BUGS.filter(({ name }) => name.includes(only));
  const next = chosen.values();
  let caught = 0;
  await Promise.all(
    Array.from({ length: jobs }, async () => {
      const home = mkdtempSync(join(tmpdir(), 'floe-planted-'));
      try {
        const copy = join(home, 'dist');
        cpSync(dist, copy, { recursive: true, filter: (path) => !NOT_COPIED.test(path) });
        cpSync(join(ROOT, 'package.json'), join(home, 'package.json'));
        symlinkSync(join(ROOT, 'node_modules'), join(home, 'node_modules'));
        for (const bug of next) {
          const restore = plant(copy, bug);
          const { failures } = await simulateSeeds({ dist: copy, from: 1, count: MAX_SEEDS, jobs: 1, maxFailures: 1 });
          restore();
          const [first] = failures;
          if (first !== undefined) caught++;
          const by =
            first === undefined
              ? `in ${MAX_SEEDS} seeds`
              : `by seed ${first.seed}: ${first.invariant}: ${first.message}`;
          say(`${first === undefined ? 'NOT CAUGHT' : 'caught'}  ${bug.name}\n        ${by}`);
        }
      } finally {
        rmSync(home, { recursive: true, force: true });
      }
    }),
  );
  return { planted: chosen.length, caught };
}
