/**
 * Writes what the documentation takes from the code: docs/openapi.json from the schemas and the route table, docs/errors.md
 * from the error table, docs/cluster-reference.md from the schemas of its files, docs/configuration.md likewise,
 * docs/metrics.md from the registries. Needs dist/.
 *
 *   node tools/generate-docs.mjs           write
 *   node tools/generate-docs.mjs --check   fail when a committed file differs
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

async function compiled(path) {
  try {
    return await import(new URL(`../dist/${path}`, import.meta.url).href);
  } catch (cause) {
    if (cause.code !== 'ERR_MODULE_NOT_FOUND') throw cause;
    console.error(`dist/${path} is missing: run \`npm run build\` first`);
    process.exit(2);
  }
}

const { openApi } = await compiled('rollout/index.js');
const { ERROR_TABLE } = await compiled('core/errors.js');
const { configurationPage } = await compiled('cli/config-file.js');
const { clusterReference } = await compiled('cluster/reference.js');
const { createGatewayMetrics } = await compiled('observe/metrics.js');
const { ServerMetrics } = await compiled('observe/server-metrics.js');
const { COUNTERS } = await compiled('rollout/status/counters.js');

function errorsPage() {
  const rows = Object.entries(ERROR_TABLE).map(
    ([code, { status, retryable, meaning }]) =>
      `| \`${code}\` | ${status} | ${retryable ? 'yes' : 'no'} | ${meaning} |`,
  );
  return [
    '# Error codes',
    '',
    'Generated from `src/core/errors.ts` by `npm run generate`. Every refusal on the control API has this body:',
    '',
    '```json',
    '{"error": {"code": "conflict", "message": "…", "details": {}, "retryable": false}}',
    '```',
    '',
    'A retryable error may go away when the same call is made again; the others need a different call. Codes without a refusal of',
    'their own appear in the `error` field of a session. `schema_violation` lists each wrong field in `details.issues`, as',
    '`{"path", "message"}`. Replies with status 429 and 503 carry `Retry-After`.',
    '',
    '| Code | Status | Retryable | Meaning |',
    '|---|---|---|---|',
    ...rows,
    '',
  ].join('\n');
}

function metricsPage() {
  const counters = Object.entries(COUNTERS).map(([name, help]) =>
    row(`floe_server_${name}_total`, 'counter', [], help),
  );
  return [
    '# Metrics',
    '',
    'Generated from the registries by `npm run generate`; [observability.md](observability.md) says how to read them. Beside these, both have',
    "what prom-client tells of a Node process: `process_*` and `nodejs_*`, the event loop's lag among them.",
    '',
    ...['## Of a rollout server', '', ...metricsTable(new ServerMetrics().registry, counters), ''],
    ...['## Of a gateway node', '', ...metricsTable(createGatewayMetrics().registry, []), ''],
  ].join('\n');
}

function metricsTable(registry, more) {
  const own = registry.getMetricsAsArray().filter(({ name }) => name.startsWith('floe_'));
  const rows = own.map(({ name, type, help }) => row(name, type, registry.getSingleMetric(name).labelNames, help));
  return ['| Name | Type | Labels | What |', '|---|---|---|---|', ...rows, ...more];
}

function row(name, type, labels, help) {
  return `| \`${name}\` | ${type} | ${labels.map((label) => `\`${label}\``).join(', ')} | ${help} |`;
}

const pages = {
  'docs/openapi.json': `${JSON.stringify(openApi(), null, 2)}\n`,
  'docs/errors.md': errorsPage(),
  'docs/cluster-reference.md': clusterReference(),
  'docs/configuration.md': configurationPage(),
  'docs/metrics.md': metricsPage(),
};

let differs = 0;
for (const [path, text] of Object.entries(pages)) {
  const file = join(ROOT, path);
  if (!process.argv.includes('--check')) {
    writeFileSync(file, text);
    continue;
  }
  let committed = null;
  try {
    committed = readFileSync(file, 'utf8');
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
  }
  if (committed === text) continue;
  console.error(`${path} is not what the code says: run \`npm run generate\` and commit it`);
  differs++;
}
process.exit(differs > 0 ? 1 : 0);
