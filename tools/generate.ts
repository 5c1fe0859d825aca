/**
 * `npm run generate` writes the files that are derived from the code. With `--check` it writes nothing, and fails when a committed file
 * differs. The files:
 * - docs/openapi.json, from the schemas and the route table.
 * - docs/errors.md, from the error table.
 * - docs/cli.md, from the commands.
 * - docs/typescript-reference.md and docs/python-reference.md, from the clients.
 * - docs/cluster-reference.md and docs/configuration.md, from the schemas of their files.
 * - docs/result-fields.md, from the schemas of results.
 * - docs/metrics.md, from the metric registries.
 * - The table of denied system calls in docs/runtimes.md.
 * - packages/sim/assets/tokenizer.json, from its training text.
 * - python/src/floe/api_types.py, from the schemas.
 */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ERROR_TABLE } from '@floe-rl/core';
import { createGatewayMetrics, ServerMetrics } from '@floe-rl/observe';
import type { Registry } from 'prom-client';
import { configurationPage } from '#floe/commands/config-file';
import { clusterReference } from '#floe/deployment/reference';
import { DENIED_GROUPS } from '#sandbox/backends/denied-calls';
import { openApi } from '#server/rollout/index';
import { COUNTERS } from '#server/rollout/status/counters';
import { commandLinePage } from './reference/command-line.ts';
import { pythonPage } from './reference/python-api.ts';
import { pythonTypes } from './reference/python-types.ts';
import { resultFieldsPage } from './reference/result-fields.ts';
import { typescriptPage } from './reference/typescript-api.ts';
import { repositoryRoot } from './repository.ts';
import { tokenizerFile } from './tokenizer/build.ts';

const ROOT = repositoryRoot();

function errorsPage(): string {
  const items = Object.entries(ERROR_TABLE).map(
    ([code, { status, retryable, meaning }]) =>
      `- \`${code}\` (${status}${retryable ? ', retryable' : ''}): ${meaning}`,
  );
  return [
    '# Error codes',
    '',
    'Generated from `packages/core/src/errors.ts` by `npm run generate`. Every refusal on the control API has this body:',
    '',
    '```json',
    '{"error": {"code": "conflict", "message": "…", "details": {}, "retryable": false}}',
    '```',
    '',
    'A retryable error may succeed when the same call is repeated; the others need a different call. Codes that no request is refused',
    'with appear in the `error` field of a session. `schema_violation` lists each wrong field in `details.issues`, as',
    '`{"path", "message"}`. Replies with status 429 and 503 carry `Retry-After`.',
    '',
    'The command `floe` prints the same codes. It exits with 2 for a code with a status below 500, and with 1 for the others;',
    '[when the first start fails](guides/first-start.md) lists all exit codes.',
    '',
    ...items,
    '',
  ].join('\n');
}

/** Returns the page on runtimes with a new table of denied calls. The rest of the page is written by hand. */
function runtimesPage(): string {
  const rows = DENIED_GROUPS.map(({ calls, condition, reason }) => {
    const names = calls.map(({ name }) => `\`${name}\``).join(', ');
    const errors = [...new Set(calls.map(({ errno }) => `\`${errno}\``))].join(', ');
    return `| ${names}${condition === null ? '' : ` ${condition}`} | ${errors} | ${reason} |`;
  });
  const table = ['| Call | Error | Reason |', '|---|---|---|', ...rows].join('\n');
  const page = readFileSync(join(ROOT, 'docs/runtimes.md'), 'utf8');
  const section =
    /(<!-- Generated from packages\/sandbox\/src\/backends\/denied-calls\.ts .*? -->\n).*?(<!-- End -->)/s;
  if (!section.test(page)) throw new Error('docs/runtimes.md has no place for the table of denied calls');
  return page.replace(section, (_, start: string, end: string) => `${start}\n${table}\n\n${end}`);
}

function metricsPage(): string {
  const counters = Object.entries(COUNTERS).map(([name, help]) =>
    item(`floe_server_${name}_total`, 'counter', [], help),
  );
  return [
    '# Metrics',
    '',
    'Generated from the registries by `npm run generate`; [observability.md](observability.md) explains how to read them. Both processes',
    "also export prom-client's metrics of a Node process: `process_*` and `nodejs_*`, including the lag of the event loop.",
    '',
    ...['## Of a rollout server', '', ...metricsList(new ServerMetrics().registry, counters), ''],
    ...['## Of a gateway node', '', ...metricsList(createGatewayMetrics().registry, []), ''],
  ].join('\n');
}

function metricsList(registry: Registry, more: readonly string[]): string[] {
  const own = registry.getMetricsAsArray().filter(({ name }) => name.startsWith('floe_'));
  return [...own.map(({ name, type, help }) => item(name, String(type), labelNames(registry, name), help)), ...more];
}

/**
 * Returns the names of a metric's labels. prom-client declares them only on its metric classes, not on the type that a registry returns.
 */
function labelNames(registry: Registry, name: string): readonly string[] {
  const metric: unknown = registry.getSingleMetric(name);
  if (typeof metric !== 'object' || metric === null || !('labelNames' in metric)) return [];
  return Array.isArray(metric.labelNames) ? metric.labelNames.map(String) : [];
}

function item(name: string, type: string, labels: readonly string[], help: string): string {
  const by = labels.length === 0 ? '' : ` by ${labels.map((label) => `\`${label}\``).join(', ')}`;
  return `- \`${name}\` (${type}${by}): ${help}`;
}

const files = {
  'docs/openapi.json': `${JSON.stringify(openApi(), null, 2)}\n`,
  'docs/errors.md': errorsPage(),
  'docs/cluster-reference.md': clusterReference(),
  'docs/cli.md': await commandLinePage(),
  'docs/configuration.md': configurationPage(),
  'docs/metrics.md': metricsPage(),
  'docs/python-reference.md': pythonPage(),
  'docs/result-fields.md': resultFieldsPage(),
  'docs/runtimes.md': runtimesPage(),
  'docs/typescript-reference.md': typescriptPage(),
  'packages/sim/assets/tokenizer.json': tokenizerFile(),
  'python/src/floe/api_types.py': pythonTypes(),
};

let differs = 0;
for (const [path, text] of Object.entries(files)) {
  const file = join(ROOT, path);
  if (!process.argv.includes('--check')) {
    writeFileSync(file, text);
    continue;
  }
  const committed = existsSync(file) ? readFileSync(file, 'utf8') : null;
  if (committed === text) continue;
  console.error(`${path} differs from the code: run \`npm run generate\` and commit it`);
  differs++;
}
process.exit(differs > 0 ? 1 : 0);
