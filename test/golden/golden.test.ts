import { afterAll, describe, expect, test } from 'vitest';
import type { SimOptions } from '../../src/sim/index.ts';
import { DELIVERY } from './cases/delivery.ts';
import { ENGINE } from './cases/engine.ts';
import { HISTORY } from './cases/history.ts';
import { SCENARIOS } from './cases/scenarios.ts';
import type { GoldenCase, Scene } from './cases/scene.ts';
import { STRUCTURE } from './cases/structure.ts';
import { TEXT } from './cases/text.ts';
import { MODES, type Mode, taskEngineOf } from './modes.ts';
import { Golden } from './session.ts';
import { SPEAKERS } from './speakers.ts';

const CASES = [...HISTORY, ...STRUCTURE, ...DELIVERY, ...TEXT, ...ENGINE].sort((a, b) =>
  a.letter < b.letter ? -1 : 1,
);

const clients = SPEAKERS.flatMap((speaker) => [
  { client: speaker.dialect, speaker, stream: false },
  { client: `${speaker.dialect}, streamed`, speaker, stream: true },
]);

test('every case of the specification has a test', () => {
  const letters = [...new Set(CASES.map((one) => one.letter))];
  expect(letters.join('')).toBe('abcdefghijklmnopqrstuvw');
});

for (const mode of MODES) describe(mode.name, () => play(mode));

function play(mode: Mode): void {
  /** One engine for all cases that want it alike. */
  const engines = new Map<string, Promise<Golden>>();
  const goldenOf = (options: SimOptions = {}): Promise<Golden> => {
    const key = JSON.stringify(options);
    const known = engines.get(key) ?? startGolden(mode, options);
    engines.set(key, known);
    return known;
  };
  afterAll(async () => {
    for (const golden of engines.values()) await (await golden).close();
  });
  for (const one of CASES) describe(`(${one.letter}) ${one.title}`, () => playCase(one, mode, goldenOf));
}

function playCase(one: GoldenCase, mode: Mode, goldenOf: (options?: SimOptions) => Promise<Golden>): void {
  for (const { client, speaker, stream } of clients) {
    if (one.plays?.(speaker, stream) === false) continue;
    test(client, async () => {
      const golden = await goldenOf(one.sim);
      const open: Scene['open'] = ({ retention, ...over } = {}) =>
        golden.open(speaker, stream, { engine: taskEngineOf(mode, retention), ...over });
      await one.run({ golden, mode, speaker, stream, open });
    });
  }
}

function startGolden(mode: Mode, options: SimOptions): Promise<Golden> {
  return Golden.start(mode, { scenarios: [...SCENARIOS], ...options });
}
