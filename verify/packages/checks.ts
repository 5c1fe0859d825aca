import { messageOf } from '@floe-rl/core';
import type { Finding } from '../envs/finding.ts';

/** Runs a check and notes what came of it. `run` returns what is printed beside the check, and throws when the check fails. */
export type Check = (what: string, run: () => string | Promise<string>) => Promise<void>;

/** Checks and their findings, each printed as soon as it is there. */
export class Checks {
  readonly findings: Finding[] = [];

  readonly check: Check = async (what, run) => {
    const finding = await found(what, run);
    this.findings.push(finding);
    console.log(
      `${finding.isPassed ? 'passed' : 'FAILED'}  ${what}${finding.detail === '' ? '' : `: ${finding.detail}`}`,
    );
  };
}

async function found(what: string, run: () => string | Promise<string>): Promise<Finding> {
  try {
    return { what, isPassed: true, detail: await run() };
  } catch (error) {
    return { what, isPassed: false, detail: messageOf(error) };
  }
}
