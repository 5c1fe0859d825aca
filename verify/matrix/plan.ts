// Decides which cells of the matrix are run, and why other cells are skipped. A cell is one test case with one harness in one dialect. All
// functions are pure.
import type { DialectName } from '@floe-rl/core/schema';
import type { Row, Variant } from './row.ts';

/** Names of all test cases, in the order of the columns of the printed table. */
export const CELL_NAMES = [
  'edit',
  'parallel_calls',
  'subagent',
  'compaction',
  'malformed_call',
  'length_stop',
  'engine_429',
  'engine_500',
  'image',
] as const;
export type CellName = (typeof CELL_NAMES)[number];

/** A cell of the matrix that can be run: one test case (`cell`) with one variant of a harness in one dialect. */
export type RunnableCell = {
  readonly row: Row;
  readonly variant: Variant;
  readonly dialect: DialectName;
  readonly cell: CellName;
};

/** A cell of the matrix that is skipped, with the reason in `skip`. `dialect` is `?` when floe has no adapter for the harness. */
export type SkippedCell = Omit<RunnableCell, 'dialect'> & {
  readonly dialect: DialectName | '?';
  readonly skip: string;
};

export type PlannedCell = (RunnableCell & { readonly skip: null }) | SkippedCell;

/** Facts about floe's adapter for a harness: the dialects that it supports, the pinned version, and whether the harness is installed. */
export type Adapter = {
  readonly dialects: readonly DialectName[];
  /** The version of the harness that floe installs; `null` when floe does not install this harness. */
  readonly version: string | null;
  readonly installed: boolean;
};

/** Selects harnesses, dialects and test cases by name. An empty or missing list selects all of its kind. */
export type Filter = {
  readonly harness?: readonly string[];
  readonly dialect?: readonly string[];
  readonly cell?: readonly string[];
};

export type PlanInput = {
  /** floe's harness adapters, by harness name. An adapter is the code that runs a harness. */
  readonly adapters: ReadonlyMap<string, Adapter>;
  /** The dialects in which floe's proxy accepts model calls. */
  readonly served: readonly DialectName[];
  readonly filter?: Filter;
};

/**
 * For each test case that requires certain tools or settings of a harness: a function that returns whether the harness's entry in the
 * matrix (`Row`) contains them.
 */
const NEEDS: Readonly<Partial<Record<CellName, (row: Row) => boolean>>> = {
  subagent: (row) => row.calls.subagent !== null,
  compaction: (row) => row.compaction !== undefined,
  image: (row) => row.calls.image !== null,
  length_stop: (row) => row.lengthStop !== undefined,
};

/** Returns a planned cell for each harness variant, dialect and test case that the filter selects. */
export function planCells(rows: readonly Row[], { adapters, served, filter = {} }: PlanInput): PlannedCell[] {
  const { harness = [], dialect = [], cell = [] } = filter;
  const isChosen = (names: readonly string[], name: string): boolean => names.length === 0 || names.includes(name);
  const cells = CELL_NAMES.filter((name) => isChosen(cell, name));
  return rows
    .filter((row) => isChosen(harness, row.harness))
    .flatMap((row) =>
      row.variants.flatMap((variant) => {
        const adapter = adapters.get(row.harness);
        const dialects = (variant.dialects ?? adapter?.dialects ?? (['?'] as const)).filter((name) =>
          isChosen(dialect, name),
        );
        return dialects.flatMap((name) => cells.map((cellName) => plan(row, variant, name, cellName, adapter, served)));
      }),
    );
}

function plan(
  row: Row,
  variant: Variant,
  dialect: DialectName | '?',
  cell: CellName,
  adapter: Adapter | undefined,
  served: readonly DialectName[],
): PlannedCell {
  const skipped = (skip: string): SkippedCell => ({ row, variant, dialect, cell, skip });
  if (dialect === '?' || adapter === undefined) return skipped(`floe has no harness ${row.harness}`);
  if (!served.includes(dialect)) return skipped(`floe does not serve ${dialect}`);
  const stated = statedSkip(row, variant, dialect, cell);
  if (stated !== null) return skipped(stated);
  if (NEEDS[cell]?.(row) === false) return skipped(`the row says nothing of ${cell}`);
  if (!adapter.installed) return skipped(`not installed: floe harness install ${row.harness}`);
  return { row, variant, dialect, cell, skip: null };
}

/** Returns the reason that `row.skips` states for skipping a test case with this variant or dialect; `null` when it states none. */
function statedSkip({ skips = {} }: Row, variant: Variant, dialect: DialectName, cell: CellName): string | null {
  return skips[`${cell}@${variant.label}`] ?? skips[`${cell}/${dialect}`] ?? skips[cell] ?? null;
}

/**
 * Throws an Error that names the first invalid key in `skips` of a harness's entry. Without this check, a misspelt key would have no effect
 * and the test case would run.
 */
export function checkRow({ harness, variants, skips = {} }: Row): void {
  const labels = variants.map(({ label }) => label);
  for (const key of Object.keys(skips)) {
    const [, cell = '', , label] = /^([a-z0-9_]+)(\/[a-z_]+|@(.+))?$/.exec(key) ?? [];
    if (!CELL_NAMES.some((name) => name === cell)) {
      throw new Error(`matrix row ${harness}: skips.${key}: there is no such cell`);
    }
    if (label !== undefined && !labels.includes(label)) {
      throw new Error(`matrix row ${harness}: skips.${key}: there is no such variant`);
    }
  }
}
