// `npm run verify -- dashboard`: opens every view of the dashboard in Chromium, on a server with real sessions, and checks what it shows, its
// accessibility, and that nothing fails on it.
//
//   npm run verify -- dashboard [--quick] [--screenshots DIR] [--json [FILE]]
//
// With --quick, the sums are checked with fewer simulated sessions.
//
// Ends with "dashboard: V views, P passed, F failed".
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { bundledTokenizerPath, SIM_MODEL } from '@floe-rl/sim';
import type { Browser } from 'playwright-core';
import { harnessDir } from '#floe/commands/home';
import { startTestService } from '#floe/testing/index';
import { resultsOf } from '../envs/results.ts';
import { Checks } from '../runner/checks.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { missingBrowser, openBrowser, openPage, seriousViolations } from './browser.ts';
import { checkRecorded } from './recorded.ts';
import { ENDLESS_TASK, manyTasks, scenarios, TASKS } from './sessions.ts';
import { startSimulated } from './simulated.ts';
import { checkPrefix, checkRestart, checkSaved, checkSignIn, type Finding } from './situations.ts';
import { SUM_VIEWS } from './sum-views.ts';
import { type Shown, VIEWS, type View } from './views.ts';

const { options, json } = readOptions({
  quick: { type: 'boolean', default: false },
  screenshots: { type: 'string' },
});
/** Number of simulated sessions. */
const SIMULATED = options.quick ? 1_000 : 10_000;
const THEMES = ['light', 'dark'] as const;

async function runSessions(service: Awaited<ReturnType<typeof startTestService>>): Promise<Shown> {
  const names = Object.keys(TASKS) as (keyof typeof TASKS)[];
  // The other sessions run first, so that the sessions of `TASKS` are the newest.
  const others = options.quick ? [] : await resultsOf(service.client, await manyTasks());
  const results = await resultsOf(service.client, Object.values(TASKS));
  const firstOf = (name: keyof typeof TASKS): (typeof results)[number] => {
    const before = names.slice(0, names.indexOf(name)).reduce((sum, one) => sum + (TASKS[one].num_samples ?? 1), 0);
    const result = results[before];
    if (result === undefined) throw new Error(`the task ${name} has no result`);
    return result;
  };
  const ids = <T>(of: (name: keyof typeof TASKS) => T) =>
    Object.fromEntries(names.map((name) => [name, of(name)])) as Record<keyof typeof TASKS, T>;
  const { task_id: running } = await service.client.submit(ENDLESS_TASK);
  return {
    running,
    results: [...others, ...results],
    tasks: ids((name) => firstOf(name).task_id),
    sessions: ids((name) => firstOf(name).session_id),
  };
}

async function checkView<Known>(browser: Browser, url: string, view: View<Known>, known: Known): Promise<Finding> {
  const { page, problems } = await openPage(browser, url);
  const violations: string[] = [];
  try {
    await page.goto(`${url}/dashboard/${view.at(known)}`);
    await view.check(page, known);
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme });
      violations.push(...(await seriousViolations(page)).map((violation) => `${theme}: ${violation}`));
      if (options.screenshots !== undefined) {
        mkdirSync(options.screenshots, { recursive: true });
        const name = `${view.name.replaceAll(/[^a-z]+/g, '-')}-${theme}.png`;
        await page.screenshot({ path: join(options.screenshots, name), fullPage: true });
      }
    }
  } catch (error) {
    problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await page.close();
  }
  const isExpected = (problem: string): boolean => problem.includes(`status of ${view.refused}`);
  return { view: view.name, problems: problems.filter((problem) => !isExpected(problem)), violations };
}

/** Checks the views of sums and of the analysis on a server with simulated sessions. */
async function checkSums(browser: Browser): Promise<Finding[]> {
  const { url, results, close } = await startSimulated(SIMULATED);
  try {
    const findings: Finding[] = [];
    for (const view of SUM_VIEWS) findings.push(await checkView(browser, url, view, results));
    return findings;
  } finally {
    await close();
  }
}

async function run(): Promise<void> {
  const findings: Finding[] = [];
  const browser = await openBrowser();
  const service = await startTestService({
    sim: { scenarios: await scenarios() },
    node: { harness_dir: harnessDir() },
    server: { tokenizers: { [SIM_MODEL]: bundledTokenizerPath() } },
  });
  try {
    const shown = await runSessions(service);
    for (const view of VIEWS) findings.push(await checkView(browser, service.url, view, shown));
    findings.push(...(await checkSums(browser)));
    findings.push(await checkSaved(browser, service.url, shown.sessions.hostile));
    findings.push(await checkPrefix(browser, service.url, shown.sessions.turns));
    findings.push(await checkRecorded(browser, service.client, shown));
    findings.push(await checkSignIn(browser), await checkRestart(browser));
  } finally {
    await browser.close();
    await service.close();
  }
  const checks = new Checks();
  for (const { view, problems, violations } of findings) checks.report(view, [...problems, ...violations]);
  const { passed, failed } = checks;
  const axe = findings.reduce((sum, { violations }) => sum + violations.length, 0);
  const keys = { views: findings.length, passed, failed, axe_serious: axe };
  const line = `dashboard: ${keys.views} views, ${passed} passed, ${failed} failed`;
  conclude({ line, keys, details: { ...keys, findings }, isPassed: failed === 0, json });
}

const missing = missingBrowser();
if (missing === null) await run();
else console.log(`dashboard: skipped: ${missing}`);
