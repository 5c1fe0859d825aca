import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { silentLogger } from '@floe-rl/observe';
import type { Browser } from 'playwright-core';
import { dashboardLink } from '#floe/commands/dashboard-link';
import { startServer } from '#floe/up/stack';
import { openPage, seriousViolations } from './browser.ts';
import { VISIBLE_HOSTILE } from './sessions.ts';
import { pressTwice } from './views.ts';

/** The findings of one check: problems on the page, and serious violations of accessibility. */
export type Finding = {
  readonly view: string;
  readonly problems: readonly string[];
  readonly violations: readonly string[];
};

/** Path of the server behind the reverse proxy of {@link checkPrefix}. */
const PREFIX = '/teams/rl';

/** Checks that the page works behind a reverse proxy that serves the server below a path. */
export async function checkPrefix(browser: Browser, url: string, sessionId: string): Promise<Finding> {
  const proxy = createServer((incoming, reply) => {
    const path = incoming.url ?? '';
    if (!path.startsWith(PREFIX)) return reply.writeHead(404).end();
    const { method, headers } = incoming;
    const forwarded = request(new URL(path.slice(PREFIX.length), url), { method, headers }, (answer) => {
      reply.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(reply);
    });
    incoming.pipe(forwarded);
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  const { page, problems } = await openPage(browser, origin);
  try {
    await page.goto(`${origin}${PREFIX}/dashboard`);
    await page.getByRole('link', { name: 'Sessions' }).click();
    await page.getByRole('link', { name: sessionId }).click();
    await page.locator('.calls > li').first().waitFor();
    if (!page.url().startsWith(`${origin}${PREFIX}/dashboard/#/`)) throw new Error(`the address is ${page.url()}`);
  } catch (error) {
    problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await page.close();
    proxy.closeAllConnections();
    await new Promise((resolve) => proxy.close(resolve));
  }
  return { view: 'below a path of a reverse proxy', problems, violations: [] };
}

/** Checks that a session saved as one file shows everything without a server, and runs nothing that an agent wrote. */
export async function checkSaved(browser: Browser, url: string, sessionId: string): Promise<Finding> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
  const file = join(dir, 'session.html');
  const online = await openPage(browser, url);
  const saved = await openPage(browser, `file://${file}`);
  try {
    await online.page.goto(`${url}/dashboard/#/sessions/${sessionId}`);
    const download = online.page.waitForEvent('download');
    await online.page.getByRole('button', { name: 'Save as one HTML file' }).click();
    await (await download).saveAs(file);
    await saved.page.goto(`file://${file}`);
    await saved.page.getByText(VISIBLE_HOSTILE).first().waitFor();
    if (await saved.page.evaluate(() => 'broken' in globalThis)) throw new Error('markup of the agent was run');
    await saved.page.getByRole('link', { name: 'calls' }).click();
    await saved.page.getByRole('columnheader', { name: 'Engine time' }).waitFor();
  } catch (error) {
    saved.problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await online.page.close();
    await saved.page.close();
    await rm(dir, { recursive: true, force: true });
  }
  return { view: 'a session as one file', problems: [...online.problems, ...saved.problems], violations: [] };
}

/** Checks that a server with a token shows nothing without it, and everything with it. */
export async function checkSignIn(browser: Browser): Promise<Finding> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
  const token = 'a-control-token-of-the-check';
  const viewer = 'a-token-that-may-only-read';
  const tokens = [{ token: viewer, role: 'viewer' as const }];
  const server = await startServer(dir, { port: 0, token, tokens }, silentLogger);
  const { page, problems } = await openPage(browser, server.url);
  const violations: string[] = [];
  try {
    await page.goto(`${server.url}/dashboard`);
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    violations.push(...(await seriousViolations(page)));
    await page.getByLabel('Control token').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('The server refused this token.').waitFor();
    await page.getByLabel('Control token').fill(token);
    await page.keyboard.press('Enter');
    await page.getByText('No work waits and none runs.').waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await page.goto(dashboardLink(server.url, token));
    await page.getByText('No work waits and none runs.').waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.goto(dashboardLink(server.url, viewer));
    await page.getByRole('link', { name: 'Nodes and engines' }).click();
    await pressTwice(page, 'Pause the engines');
    await page.getByText('requires a token of trainer or admin').waitFor();
    if (page.url().includes(token)) throw new Error('the token stays in the address');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  } catch (error) {
    problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await page.close();
    await server.close();
    await rm(dir, { recursive: true, force: true });
  }
  return { view: 'sign in', problems: problems.filter((problem) => !/status of 40[13]/.test(problem)), violations };
}

/** Checks that an open page reports that its server has ended, and continues when it is there again. */
export async function checkRestart(browser: Browser): Promise<Finding> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
  const first = await startServer(dir, { port: 0 }, silentLogger);
  const port = Number(new URL(first.url).port);
  const { page, problems } = await openPage(browser, first.url);
  let last = first;
  try {
    await page.goto(`${first.url}/dashboard/`);
    await page.getByText('No work waits and none runs.').waitFor();
    await page.getByRole('link', { name: 'Live' }).click();
    await page.getByText('connected', { exact: true }).waitFor();
    await first.close();
    await page.getByText('connecting', { exact: true }).waitFor();
    await page.locator('header').getByText('the server does not answer').waitFor();
    last = await startServer(dir, { port }, silentLogger);
    await page.locator('header').getByText('the server does not answer').waitFor({ state: 'detached' });
    await page.getByText('connected', { exact: true }).waitFor();
    await page.getByText('No session runs.').waitFor();
  } catch (error) {
    problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await page.close();
    await last.close();
    await rm(dir, { recursive: true, force: true });
  }
  const isExpected = (problem: string): boolean => problem.includes('Failed to load resource');
  return { view: 'a server that restarts', problems: problems.filter((one) => !isExpected(one)), violations: [] };
}
