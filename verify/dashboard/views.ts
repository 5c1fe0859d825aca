import type { CompletionRecord, SessionResult } from '@floe-rl/core/schema';
import type { Page } from 'playwright-core';
import { hasRow, short, total } from './figures.ts';
import { VISIBLE_HOSTILE } from './sessions.ts';

/** The sessions and tasks that the views show, by the names of the tasks of sessions.ts. */
export type Shown = {
  /** Id of a task whose agent does not end by itself. */
  readonly running: string;
  readonly results: readonly SessionResult[];
  readonly tasks: Readonly<Record<'hostile' | 'failing' | 'equal' | 'turns', string>>;
  readonly sessions: Readonly<Record<'hostile' | 'failing' | 'equal' | 'turns', string>>;
};

/** A view of the dashboard. `Known` describes the server's sessions, which the view must show. */
export type View<Known> = {
  readonly name: string;
  /** Fragment of the address. */
  readonly at: (known: Known) => string;
  /** Status of the refusal when the server refuses a request of this view. Browsers report such a status in the console. */
  readonly refused?: number;
  /** Resolves when the view shows what it must show. Rejects with an Error that states the difference. */
  readonly check: (page: Page, known: Known) => Promise<void>;
};

/** The views of single sessions, tasks and nodes, each with a check of its content. */
export const VIEWS: readonly View<Shown>[] = [
  {
    name: 'overview',
    at: () => '#/',
    check: async (page, { tasks }) => {
      await sees(page, 'No work waits for a limit.');
      for (const id of Object.values(tasks)) await sees(page, id);
    },
  },
  {
    name: 'nodes and engines',
    at: () => '#/fleet',
    check: async (page) => {
      await sees(page, 'works');
      await sees(page, 'ready');
    },
  },
  {
    name: 'pause and resume the engines',
    at: () => '#/fleet',
    check: async (page) => {
      await pressTwice(page, 'Pause the engines');
      await sees(page, 'paused (keep)');
      await pressTwice(page, 'Resume the engines');
      await page.getByRole('button', { name: 'Pause the engines' }).waitFor();
    },
  },
  {
    name: 'live: a running session with its newest reply',
    at: ({ running }) => `#/live?task=${running}`,
    check: async (page) => {
      await sees(page, 'connected');
      await page.getByRole('cell', { name: 'RUNNING' }).waitFor();
      await sees(page, VISIBLE_HOSTILE);
    },
  },
  {
    name: 'cancel a running task',
    at: ({ running }) => `#/tasks/${running}`,
    check: async (page) => {
      await pressTwice(page, 'Cancel the task');
      await sees(page, 'cancelled');
      await page.getByRole('button', { name: 'Cancel the task' }).waitFor({ state: 'detached' });
    },
  },
  {
    name: 'submit a task again',
    at: ({ running }) => `#/tasks/${running}`,
    check: async (page, { running }) => {
      await pressTwice(page, 'Submit it again');
      await page
        .getByRole('heading', { name: /^Task task_/ })
        .and(page.getByText(running))
        .waitFor({ state: 'detached' });
      await pressTwice(page, 'Cancel the task');
      await sees(page, 'cancelled');
    },
  },
  {
    name: 'sessions: sums, charts and the list',
    at: () => '#/sessions',
    check: async (page, { sessions }) => {
      for (const id of Object.values(sessions)) await page.getByRole('link', { name: id }).waitFor();
      await sees(page, 'Ended sessions by hour and outcome');
      await page.getByRole('list', { name: 'Outcomes' }).getByText('no_completions').waitFor();
    },
  },
  {
    name: 'sessions: filters and order in the address',
    at: () => '#/sessions?outcome=completed&min_turns=2&order=-turns',
    check: async (page, { sessions }) => {
      await page.getByRole('link', { name: sessions.turns }).waitFor();
      const rows = await page.locator('.list tbody tr').count();
      await counts(page, '.list tbody tr:has(.badge:text-is("completed"))', rows);
      await page.getByRole('link', { name: sessions.failing }).waitFor({ state: 'detached' });
      await page.getByRole('combobox', { name: /^outcome/ }).selectOption('');
      await page.waitForURL((url) => !url.hash.includes('outcome='));
      await page.getByRole('button', { name: 'Clear' }).click();
      await page.waitForURL((url) => !url.hash.includes('min_turns='));
      await page.locator('.list tbody tr').first().waitFor();
      if (!page.url().includes('order=-turns')) throw new Error(`the order is not in the address: ${page.url()}`);
    },
  },
  {
    name: 'sessions: a search in messages, with the words marked in the transcript',
    at: () => '#/sessions',
    check: async (page, { sessions }) => {
      await page.getByLabel('messages with').fill('"want markup"');
      await page.keyboard.press('Enter');
      await page.getByRole('link', { name: sessions.failing }).waitFor({ state: 'detached' });
      await page.getByRole('link', { name: sessions.hostile }).click();
      await page.locator('mark', { hasText: 'markup' }).first().waitFor();
    },
  },
  {
    name: 'sessions: a filter that the server refuses',
    at: () => '#/sessions?min_reward=high',
    refused: 422,
    check: (page) => sees(page, 'min_reward'),
  },
  {
    name: 'groups',
    at: () => '#/groups',
    check: async (page, { tasks }) => {
      await page.getByRole('link', { name: tasks.equal }).waitFor();
      await sees(page, 'all rewards are equal');
    },
  },
  {
    name: 'task: group without an advantage',
    at: ({ tasks }) => `#/tasks/${tasks.equal}`,
    check: async (page) => {
      await sees(page, 'All 4 usable samples have the reward 1');
      await counts(page, 'tbody tr', 4);
    },
  },
  {
    name: 'task: failed sample',
    at: ({ tasks }) => `#/tasks/${tasks.failing}`,
    check: (page) => sees(page, 'no_completions'),
  },
  {
    name: 'samples side by side',
    at: ({ tasks }) => `#/tasks/${tasks.equal}/compare`,
    check: async (page) => {
      await counts(page, 'thead th', 5);
      await page.getByText(/All samples have the same replies|The samples differ from turn 0 on/).waitFor();
    },
  },
  {
    name: 'branches',
    at: ({ sessions }) => `#/sessions/${sessions.turns}/branches`,
    check: async (page) => {
      await page.getByRole('link', { name: 'call 1, main, exact, trained' }).waitFor();
      await page.getByRole('link', { name: 'call 1, main, exact, trained' }).click();
      await page.getByRole('heading', { name: 'Call 1' }).waitFor();
    },
  },
  {
    name: 'transcript: several turns',
    at: ({ sessions }) => `#/sessions/${sessions.turns}`,
    check: async (page) => {
      await sees(page, 'move');
      await page.locator('.message.tool').first().waitFor();
      const calls = await page.locator('.calls > li').count();
      if (calls < 2) throw new Error(`it shows ${calls} calls`);
    },
  },
  {
    name: 'transcript: search and filters in the address',
    at: ({ sessions }) => `#/sessions/${sessions.turns}/transcript?hide=tools&find=no+such+words`,
    check: async (page) => {
      await sees(page, '0 of ');
      await page.getByLabel('Find').fill('');
      await page.locator('.calls > li').first().waitFor();
      await counts(page, '.message.tool', 0);
      if (!page.url().includes('hide=tools')) throw new Error(`the filter is not in the address: ${page.url()}`);
    },
  },
  {
    name: 'transcript: hostile output',
    at: ({ sessions }) => `#/sessions/${sessions.hostile}`,
    check: async (page) => {
      await sees(page, VISIBLE_HOSTILE);
      const ran = await page.evaluate(() => 'broken' in globalThis);
      if (ran) throw new Error('markup of the agent was run');
    },
  },
  {
    name: 'tokens',
    at: ({ sessions }) => `#/sessions/${sessions.turns}/tokens`,
    check: async (page) => {
      await page.locator('.tokens li').first().waitFor();
      const title = await page.locator('.tokens li').first().getAttribute('title');
      if (!/^position 0, id \d+, log-probability -?\d/.test(title ?? '')) throw new Error(`a token says ${title}`);
      await page.locator('.tokens li', { hasText: '<tool_call>' }).first().waitFor();
      await page.keyboard.press(']');
      await page.waitForURL(/call=1/);
    },
  },
  {
    name: 'calls',
    at: ({ sessions }) => `#/sessions/${sessions.turns}/calls?call=1`,
    check: async (page) => {
      await page.getByRole('heading', { name: 'Call 1' }).waitFor();
      await sees(page, '"role": "user"');
    },
  },
  {
    name: 'timing',
    at: ({ sessions }) => `#/sessions/${sessions.turns}/timing`,
    check: async (page) => {
      await page.getByRole('rowheader', { name: 'RUNNING' }).waitFor();
      await page.getByRole('link', { name: 'call 0' }).waitFor();
    },
  },
  {
    name: 'evidence: output of a failed agent',
    at: ({ sessions }) => `#/sessions/${sessions.failing}/evidence`,
    check: (page) => sees(page, 'cannot find the repository'),
  },
  {
    name: 'analysis of real sessions: what their node measured',
    at: () => '#/analysis/fidelity?harness=floe',
    check: async (page, { results, sessions, tasks }) => {
      const at = (hash: string) => page.goto(new URL(hash, page.url()).href);
      const own = results.filter(({ agent }) => agent?.episode !== undefined);
      const sampled = total(own, ({ audit }) => audit?.tokens.sampled ?? 0);
      await hasRow(page, 'floe', ['openai_chat', 'vllm', short(own.length), short(sampled)]);
      for (const harness of new Set(results.flatMap(({ metadata }) => metadata.harness ?? []))) {
        await at(`#/analysis/cost?harness=${harness}`);
        const ofHarness = results.filter(({ metadata }) => metadata.harness === harness);
        const tokens = total(ofHarness, ({ audit }) => audit?.tokens.sampled ?? 0);
        const usable = ofHarness.filter(({ unusable }) => unusable === null).length;
        if (usable === 0) throw new Error(`no session of ${harness} is usable`);
        await hasRow(page, String(harness), [short(ofHarness.length), short(usable), short(tokens)]);
      }
      const records = await fetch(new URL(`/sessions/${sessions.turns}/completions`, page.url()));
      const calls = ((await records.json()) as CompletionRecord[]).flatMap(({ message }) => message.tool_calls ?? []);
      const name = calls[0]?.function.name ?? '';
      await at(`#/analysis/tools?task=${tasks.turns}`);
      await hasRow(page, name, [short(calls.filter((call) => call.function.name === name).length), '0 (0 %)']);
    },
  },
  {
    name: 'a session that is gone',
    at: () => '#/sessions/ses_gone',
    refused: 404,
    check: (page) => sees(page, 'session ses_gone is not known'),
  },
  {
    name: 'a place that does not exist',
    at: () => '#/nowhere',
    check: (page) => sees(page, 'There is no such place'),
  },
];

/** Presses a button that asks for a second press. */
export async function pressTwice(page: Page, name: string): Promise<void> {
  await page.getByRole('button', { name }).click();
  await page.getByRole('button', { name: `${name}: press again` }).click();
}

/** Resolves when a text is on the page. */
export async function sees(page: Page, text: string): Promise<void> {
  await page.getByText(text).first().waitFor();
}

async function counts(page: Page, selector: string, count: number): Promise<void> {
  await page
    .locator(selector)
    .nth(Math.max(0, count - 1))
    .waitFor(count === 0 ? { state: 'detached' } : {});
  const found = await page.locator(selector).count();
  if (found !== count) throw new Error(`there are ${found} of ${selector}, not ${count}`);
}
