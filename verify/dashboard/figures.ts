import type { SessionResult } from '@floe-rl/core/schema';
import type { Page } from 'playwright-core';

export type Results = readonly SessionResult[];

/** Resolves when the first row with a name has cells that begin with the given texts, in this order. */
export async function hasRow(page: Page, name: string, starts: readonly string[]): Promise<void> {
  const rows = page.getByRole('row').filter({ has: page.getByRole('rowheader', { name, exact: true }) });
  const cells = rows.first().getByRole('cell');
  for (const [index, start] of starts.entries()) {
    try {
      await cells
        .nth(index)
        .filter({ hasText: new RegExp(`^${start.replaceAll(/[.+()]/g, '\\$&')}`) })
        .waitFor();
    } catch (cause) {
      const found = (await cells.allInnerTexts()).join(' | ');
      throw new Error(`the row ${name} is ${found}, and cell ${index} must begin with ${start}`, { cause });
    }
  }
}

/** The mean of some numbers, with three decimals at most, as the page shows it. */
export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

export function decimals(value: number, count: number): string {
  return String(Math.round(value * 10 ** count) / 10 ** count);
}

/** A number as the page shows it: three digits and a unit of thousands or millions. */
export function short(value: number): string {
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  return value < 1000 ? String(value) : `${(value / 1000).toPrecision(3)}k`;
}

/** The sum of a number over the results. */
export function total(results: Results, of: (result: SessionResult) => number): number {
  return results.reduce((sum, result) => sum + of(result), 0);
}

/** A share as the page shows it. */
export function share(part: number, whole: number): string {
  return `${decimals((100 * part) / whole, 1)} %`;
}

/** A duration in seconds as the page shows it, with three digits. */
export function timeText(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toPrecision(3)} s` : `${Math.round(seconds / 60)} min`;
}
