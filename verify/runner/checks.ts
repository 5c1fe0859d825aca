import { messageOf } from '@floe-rl/core';

/** The result of one check: what was checked, whether it holds, and a detail, such as figures or the problem. */
export type Finding = { readonly what: string; readonly isPassed: boolean; readonly detail: string };

/** Maximum number of problems of one check that are printed. */
const MAX_PRINTED = 10;

/** Runs a check and records its result. `run` returns the detail to print, and throws when the check fails. */
export type Check = (what: string, run: () => string | Promise<string>) => Promise<void>;

/** The checks of a program. Each result is printed as soon as its check has ended. */
export class Checks {
  readonly findings: Finding[] = [];
  skipped = 0;
  private readonly print: (line: string) => void;

  constructor(print: (line: string) => void = console.log) {
    this.print = print;
  }

  readonly check: Check = async (what, run) => this.add(await found(what, run));

  add(finding: Finding): void {
    this.findings.push(finding);
    const detail = finding.detail === '' ? '' : `: ${finding.detail.replaceAll('\n', '\n        ')}`;
    this.print(`${finding.isPassed ? 'passed' : 'FAILED'}  ${finding.what}${detail}`);
  }

  /** Records a check that failed with these problems. Without problems the check has passed. */
  report(what: string, problems: readonly string[]): void {
    this.add({ what, isPassed: problems.length === 0, detail: problems.slice(0, MAX_PRINTED).join('\n') });
  }

  skip(what: string, reason: string): void {
    this.skipped++;
    this.print(`skipped ${what}: ${reason}`);
  }

  get passed(): number {
    return this.findings.filter(({ isPassed }) => isPassed).length;
  }

  get failed(): number {
    return this.findings.length - this.passed;
  }
}

async function found(what: string, run: () => string | Promise<string>): Promise<Finding> {
  try {
    return { what, isPassed: true, detail: await run() };
  } catch (error) {
    return { what, isPassed: false, detail: messageOf(error) };
  }
}
