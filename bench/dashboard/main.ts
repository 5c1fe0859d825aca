// Measures the dashboard in Chromium:
// - the time until a list of 100,000 sessions is painted;
// - the time until the page shows what a filter selects;
// - the time until a session of 400 turns and 400,000 tokens is open;
// - the CPU time that an open page costs the server.
//
// With --inspect, the log viewer of Inspect opens a log with the same messages.
//
//   npm run bench -- dashboard [--sessions N] [--inspect PYTHON] [--json]
//
// PYTHON is an interpreter that has the package inspect-ai.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Completion, encodeRecords } from '@floe-rl/capture';
import { FloeClient, NodeApi } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import type { ChatMessage } from '@floe-rl/core/schema';
import { openStore } from '@floe-rl/server';
import type { Browser, Page } from 'playwright-core';
import { buildGraph } from '#capture/tokens/graph';
import { buildTrajectory } from '#capture/tokens/trajectory';
import { createRolloutServer } from '#server/rollout/index';
import { repositoryRoot } from '../../tools/repository.ts';
import { wholeNumber } from '../../tools/whole-number.ts';
import { missingBrowser, openBrowser } from '../../verify/dashboard/browser.ts';
import { addEndedSessions } from '../ended-sessions.ts';
import { sessionOf } from '../long-session.ts';
import { median, printReport, type ReportRow, round } from '../report.ts';

const { values: options } = parseArgs({
  options: {
    sessions: { type: 'string', default: '100000' },
    inspect: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
});
const SESSIONS = wholeNumber('sessions', options.sessions);
const TURNS = 400;
const TOKENS = 400_000;
const ROUNDS = 5;
/** Time for which the CPU time of the server is measured, with a page and without. */
const WATCHED_MS = 30_000;

/** A change of a filter on a page: the field, its value, and what the page shows once it has applied it. */
type FilterChange = { readonly at: string; readonly field: string; readonly value: string; readonly shows: string };

const FILTERS: readonly FilterChange[] = [
  { at: '#/sessions', field: 'outcome', value: 'agent_timeout', shows: '.list .badge.warn' },
  { at: '#/sessions', field: 'source', value: 'dataset-3', shows: '.list tbody tr' },
  { at: '#/sessions', field: 'turns from', value: '30', shows: '.list tbody tr' },
  { at: '#/groups', field: 'source', value: 'dataset-3', shows: 'tbody tr' },
  { at: '#/analysis/fidelity', field: 'source', value: 'dataset-3', shows: 'tbody tr' },
  { at: '#/analysis/cost', field: 'trainer', value: 'evaluation', shows: 'tbody tr' },
  { at: '#/analysis/tools', field: 'source', value: 'dataset-3', shows: 'tbody tr' },
  { at: '#/analysis/tools', field: 'turns from', value: '30', shows: 'tbody tr' },
  { at: '#/analysis/rewards', field: 'source', value: 'dataset-3', shows: 'tbody tr' },
  { at: '#/analysis/timeline', field: 'source', value: 'dataset-3', shows: '.timeline a' },
];

/** Opens an address in a new page, and resolves to the time until a selector is painted. */
async function timeToShow(browser: Browser, url: string, selector: string): Promise<number> {
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
  try {
    const startedMs = systemClock.monotonicMs();
    await page.goto(url, { waitUntil: 'commit' });
    await page.locator(selector).first().waitFor({ timeout: 60_000 });
    return systemClock.monotonicMs() - startedMs;
  } finally {
    await page.close();
  }
}

type PageElement = {
  readonly textContent: string | null;
  querySelector(selector: string): { value: string; dispatchEvent(event: Event): boolean } | null;
};

// Declares the parts of the page's DOM for the functions that run in the page.
declare const document: {
  readonly body: PageElement;
  createTreeWalker(root: PageElement, kinds: number): { nextNode(): object | null; readonly currentNode: PageElement };
  querySelector(selector: string): PageElement | null;
  querySelectorAll(selector: string): Iterable<PageElement>;
};
declare const requestAnimationFrame: (resolve: (ms: number) => void) => number;
declare const location: { hash: string };

/**
 * Times after a change of a filter in milliseconds. `shown`: until the selected list or table is painted. `whole`: until the whole view is
 * painted.
 */
type FilterTimes = { readonly shown: number; readonly whole: number };

/** Changes a filter as a reader does. The times are measured in the page. */
async function timesOfFilter(page: Page, { field, value, shows }: FilterChange): Promise<FilterTimes> {
  return page.evaluate(
    async ({ field: name, value: wanted, shows: selector }) => {
      const labels = [...document.querySelectorAll('form.filters label')];
      const label = labels.find((one) => one.textContent?.trim().startsWith(name));
      const input = label?.querySelector('input, select');
      if (input == null) throw new Error(`there is no field ${name}`);
      // Resolves to the time of the next frame in ms.
      const painted = (): Promise<number> => new Promise((resolve) => requestAnimationFrame(resolve));
      const isLoading = (): boolean =>
        [...document.querySelectorAll('.quiet')].some((one) => one.textContent === 'Loading…');
      const started = await painted();
      input.value = wanted;
      input.dispatchEvent(new Event('change', { bubbles: true }));
      // A view shows "Loading…" until it has the data of the new filter.
      let now = await painted();
      let shown: number | null = null;
      while (shown === null || isLoading()) {
        if (now - started > 60_000) throw new Error(`${name}=${wanted} shows no ${selector}`);
        const isShown = document.querySelector(selector) !== null;
        now = await painted();
        if (isShown) shown ??= now - started;
      }
      return { shown, whole: (await painted()) - started };
    },
    { field, value, shows },
  );
}

/** Opens a view without filters, waits until it is loaded, and measures one change of a filter. Resolves to medians. */
async function measureFilter(browser: Browser, url: string, change: FilterChange): Promise<FilterTimes> {
  const times: FilterTimes[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
    await page.goto(`${url}/dashboard/${change.at}`);
    await page.locator(change.shows.replace('.badge.warn', 'tbody tr')).first().waitFor({ timeout: 60_000 });
    await page.waitForLoadState('networkidle');
    times.push(await timesOfFilter(page, change));
    await page.close();
  }
  return { shown: median(times.map((one) => one.shown)) ?? 0, whole: median(times.map((one) => one.whole)) ?? 0 };
}

async function deliverLongSession(url: string): Promise<{ id: string; completions: readonly Completion[] }> {
  const client = new FloeClient({ url });
  const node = new NodeApi({ url, nodeId: 'bench' });
  try {
    const size = { max_init_workers: 1, ready_size: 1, max_run_workers: 1, max_postrun_workers: 1 };
    await node.register({ ...size, host: null, dispatch_policy: 'pipeline', gateway_url: null, memory_mb: null });
    await client.submit({ instruction: '', agent: { harness: 'shell', custom_shell: 'true' }, max_attempts: 1 });
    const [lease] = await node.lease({ slots: 1, wait_seconds: 5 });
    if (lease === undefined) throw new Error('nothing was leased');
    const completions = sessionOf(TURNS, TOKENS);
    const spec = { strategy: 'prefix_merging', config: {} };
    const built = buildTrajectory({ spec, completions, status: 'COMPLETED', reward: 1, error: null, metadata: {} });
    const summary = sessionSummary(lease, 'completed', {
      reward: 1,
      trace_count: 1,
      trainable_tokens: built.audit.tokens.trained,
      completion_count: completions.length,
      audit: built.audit,
    });
    const records = encodeRecords(completions, buildGraph(completions));
    await node.deliverResult({ summary, trajectory: built.json, completions: records, artifacts: null });
    return { id: lease.session_id, completions };
  } finally {
    await Promise.all([client.close(), node.close()]);
  }
}

/** Resolves to the share of one processor that this process uses. */
async function cpuShare(): Promise<number> {
  const [before, startedMs] = [process.cpuUsage(), systemClock.monotonicMs()];
  await sleep(systemClock, WATCHED_MS, new AbortController().signal);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000 / (systemClock.monotonicMs() - startedMs);
}

/** A running viewer of Inspect, with the address of its only sample. */
type InspectViewer = { readonly url: string; readonly sample: string; close(): Promise<void> };

/** Starts Inspect's log viewer with a log that has the same messages as the session. */
async function startInspect(python: string, completions: readonly Completion[]): Promise<InspectViewer> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-inspect-'));
  const last = completions.at(-1);
  const messages: ChatMessage[] = last === undefined ? [] : [...last.request.messages, last.message];
  const file = join(dir, 'messages.json');
  await writeFile(file, JSON.stringify(messages));
  await mkdir(join(dir, 'logs'));
  const script = join(repositoryRoot(), 'bench', 'dashboard', 'inspect_log.py');
  const writer = spawn(python, [script, file, join(dir, 'logs')], { stdio: 'inherit' });
  const [code] = (await once(writer, 'exit')) as [number | null];
  if (code !== 0) throw new Error(`the log of Inspect was not written: exit code ${code}`);
  const port = await freePort();
  const viewer = spawn(
    python,
    ['-m', 'inspect_ai', 'view', 'start', '--log-dir', join(dir, 'logs'), '--port', String(port)],
    { stdio: 'ignore' },
  );
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 300 && !(await answers(url)); tries++) {
    await sleep(systemClock, 100, new AbortController().signal);
  }
  const close = async (): Promise<void> => {
    viewer.kill();
    await once(viewer, 'exit');
    await rm(dir, { recursive: true, force: true });
  };
  return { url, sample: '#/logs/bench.eval/samples/sample/session/1/messages', close };
}

async function answers(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}

/**
 * Opens a place of a page that is loaded, and resolves to the median time until a text of the session is painted. It is measured in the page,
 * because a search by Playwright reads the text of every element and would take longer than the page.
 */
async function timeToOpen(browser: Browser, url: string, place: string, text: string): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
    await page.goto(url);
    await page.waitForLoadState('networkidle');
    times.push(
      await page.evaluate(
        async ({ hash, wanted }) => {
          const TEXT_NODES = 4;
          const painted = (): Promise<number> => new Promise((resolve) => requestAnimationFrame(resolve));
          const isShown = (): boolean => {
            const texts = document.createTreeWalker(document.body, TEXT_NODES);
            while (texts.nextNode() !== null) if (texts.currentNode.textContent?.includes(wanted)) return true;
            return false;
          };
          if (isShown()) throw new Error(`${wanted} is shown before ${hash} is opened`);
          const started = await painted();
          location.hash = hash;
          let now = await painted();
          while (!isShown()) {
            if (now - started > 60_000) throw new Error(`${hash} does not show ${wanted}`);
            now = await painted();
          }
          return (await painted()) - started;
        },
        { hash: place, wanted: text },
      ),
    );
    await page.close();
  }
  return median(times) ?? 0;
}

async function run(): Promise<void> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-dashboard-'));
  const { store, blobs } = await openStore({ dir, database: null, blobs: null, clock: systemClock });
  const server = await createRolloutServer({ port: 0 }, { store, blobs, clock: systemClock, validateTask: () => {} });
  const browser = await openBrowser();
  const rows: ReportRow[] = [];
  try {
    await addEndedSessions(store, SESSIONS);
    const { url } = await server.listen();
    const { id, completions } = await deliverLongSession(url);

    const paints: number[] = [];
    for (let i = 0; i < ROUNDS; i++) {
      paints.push(await timeToShow(browser, `${url}/dashboard/#/sessions`, '.list tbody tr'));
    }
    const paintMs = median(paints) ?? 0;
    rows.push(['list of sessions painted', `${round(paintMs)} ms`, 'in a new page']);

    let filterMs = 0;
    let wholeMs = 0;
    for (const change of FILTERS) {
      const { shown, whole } = await measureFilter(browser, url, change);
      filterMs = Math.max(filterMs, shown);
      wholeMs = Math.max(wholeMs, whole);
      rows.push([
        `filter ${change.field} at ${change.at}`,
        `${round(shown)} ms`,
        `until its list is painted; all charts after ${round(whole)} ms`,
      ]);
    }

    const text = String(completions[0]?.request.messages[0]?.content).slice(0, 30);
    const openMs = await timeToOpen(browser, `${url}/dashboard/#/sessions`, `#/sessions/${id}`, text);
    rows.push(['session opened', `${round(openMs)} ms`, `${TURNS} turns, ${TOKENS} tokens`]);

    const idle = await cpuShare();
    const page = await browser.newPage();
    await page.goto(`${url}/dashboard/#/`);
    await page.waitForLoadState('networkidle');
    const watched = await cpuShare();
    await page.close();
    const share = Math.max(0, watched - idle);
    rows.push(['CPU time of the server for an open page', `${round(100 * share)} %`, 'of one processor; the overview']);

    const inspectMs = await inspectTime(browser, completions, text);
    if (inspectMs !== null)
      rows.push(['the same messages in Inspect', `${round(inspectMs)} ms`, 'from its list of logs']);
    printReport(`The dashboard with ${SESSIONS} ended sessions`, rows, {
      paint_ms: round(paintMs),
      filter_ms: round(filterMs),
      filter_whole_view_ms: round(wholeMs),
      session_open_ms: round(openMs),
      cpu_share: share,
      inspect_open_ms: inspectMs === null ? null : round(inspectMs),
      ratio_to_inspect: inspectMs === null ? null : openMs / inspectMs,
    });
  } finally {
    await browser.close();
    await server.close();
    await store.close();
    await rm(dir, { recursive: true, force: true });
  }
}

/** Resolves to the time that Inspect takes to open the session; `null` without --inspect. */
async function inspectTime(browser: Browser, completions: readonly Completion[], text: string): Promise<number | null> {
  if (options.inspect === undefined) return null;
  const viewer = await startInspect(options.inspect, completions);
  try {
    return await timeToOpen(browser, viewer.url, viewer.sample, text);
  } finally {
    await viewer.close();
  }
}

const missing = missingBrowser();
if (missing === null) await run();
else console.log(`dashboard: skipped: ${missing}`);
