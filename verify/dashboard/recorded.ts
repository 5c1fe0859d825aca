import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FloeClient } from '@floe-rl/client';
import type { Browser } from 'playwright-core';
import { openView, type View } from '#floe/commands/view';
import { openPage, seriousViolations } from './browser.ts';
import { VISIBLE_HOSTILE } from './sessions.ts';
import type { Finding } from './situations.ts';
import type { Shown } from './views.ts';

/** Checks that `floe view` shows the sessions of a file without their server: the list, a transcript, its tokens. */
export async function checkRecorded(browser: Browser, client: FloeClient, { sessions }: Shown): Promise<Finding> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
  const file = join(dir, 'results.jsonl');
  const problems: string[] = [];
  const violations: string[] = [];
  let view: View | null = null;
  try {
    const lines: string[] = [];
    for await (const result of client.results({ peek: true, follow: false, after: 0 }))
      lines.push(JSON.stringify(result));
    await writeFile(file, `${lines.join('\n')}\n`);
    view = await openView([file], 0);
    const { page, problems: seen } = await openPage(browser, new URL(view.link).origin);
    await page.goto(view.link);
    await page.getByRole('link', { name: sessions.failing }).waitFor();
    await page.getByText(`${lines.length}`, { exact: true }).first().waitFor();
    await page.getByRole('link', { name: sessions.hostile }).click();
    await page.getByText(VISIBLE_HOSTILE).first().waitFor();
    await page.getByText('The file does not have: the harness').waitFor();
    if (await page.evaluate(() => 'broken' in globalThis)) throw new Error('markup of the agent was run');
    violations.push(...(await seriousViolations(page)));
    await page.goto(`${view.link.split('#')[0]}#/sessions/${sessions.turns}/tokens?call=1`);
    await page.locator('.tokens li', { hasText: '<tool_call>' }).first().waitFor();
    const title = await page.locator('.tokens li').first().getAttribute('title');
    if (!/log-probability -?\d.*, version .+, trained$/.test(title ?? '')) throw new Error(`a token says ${title}`);
    problems.push(...seen);
    await page.close();
  } catch (error) {
    problems.push((error as Error).message.split('\n')[0] ?? '');
  } finally {
    await view?.close();
    await rm(dir, { recursive: true, force: true });
  }
  return { view: 'sessions of a file, without their server', problems, violations };
}
