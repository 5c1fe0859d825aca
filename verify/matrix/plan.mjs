// Which cells there are, and why some are skipped. Pure.

/** In the order of the table. */
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
];

/** What a cell needs of a row; without it the cell is skipped. */
const NEEDS = {
  subagent: (row) => row.calls.subagent ?? null,
  compaction: (row) => row.compaction ?? null,
  image: (row) => row.calls.image ?? null,
  length_stop: (row) => row.lengthStop ?? null,
};

/**
 * One entry for each variant, dialect and cell: `{ row, variant, dialect, cell, skip }`, `skip` being a reason or null.
 *
 * `adapters`: by harness, `{ dialects, version, installed }`; `served`: the dialects that floe has; `filter`: lists of
 * harnesses, dialects and cells, empty for all.
 */
export function planCells(rows, { adapters, served, filter = {} }) {
  const { harness = [], dialect = [], cell = [] } = filter;
  const chosen = (list, name) => list.length === 0 || list.includes(name);
  const plan = [];
  for (const row of rows) {
    if (!chosen(harness, row.harness)) continue;
    const adapter = adapters.get(row.harness);
    for (const variant of row.variants) {
      for (const spoken of variant.dialects ?? adapter?.dialects ?? ['?']) {
        if (!chosen(dialect, spoken)) continue;
        for (const name of CELL_NAMES) {
          if (!chosen(cell, name)) continue;
          plan.push({
            row,
            variant,
            dialect: spoken,
            cell: name,
            skip: reasonToSkip(row, variant, spoken, name, adapter, served),
          });
        }
      }
    }
  }
  return plan;
}

function reasonToSkip(row, variant, dialect, cell, adapter, served) {
  if (adapter === undefined) return `floe has no harness ${row.harness}`;
  if (!served.includes(dialect)) return `floe does not serve ${dialect}`;
  const stated = statedSkip(row, variant, dialect, cell);
  if (stated !== null) return stated;
  if (NEEDS[cell]?.(row) === null) return `the row says nothing of ${cell}`;
  if (!adapter.installed) return `not installed: floe harness install ${row.harness}`;
  return null;
}

/** The row's own reason: for a cell, a cell in one dialect, or a cell of one variant (`<cell>@<label>`). */
export function statedSkip(row, variant, dialect, cell) {
  const { skips = {} } = row;
  return skips[`${cell}@${variant.label}`] ?? skips[`${cell}/${dialect}`] ?? skips[cell] ?? null;
}

/** Names the first mistake of a row, so that a typing error does not become a skipped cell. Throws an Error. */
export function checkRow(row, file) {
  const fail = (text) => {
    throw new Error(`matrix row ${file}: ${text}`);
  };
  if (typeof row?.harness !== 'string') fail('harness must be a name');
  if (!Array.isArray(row.variants) || row.variants.length === 0) fail('variants must list at least one');
  for (const { label, settings } of row.variants) {
    if (typeof label !== 'string' || typeof settings !== 'object') fail('each variant needs label and settings');
  }
  for (const name of ['shell', 'read', 'edit', 'write']) {
    if (typeof row.calls?.[name] !== 'function') fail(`calls.${name} must be a function`);
  }
  const labels = row.variants.map(({ label }) => label);
  for (const key of Object.keys(row.skips ?? {})) {
    const [, cell, , label] = /^([a-z0-9_]+)(\/[a-z_]+|@(.+))?$/.exec(key) ?? [];
    if (!CELL_NAMES.includes(cell)) fail(`skips.${key}: there is no such cell`);
    if (label !== undefined && !labels.includes(label)) fail(`skips.${key}: there is no such variant`);
  }
}
