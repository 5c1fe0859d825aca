import { stringify } from 'yaml';
import type { ColumnKind, Columns } from './columns.ts';
import type { AcceptanceGroup, Manifest } from './manifest.ts';
import { DATA_FOLDER, SESSIONS_FOLDER } from './shards.ts';
import { SESSION_COLUMNS, TRACE_COLUMNS } from './tables.ts';

/** The type of a column as `datasets` names it. */
const FEATURES: Readonly<Record<ColumnKind, object>> = {
  text: { dtype: 'string' },
  json: { dtype: 'string' },
  int32: { dtype: 'int32' },
  float64: { dtype: 'float64' },
  ids: { list: 'int32' },
  mask: { list: 'uint8' },
  logprobs: { list: 'float64' },
};

/** Returns the text of README.md, which describes a set to people and, in its head, to the library `datasets`. */
export function datasetCard(manifest: Manifest): string {
  const { format, encoding, sessions, rows, tokens } = manifest;
  const configs =
    encoding === 'parquet'
      ? [
          configOf(manifest, 'traces', DATA_FOLDER, TRACE_COLUMNS),
          configOf(manifest, 'sessions', SESSIONS_FOLDER, SESSION_COLUMNS),
        ]
      : [configOf(manifest, 'default', DATA_FOLDER, null)];
  // Files of ATIF are read one by one and not as a table. Without rows there is nothing to read.
  const isTable = format !== 'atif' && rows > 0;
  const head = {
    ...(isTable ? { configs: configs.map(({ config }) => config) } : {}),
    ...(isTable ? { dataset_info: configs.map(({ info }) => info) } : {}),
    tags: ['floe', 'reinforcement-learning', 'agent-trajectories'],
  };
  return `---
${stringify(head, { lineWidth: 0 })}---

# Sessions exported by floe

| | |
|---|---|
| Format | ${format}, as ${encoding} |
| Sessions | ${sessions} |
| Rows | ${rows} |
| Tokens of all traces | ${tokens} |

## Accepted sessions by ${cell(manifest.acceptance.by)}

Accepted: ${manifest.acceptance.conditions.map((text) => `\`${cell(text)}\``).join(' and ')}, and usable for training.

| ${cell(manifest.acceptance.by)} | Tasks | Sessions | Accepted | Rate | Sampled tokens |
|---|--:|--:|--:|--:|--:|
${manifest.acceptance.groups.map((group) => tableRow(group.value ?? '(none)', group)).join('\n')}
${tableRow('Total', manifest.acceptance.total)}

\`floe.json\` lists every file with its number of rows and SHA-256.
`;
}

function configOf(
  { splits, files }: Manifest,
  name: string,
  folder: string,
  columns: Columns | null,
): { readonly config: object; readonly info: object } {
  const parts = Object.keys(splits).map((split) => {
    const shards = files.filter(({ path }) => path.startsWith(`${folder}/${split}-`));
    return {
      split,
      paths: shards.map(({ path }) => path),
      rows: shards.reduce((sum, file) => sum + file.rows, 0),
      bytes: shards.reduce((sum, file) => sum + file.bytes, 0),
    };
  });
  const features =
    columns === null ? null : Object.entries(columns).map(([column, kind]) => ({ name: column, ...FEATURES[kind] }));
  return {
    config: {
      config_name: name,
      ...(name === 'traces' ? { default: true } : {}),
      data_files: parts.map(({ split, paths }) => ({ split, path: paths })),
    },
    info: {
      config_name: name,
      ...(features === null ? {} : { features }),
      splits: parts.map(({ split, rows, bytes }) => ({ name: split, num_bytes: bytes, num_examples: rows })),
    },
  };
}

function tableRow(name: string, group: Omit<AcceptanceGroup, 'value'>): string {
  const rate = `${(group.rate * 100).toFixed(1)} %`;
  return `| ${cell(name)} | ${group.tasks} | ${group.sessions} | ${group.accepted} | ${rate} | ${group.sampled_tokens} |`;
}

/** Returns a text as one cell of a table. Markup is escaped, because the text may come from a task. */
function cell(text: string): string {
  return text.replaceAll(/[\p{Cc}\p{Cf}\p{Cs}]/gu, ' ').replaceAll(/[\\`*_[\]<>|&#]/g, '\\$&');
}
