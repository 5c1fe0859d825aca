import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import type { AxeResults } from 'axe-core';
import { type Browser, chromium, type Page } from 'playwright-core';

const CHROMIUM = '/usr/bin/chromium';

/** Returns why this machine cannot show the page; `null` when it can. */
export function missingBrowser(): string | null {
  return existsSync(CHROMIUM) ? null : `there is no ${CHROMIUM}: install the package chromium`;
}

export function openBrowser(): Promise<Browser> {
  // Chromium's own sandbox needs user namespaces, which root and containers often lack. Without it, Chromium shows only this machine's pages.
  return chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
}

/** A page, and the problems that were seen on it so far. */
export type WatchedPage = { readonly page: Page; readonly problems: string[] };

/** Opens a page and collects its errors, its warnings in the console, and its requests to other servers. */
export async function openPage(browser: Browser, origin: string): Promise<WatchedPage> {
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
  const problems: string[] = [];
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') problems.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(origin) && !url.startsWith('data:')) problems.push(`request to ${url}`);
  });
  return { page, problems };
}

const axeSource = readFile(createRequire(import.meta.url).resolve('axe-core'), 'utf8');

/** Returns the serious and critical violations of accessibility on a page, each with its first element. */
export async function seriousViolations(page: Page): Promise<string[]> {
  await page.evaluate(await axeSource);
  const results = await page.evaluate(() =>
    (globalThis as unknown as { axe: { run(): Promise<AxeResults> } }).axe.run(),
  );
  return results.violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes[0]?.html ?? ''}`);
}
