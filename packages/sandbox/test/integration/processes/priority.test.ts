import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { getPriority } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

/** The compiled module, which the tests import in processes of their own. */
const BUILT = join(import.meta.dirname, '..', '..', '..', 'dist', 'processes', 'priority.js');

/** The niceness of each thread, and of the group of the terminal session, which is `null` where the kernel makes no such groups. */
type Niceness = { readonly threads: readonly number[]; readonly session: string | null };

/** Starts a process in a terminal session of its own, which calls the function `name`, and returns its niceness. */
function nicenessAfter(name: 'raisePriority' | 'lowerPriority'): Niceness {
  const program = `
    import { readdirSync, readFileSync } from 'node:fs';
    import { getPriority } from 'node:os';
    import { ${name} } from ${JSON.stringify(BUILT)};
    ${name}();
    ${name}();
    let session = null;
    try { session = readFileSync('/proc/self/autogroup', 'utf8').trim().split(' ').at(-1); } catch {}
    const threads = readdirSync('/proc/self/task').map((thread) => getPriority(Number(thread)));
    process.stdout.write(JSON.stringify({ threads, session }));`;
  const node = [process.execPath, '--input-type=module', '-e', program];
  return JSON.parse(execFileSync('setsid', ['--wait', ...node], { encoding: 'utf8' }));
}

/** Whether this process has CAP_SYS_NICE, which is capability 23. */
function mayRaise(): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0';
  return ((BigInt(`0x${effective}`) >> 23n) & 1n) === 1n;
}

const before = getPriority();

describe('the priority of a gateway', () => {
  it(`is ${mayRaise() ? 'ten steps higher than before' : 'unchanged without the capability to raise it'}`, () => {
    const { threads, session } = nicenessAfter('raisePriority');
    const expected = mayRaise() ? Math.max(before - 10, -20) : before;
    expect(new Set(threads)).toEqual(new Set([expected]));
    if (mayRaise()) expect([null, String(expected)]).toContain(session);
  });
});

describe('the priority of a spawn helper', () => {
  it('is ten steps lower than before', () => {
    expect(new Set(nicenessAfter('lowerPriority').threads)).toEqual(new Set([Math.min(before + 10, 19)]));
  });
});
