import { VirtualClock } from '@floe-rl/core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { relabelledMetrics } from '../../../src/engines/pool/exposition.ts';
import { enginePoolsOf } from '../../../src/engines/pool/managed-engine-pools.ts';
import { ToyEngine, through } from './toy-engine.ts';

const of = (...texts: readonly string[]): string =>
  relabelledMetrics(texts.map((text, i) => ({ engineId: `e${i}`, pool: 'default', text })));

describe('relabelledMetrics', () => {
  it('adds the labels engine_id and pool, and describes each family once', () => {
    const text = (n: number): string =>
      `# HELP vllm:running Requests\n# TYPE vllm:running gauge\nvllm:running{model="m"} ${n}\nplain ${n}\n`;
    expect(of(text(1), text(2))).toBe(
      [
        '# HELP vllm:running Requests',
        '# TYPE vllm:running gauge',
        'vllm:running{engine_id="e0",pool="default",model="m"} 1',
        'vllm:running{engine_id="e1",pool="default",model="m"} 2',
        'plain{engine_id="e0",pool="default"} 1',
        'plain{engine_id="e1",pool="default"} 2',
        '',
      ].join('\n'),
    );
  });

  it('keeps the samples of a histogram together', () => {
    const text = (n: number): string =>
      `# TYPE h histogram\nh_bucket{le="+Inf"} ${n}\nh_sum ${n}\nh_count ${n}\n# TYPE g gauge\ng NaN\n`;
    const lines = of(text(1), text(2)).split('\n');
    expect(lines.filter((line) => line.startsWith('#'))).toEqual(['# TYPE h histogram', '# TYPE g gauge']);
    expect(lines.slice(1, 7).every((line) => line.startsWith('h_'))).toBe(true);
  });

  it("renames an engine's own labels of these names", () => {
    expect(of('x{engine_id="own",pool="p",a="b"} 1')).toBe(
      'x{engine_id="e0",pool="default",exported_engine_id="own",exported_pool="p",a="b"} 1\n',
    );
  });

  it('keeps escapes, brackets and commas in label values, and ignores white space', () => {
    expect(of('x { a = "}, \\"q\\" \\\\ \\n{" , b="" , }  1.5e-3  1700000000000')).toBe('');
    expect(of('x{ a = "}, \\"q\\" \\\\ \\n{" , b="" , }  1.5e-3  1700000000000')).toBe(
      'x{engine_id="e0",pool="default",a="}, \\"q\\" \\\\ \\n{",b=""} 1.5e-3\n',
    );
  });

  it.each([
    'x{a="b} 1',
    'x{a="\\z"} 1',
    'x{a=b} 1',
    'x{"a"="b"} 1',
    'x{a="b",a="c"} 1',
    'x{engine_id="a",exported_engine_id="b"} 1',
    'x 1 2 3',
    'x one',
    'x',
    'x{} ',
    '1x 1',
    'x-y 1',
    '<html>',
    '{"error":"no"}',
    'x 0x10',
    'x{a="b"} 1 # {trace="1"} 2',
    'x{a="\u0000"} 1',
    'floe_sessions_total 9',
    'process_open_fds 9',
  ])('leaves out %j', (line) => {
    expect(of(`${line}\nok 1\n`)).toBe('ok{engine_id="e0",pool="default"} 1\n');
  });

  it('leaves out repeated series, and families whose type differs', () => {
    expect(of('# TYPE x gauge\nx 1\nx 2\n', '# TYPE x counter\nx 3\n')).toBe(
      '# TYPE x gauge\nx{engine_id="e0",pool="default"} 1\n',
    );
  });

  it('does not let a description become a separate line', () => {
    const text = of('# HELP x a\\b \\n c\rx 1\n# TYPE x gauge x\n# TYPE y evil\nx 1\n');
    expect(text).toBe('# HELP x a\\\\b \\n c x 1\nx{engine_id="e0",pool="default"} 1\n');
  });

  it('leaves out a text that is too large, and processes a hostile one in linear time', () => {
    expect(of(`x 1\n${'#'.repeat(5 * 1024 * 1024)}`)).toBe('');
    expect(of(`x ${'1'.repeat(1_000_000)}x\nx{${'a'.repeat(1_000_000)}\n${'{'.repeat(1_000_000)}\ny 1`)).toContain(
      'y{',
    );
  });

  it('returns well-formed text whatever the engines return', () => {
    const piece = fc.constantFrom(
      'x',
      'y_total',
      '{',
      '}',
      'a="1"',
      ',',
      ' ',
      '1',
      'NaN',
      '\n',
      '# TYPE x gauge',
      '"',
      '\\',
    );
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.array(piece).map((parts) => parts.join('')),
    );
    const sample = /^[a-zA-Z_:][\w:]*\{engine_id="e\d",pool="default"(,[a-zA-Z_]\w*="([^"\\\n]|\\[\\"n])*")*\} \S+$/;
    fc.assert(
      fc.property(fc.array(text, { maxLength: 4 }), (texts) => {
        const lines = of(...texts)
          .split('\n')
          .slice(0, -1);
        for (const line of lines) expect(line).toMatch(line.startsWith('#') ? /^# (HELP|TYPE) [\w:]+ / : sample);
        const described = lines.filter((line) => line.startsWith('# TYPE'));
        expect(new Set(described).size).toBe(described.length);
        expect(new Set(lines.map((line) => line.split(' ')[0])).size).toBeGreaterThanOrEqual(Math.min(lines.length, 1));
      }),
      { numRuns: 300 },
    );
  });

  it('includes the engines that answer in time', async () => {
    const clock = new VirtualClock();
    const [up, down, slow, none] = ['a', 'b', 'c', 'd'].map((id) => new ToyEngine(id)) as [
      ToyEngine,
      ToyEngine,
      ToyEngine,
      ToyEngine,
    ];
    up.facts = { metricsText: 'x 1\n' };
    down.metrics = () => Promise.reject(new Error('down'));
    slow.metrics = () => new Promise(() => {});
    const pool = enginePoolsOf([up, down, slow, none], { clock });
    expect(await through(clock, pool.metrics())).toBe('x{engine_id="a",pool="default"} 1\n');
    expect(clock.monotonicMs()).toBeLessThan(6_000);
  });
});
