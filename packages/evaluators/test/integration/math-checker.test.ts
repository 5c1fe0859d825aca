import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { mathVerifyPython } from '@floe-rl/node';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../test/skip.ts';
import { harnessDir } from '../../../floe/src/commands/home.ts';
import { type MathChecker, type MathQuestion, mathChecker } from '../../src/math/checker.ts';

const never = new AbortController().signal;
const ask = (checker: MathChecker, answer: string, fields: Partial<MathQuestion> = {}) =>
  checker.check({ expected: ['\\frac{1}{2}'], answer, extract: false, ...fields }, never);

const python = await mathVerifyPython(process.env.FLOE_TEST_HARNESS_DIR ?? harnessDir());

describeIf(
  python === null ? 'math-verify is not installed: floe evaluator install math_verify' : null,
  'the comparison of expressions by math-verify',
  () => {
    const checker = mathChecker(async () => python);
    afterAll(() => checker.close());

    it.each<[string, string[], string]>([
      ['0.5', ['\\frac{1}{2}'], 'equal'],
      ['\\frac12', ['1/2'], 'equal'],
      ['\\sqrt 8', ['2\\sqrt{2}'], 'equal'],
      ['x = 3', ['3'], 'equal'],
      ['12 \\text{ cm}', ['12'], 'equal'],
      ['\\{2, 1\\}', ['\\{1,2\\}'], 'equal'],
      ['0.25', ['1/2', '1/4'], 'equal'],
      ['9**9', ['9^9'], 'equal'],
      ['4', ['3'], 'different'],
      ['9**9', ['9'], 'different'],
      ['3 or 4', ['3'], 'different'],
      ['garbage \\foo{3}', ['3'], 'unreadable'],
      ["__import__('os').abort()", ['3'], 'unreadable'],
      ['3$ or $4', ['3'], 'different'],
      ['\\$5', ['5'], 'equal'],
      ['3', ['\\foo{3}'], 'bad_expected'],
    ])('calls %s and %j %s', async (answer, expected, verdict) => {
      expect(await ask(checker, answer, { expected })).toBe(verdict);
    });

    it('finds the expression in a text only where it may search for one', async () => {
      const text = 'First 7, and after that I got 0.5 in the end.';
      expect(await ask(checker, text, { extract: true })).toBe('equal');
      expect(await ask(checker, text)).not.toBe('equal');
    });

    it('ends a comparison that computes without end, and answers others meanwhile', async () => {
      const late = ask(checker, '9^{9^{9^{9^{9}}}}');
      const order: string[] = [];
      await Promise.all([
        late.then((verdict) => order.push(verdict)),
        ...[1, 2, 3].map(() => ask(checker, '0.5').then((verdict) => order.push(verdict))),
      ]);
      expect(order).toEqual(['equal', 'equal', 'equal', 'timeout']);
    });

    it('blames the task for an expected answer that exceeds the limits', async () => {
      expect(await ask(checker, '1', { expected: ['9^{9^{9^{9^{9}}}}'] })).toBe('bad_expected');
    });

    it('ends a comparison that allocates too much memory', async () => {
      const verdict = await ask(checker, '\\{1,2\\}'.repeat(500), { expected: ['1'] });
      expect(['unreadable', 'different', 'failed', 'timeout']).toContain(verdict);
      expect(await ask(checker, '0.5')).toBe('equal');
    });
  },
  60_000,
);

describe('the process of math-verify', () => {
  let dir: string;
  const open: MathChecker[] = [];
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-math-'));
  });
  afterEach(async () => {
    for (const checker of open.splice(0)) await checker.close();
  });
  afterAll(() => rm(dir, { recursive: true }));

  /** Creates a checker whose Python interpreter is a shell script. */
  async function fake(name: string, script: string): Promise<MathChecker> {
    const path = join(dir, name);
    await writeFile(path, `#!/bin/sh\n${script}\n`);
    await chmod(path, 0o755);
    const checker = mathChecker(async () => path);
    open.push(checker);
    return checker;
  }

  it('is an evaluator_failed that names the command when it is not installed', async () => {
    const checker = mathChecker(async () => null);
    await expect(ask(checker, '1')).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringContaining('floe evaluator install math_verify'),
    });
  });

  it('is an evaluator_failed with the reason when it cannot be started', async () => {
    const checker = mathChecker(async () => join(dir, 'absent'));
    await expect(ask(checker, '1')).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringContaining('ENOENT'),
    });
    const broken = await fake('broken', 'echo "No module named math_verify" >&2; exit 1');
    await expect(ask(broken, '1')).rejects.toThrow(/No module named math_verify/);
    const talking = await fake('talking', 'echo hello; exec tail -f /dev/null');
    await expect(ask(talking, '1')).rejects.toThrow(/it printed hello/);
  });

  it('is an evaluator_failed when it prints a line without end', async () => {
    const endless = await fake('endless', `head -c 200000 /dev/zero | tr '\\0' a; exec tail -f /dev/null`);
    await expect(ask(endless, '1')).rejects.toThrow('it printed a line of more than 65536 bytes');
  });

  it('is started again after it has ended', async () => {
    const once = await fake(
      'once',
      `echo '{"version": "1"}'; read -r line; echo '{"id": 0, "verdict": "different"}'; exit 0`,
    );
    expect(await ask(once, '1')).toBe('different');
    await expect.poll(() => ask(once, '1').catch(() => 'ended')).toBe('different');
  });

  it('gets no more comparisons at a time than it may run', async () => {
    const counting = await fake(
      'counting',
      `echo '{"version": "1"}'
      if [ "$(dd bs=65536 count=1 2>/dev/null | wc -l)" = 4 ]; then verdict=equal; else verdict=different; fi
      for n in 0 1 2 3; do echo "{\\"id\\": $n, \\"verdict\\": \\"$verdict\\"}"; done
      read -r line; echo '{"id": 4, "verdict": "unreadable"}'; exec cat > /dev/null`,
    );
    const verdicts = await Promise.all([1, 2, 3, 4, 5].map(() => ask(counting, '1')));
    expect(verdicts).toEqual(['equal', 'equal', 'equal', 'equal', 'unreadable']);
  });

  it('stops to wait for a comparison that is cancelled, and for all of them when it is closed', async () => {
    const silent = await fake('silent', `echo '{"version": "1"}'; exec cat > /dev/null`);
    const controller = new AbortController();
    const cancelled = silent.check({ expected: ['1'], answer: '1', extract: false }, controller.signal);
    controller.abort(new Error('cancelled here'));
    await expect(cancelled).rejects.toThrow('cancelled here');
    const waiting = ask(silent, '1');
    const failed = expect(waiting).rejects.toMatchObject({ code: 'evaluator_failed' });
    await new Promise((resolve) => setImmediate(resolve));
    await silent.close();
    await failed;
    await expect(ask(silent, '1')).rejects.toThrow(/shutting down/);
  });
});
