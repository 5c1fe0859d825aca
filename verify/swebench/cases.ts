import type { RandomSource } from '@floe-rl/core';
import type { Case } from './package.ts';
import { SAMPLE_PARSERS, SAMPLES, type Sample } from './sample-lines.ts';

const NAMES = [
  'test_a',
  'test_b[x-1]',
  'test_c[a b]',
  'test_d[(1, 2)]',
  'adds two numbers (fast)',
  'handles "quotes" & <tags>',
  'ends with a dot.',
  'a - b',
  'Ünïcode ✓ 名前',
  'in the middle of in',
  'x ... y',
  'A::B',
  '12',
  '',
  'TestCase#test = 1',
  '[bracket',
];
const PATHS = ['tests/test_a.py', 'src/b.test.ts', 'pkg/c_test.go', 'com.example.Test', './d e.js'];
const NOISE = [
  '',
  '+ echo done',
  'Traceback (most recent call last):',
  '  File "a.py", line 1, in b',
  'Error: x',
  'Tests:  3 passed, 3 total',
  'Executed 3 of 3 SUCCESS',
  '4 passing (2s)',
  '0 passing',
  '2 specs, 0 failures',
  '# tests 5',
  "case': ok",
  'Test Suites: 1 failed, 2 total',
  'TOTAL: 3 SUCCESS',
];

function pick<T>(chance: RandomSource, values: readonly T[]): T {
  return values[Math.floor(chance() * values.length)] as T;
}

function fill(line: string, chance: RandomSource): string {
  return line
    .replaceAll('{n}', () => pick(chance, NAMES))
    .replaceAll('{p}', () => pick(chance, PATHS))
    .replaceAll('{s}', () => String(Math.floor(chance() * (chance() < 0.5 ? 4 : 200))));
}

/** Draws a log in the format of a sample. */
function drawLog({ lines, heading }: Sample, chance: RandomSource): string {
  const parts = Array.from({ length: 1 + Math.floor(chance() * 3) }, () => {
    const drawn = Array.from({ length: 1 + Math.floor(chance() * 12) }, () =>
      fill(pick(chance, chance() < 0.1 ? NOISE : lines), chance),
    );
    return heading === undefined ? drawn : [fill(heading, chance), ...drawn];
  });
  return `${parts.flat().join('\n')}\n`;
}

const SWAPS: readonly (readonly [string, string])[] = [
  ['PASSED', 'FAILED'],
  ['PASS', 'FAIL'],
  ['✓', '✕'],
  ['✔', '✖'],
  ['not ok', 'ok'],
  ['SUCCESS', 'FAILURE'],
  ['passed', 'failed'],
  ['true', 'false'],
  ['FAILED', 'SKIPPED'],
  [' ... ok', ' ... FAIL'],
];

type Mutation = (log: string, chance: RandomSource) => string;

const byLine =
  (change: (line: string, chance: RandomSource) => string, share = 0.2): Mutation =>
  (log, chance) =>
    log
      .split('\n')
      .map((line) => (chance() < share ? change(line, chance) : line))
      .join('\n');

const positionIn = (text: string, chance: RandomSource): number => Math.floor(chance() * (text.length + 1));

/** The ways in which a log is changed. */
const MUTATIONS: Readonly<Record<string, Mutation>> = {
  unchanged: (log) => log,
  shuffled: (log, chance) => {
    const lines = log.split('\n');
    for (let last = lines.length - 1; last > 0; last -= 1) {
      const other = Math.floor(chance() * (last + 1));
      [lines[last], lines[other]] = [lines[other] ?? '', lines[last] ?? ''];
    }
    return lines.join('\n');
  },
  cut: (log, chance) => log.slice(0, positionIn(log, chance)),
  cutLines: byLine((line, chance) => line.slice(0, positionIn(line, chance))),
  cutStarts: byLine((line, chance) => line.slice(positionIn(line, chance))),
  duplicated: byLine((line) => `${line}\n${line}`),
  removed: byLine(() => ''),
  joined: (log, chance) => log.replaceAll('\n', () => (chance() < 0.1 ? ' ' : '\n')),
  coloured: byLine((line, chance) =>
    line.replace(/\S+/, `\u001b[${pick(chance, ['0', '1;31', '32', '39;49'])}m$&\u001b[0m`),
  ),
  swapped: (log, chance) => {
    const [a, b] = pick(chance, SWAPS);
    return byLine((line) => (line.includes(a) ? line.replaceAll(a, b) : line.replaceAll(b, a)), 0.4)(log, chance);
  },
  indented: byLine((line, chance) => pick(chance, [' ', '   ', '\t', '\u00a0', '\u001c']) + line),
  padded: byLine((line, chance) => line + pick(chance, [' ', '\t', '\r', '\u0085', ' (3 ms)'])),
  spaced: byLine((line, chance) => line.replaceAll(' ', () => (chance() < 0.2 ? pick(chance, ['  ', '\t', '']) : ' '))),
  returned: (log) => log.replaceAll('\n', '\r\n'),
  edited: byLine((line, chance) => {
    const at = positionIn(line, chance);
    return (
      line.slice(0, at) +
      pick(chance, ['', ' ', '\n', ')', '(', '[', ']', '.', ':', '-', '7', '<b>', '"']) +
      line.slice(at + 1)
    );
  }),
};

const MUTATION_NAMES = Object.keys(MUTATIONS);

const START = '>>>>> Start Test Output';
const END = '>>>>> End Test Output';
const EXIT = '>>>>> Test Exit Code';

/** The ways to make a log from the output of tests. The first is the usual way. */
const FRAMES: readonly ((body: string, status: number) => string)[] = [
  (body, status) => `+ : '${START}'\n${body}\n+ : '${END}'\n++ echo '${EXIT}: ${status}'\n${EXIT}: ${status}\n`,
  (body) => `${START}\n${body}${END}\n`,
  (body, status) => `${body}\n+ : '${START}'\n+ : '${END}'\n${EXIT}: ${status}\n`,
  (body) => `+ : '${START}'\n${body}`,
  (body) => body,
  (body, status) => `${START}\n${body}\n${START}\n${body}\n${END}\n${EXIT}: ${status}\n`,
  (body) => `${START}\n${body}\n>>>>> Tests Timed Out\n${END}\n`,
];

function frame(body: string, chance: RandomSource): string {
  const form = chance() < 0.7 ? FRAMES[0] : pick(chance, FRAMES);
  return form?.(body, chance() < 0.7 ? 0 : pick(chance, [1, 2, -9])) ?? body;
}

/** Makes cases for a parser: the given texts and logs in the parser's own formats, each changed in seeded ways. */
export function casesFor(parser: string, texts: readonly string[], logCount: number, chance: RandomSource): Case[] {
  const cases: Case[] = [];
  const add = (log: string, sample: Sample | undefined, mutation: string): void => {
    cases.push({
      parser,
      instance_id: pick(chance, sample?.instances ?? ['owner__repo-1']),
      version: pick(chance, sample?.versions ?? ['1.0']),
      eval_type: chance() < 0.75 ? 'pass_and_fail' : 'fail_only',
      seed: Math.floor(chance() * 2 ** 31),
      log: frame(MUTATIONS[mutation]?.(log, chance) ?? log, chance),
    });
  };
  const samples = samplesOf(parser);
  for (const text of texts) {
    add(text, samples[0], 'unchanged');
    add(text, samples[0], pick(chance, MUTATION_NAMES));
  }
  for (const sample of samples) {
    for (let count = 0; count < logCount; count += 1) {
      const log = drawLog(sample, chance);
      for (const mutation of MUTATION_NAMES) add(log, sample, mutation);
    }
  }
  return cases;
}

/** Returns the sample formats of a parser. A parser that shares its format with another parser has no sample of its own. */
function samplesOf(parser: string): Sample[] {
  const own = Object.entries(SAMPLES).filter(([key]) => (SAMPLE_PARSERS[key] ?? key) === parser);
  const pytest = SAMPLES.parse_log_pytest;
  return own.length > 0 || pytest === undefined ? own.map(([, sample]) => sample) : [pytest];
}
