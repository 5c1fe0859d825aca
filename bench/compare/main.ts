// Compares the benches of two commits: another commit (the base) and this checkout (the head).
//
//   npm run bench -- compare REF [--only=BENCH,…] [--pairs=N] [--bound=PERCENT] [--json]
//
// The base is checked out into a git worktree in the cache folder and compiled. Both commits then run the same quick benches in turns. The
// base is first in one pair and the head in the next, so that a slow moment of the machine affects both. A figure is the median over the pairs
// of the head's cost divided by the base's. Exits with 1 when a figure got worse by more than the bound (10 % by default), and with 2 when the
// commits cannot be compared.
import { printReport, type ReportRow, round } from '../report.ts';
import { benchesOf, changedFiles, checkOut, commitOf, RequestError, runBench } from './checkout.ts';
import { BENCHES, type ComparedBench, type Comparison, compare, isWorse, readFigure } from './figures.ts';

const DEFAULT_PAIRS = 4;
const DEFAULT_BOUND_PERCENT = 10;

type Options = {
  readonly ref: string;
  readonly benches: readonly ComparedBench[];
  readonly pairs: number;
  readonly bound: number;
};

function parseOptions(args: readonly string[]): Options {
  const [ref, ...more] = args.filter((arg) => !arg.startsWith('--'));
  if (ref === undefined || more.length > 0) throw new RequestError('usage: npm run bench -- compare REF [OPTION…]');
  const textOf = (name: string): string | null =>
    args.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3) ?? null;
  const positive = (name: string, fallback: number): number => {
    const value = Number(textOf(name) ?? fallback);
    if (!(value > 0)) throw new RequestError(`--${name} must be a number above 0`);
    return value;
  };
  const names = BENCHES.map(({ name }) => name);
  const only = textOf('only')?.split(',') ?? names;
  const unknown = only.find((name) => !names.includes(name));
  if (unknown !== undefined) throw new RequestError(`--only: "${unknown}" is not one of ${names.join(', ')}`);
  return {
    ref,
    benches: BENCHES.filter(({ name }) => only.includes(name)),
    pairs: Math.ceil(positive('pairs', DEFAULT_PAIRS)),
    bound: positive('bound', DEFAULT_BOUND_PERCENT) / 100,
  };
}

type Side = 'base' | 'head';

/** Runs a bench of both commits in turns. Returns the figures that both have, and prints a notice for each that one lacks. */
function compareBench(
  bench: ComparedBench,
  folders: Readonly<Record<Side, string>>,
  pairs: number,
): Map<string, Comparison> {
  const runs: Record<Side, unknown[]> = { base: [], head: [] };
  for (let pair = 0; pair < pairs; pair++) {
    const order: readonly Side[] = pair % 2 === 0 ? ['base', 'head'] : ['head', 'base'];
    for (const side of order) {
      console.error(`▸ ${bench.name}: ${side}, run ${pair + 1} of ${pairs}`);
      runs[side].push(runBench(folders[side], bench.name, bench.args));
    }
  }
  const compared = new Map<string, Comparison>();
  for (const { path, better } of bench.figures) {
    const [base, head] = [runs.base, runs.head].map((jsons) => jsons.map((json) => readFigure(json, path)));
    const isNumber = (value: number | null): value is number => value !== null;
    if (base?.every(isNumber) === true && head?.every(isNumber) === true) {
      compared.set(`${bench.name}.${path}`, compare(better, base, head));
    } else {
      console.error(`${bench.name}: one of the commits has no figure ${path}; it is left out`);
    }
  }
  return compared;
}

function compareCommits({ ref, benches, pairs, bound }: Options): boolean {
  const root = process.cwd();
  const commit = commitOf(root, ref);
  const changed = changedFiles(root);
  if (changed.length > 0) {
    console.error(
      `note: the head contains uncommitted changes: ${changed.slice(0, 5).join(', ')}${changed.length > 5 ? ', …' : ''}`,
    );
  }
  const folder = checkOut(root, commit);
  console.error(`base: ${commit.slice(0, 12)} in ${folder}; git worktree remove ${folder} deletes it`);
  const ofBase = benchesOf(folder);
  const missing = benches.filter(({ name }) => !ofBase.includes(name)).map(({ name }) => name);
  if (missing.length === benches.length) {
    throw new RequestError(`${ref} is from before these benches: ${missing.join(', ')}`);
  }
  if (missing.length > 0)
    console.error(`note: ${ref} is from before these benches, which are left out: ${missing.join(', ')}`);
  const compared = new Map<string, Comparison>();
  for (const bench of benches.filter(({ name }) => ofBase.includes(name))) {
    for (const [name, comparison] of compareBench(bench, { base: folder, head: root }, pairs))
      compared.set(name, comparison);
  }
  const worse = [...compared].filter(([, comparison]) => isWorse(comparison, bound)).map(([name]) => name);
  const rows = [...compared].map(([name, { base, head, ratio, spread }]): ReportRow => {
    const verdict = worse.includes(name) ? ', WORSE' : '';
    return [
      name,
      round(ratio, 3),
      `${round(spread[0], 3)} to ${round(spread[1], 3)}; ${round(base)} → ${round(head)}${verdict}`,
    ];
  });
  const figures = Object.fromEntries(
    [...compared].map(([name, { base, head, ratio, spread }]) => [
      name,
      { base, head, ratio: round(ratio, 4), spread: spread.map((value) => round(value, 4)) },
    ]),
  );
  printReport(`Cost of the head over that of ${ref}; above 1 is worse, the bound is ${round(1 + bound)}`, rows, {
    base: commit,
    pairs,
    bound,
    worse,
    figures,
  });
  return worse.length === 0;
}

try {
  if (!compareCommits(parseOptions(process.argv.slice(2)))) process.exitCode = 1;
} catch (error) {
  if (!(error instanceof RequestError)) throw error;
  console.error(`bench compare: ${error.message}`);
  process.exitCode = 2;
}
