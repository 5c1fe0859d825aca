import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { COUNTERS } from '../../server/src/rollout/status/counters.ts';
import { createGatewayMetrics } from '../src/gateway-metrics.ts';
import { ServerMetrics } from '../src/server-metrics.ts';

type Panel = {
  id: number;
  type: string;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: { refId: string; expr: string }[];
};
type Dashboard = { title: string; schemaVersion: number; panels: Panel[]; templating: { list: { name: string }[] } };

const dashboard: Dashboard = JSON.parse(
  readFileSync(new URL('../../../deploy/grafana/floe.json', import.meta.url), 'utf8'),
);
const shown = dashboard.panels.filter((panel) => panel.type !== 'row');

type Known = { readonly labels: ReadonlySet<string> };

/** Returns every Prometheus series that a server or a node exports, by name. */
function series(): Map<string, Known> {
  const found = new Map<string, Known>();
  for (const { registry } of [createGatewayMetrics(), new ServerMetrics()]) {
    for (const { name, type } of registry.getMetricsAsArray() as unknown as { name: string; type: string }[]) {
      const metric = registry.getSingleMetric(name) as unknown as { labelNames: string[] };
      const suffixes = type === 'histogram' ? ['_bucket', '_sum', '_count'] : [''];
      for (const suffix of suffixes) {
        found.set(name + suffix, { labels: new Set([...metric.labelNames, ...(suffix === '_bucket' ? ['le'] : [])]) });
      }
    }
  }
  // The counters of the server's status are added by name, because a server creates their series only when it reads its status.
  for (const name of Object.keys(COUNTERS)) found.set(`floe_server_${name}_total`, { labels: new Set() });
  return found;
}

const NAME = /\b(?:floe|nodejs|process)_[a-z0-9_]+/g;
/** Labels that Prometheus adds to every series. */
const TARGET_LABELS = ['job', 'instance'];

describe('the dashboard', () => {
  const known = series();
  const expressions = shown.flatMap(({ title, targets = [] }) => targets.map(({ expr }) => ({ title, expr })));

  it('queries only series that servers or nodes export', () => {
    expect(expressions.length).toBeGreaterThan(40);
    for (const { title, expr } of expressions) {
      const names = expr.match(NAME) ?? [];
      expect(names.length, title).toBeGreaterThan(0);
      for (const name of names) expect(known.has(name), `${title}: ${name}`).toBe(true);
    }
  });

  it('groups and filters only by labels that the series have', () => {
    for (const { title, expr } of expressions) {
      const labels = new Set((expr.match(NAME) ?? []).flatMap((name) => [...(known.get(name)?.labels ?? [])]));
      for (const label of TARGET_LABELS) labels.add(label);
      const groups = [...expr.matchAll(/by \(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/, */));
      const selected = [...expr.matchAll(/([a-z_]+)(?:=~|!=|=)"/g)].map(([, label = '']) => label);
      for (const label of [...groups, ...selected])
        expect(labels.has(label), `${title}: ${label} in ${expr}`).toBe(true);
    }
  });

  it('shows every series of floe', () => {
    const text = expressions.map(({ expr }) => expr).join('\n');
    const bases = [...known.keys()]
      .filter((name) => name.startsWith('floe_'))
      .map((name) => name.replace(/_(bucket|sum|count)$/, ''));
    const unseen = [...new Set(bases)].filter((name) => !text.includes(name));
    expect(unseen).toEqual([]);
  });

  it('has panels with unique ids and titles that do not overlap', () => {
    expect(dashboard.schemaVersion).toBeGreaterThanOrEqual(39);
    expect(new Set(dashboard.panels.map(({ id }) => id)).size).toBe(dashboard.panels.length);
    expect(new Set(shown.map(({ title }) => title)).size).toBe(shown.length);
    const cells = new Set<string>();
    for (const { title, gridPos } of dashboard.panels) {
      expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24);
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++) {
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
          expect(cells.has(`${x},${y}`), `${title} at ${x},${y}`).toBe(false);
          cells.add(`${x},${y}`);
        }
      }
    }
  });

  it('uses only variables that it defines', () => {
    const defined = new Set([...dashboard.templating.list.map(({ name }) => name), '__rate_interval', '__all']);
    const used = [...JSON.stringify(dashboard).matchAll(/\$\{?([a-z_]+)/g)].map(([, name = '']) => name);
    expect(used.filter((name) => !defined.has(name))).toEqual([]);
  });
});
