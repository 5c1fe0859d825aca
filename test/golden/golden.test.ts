import type { SimOptions } from '@floe-rl/sim';
import { afterAll, describe, expect, it } from 'vitest';
import { ALL_TESTS } from '../effort.ts';
import { CONSTRAINTS } from './cases/constraints.ts';
import { DELIVERY } from './cases/delivery.ts';
import { ENGINE } from './cases/engine.ts';
import { HISTORY } from './cases/history.ts';
import { SCENARIOS } from './cases/scenarios.ts';
import type { GoldenCase, Scene } from './cases/scene.ts';
import { STRUCTURE } from './cases/structure.ts';
import { TEXT } from './cases/text.ts';
import { DIALECT_CLIENTS } from './dialect-clients.ts';
import { MODES, type Mode, taskEngineOf } from './modes.ts';
import { Golden } from './session.ts';

const CASES = [...HISTORY, ...STRUCTURE, ...DELIVERY, ...TEXT, ...ENGINE, ...CONSTRAINTS].sort((a, b) =>
  a.letter < b.letter ? -1 : 1,
);

const PLAYERS = DIALECT_CLIENTS.flatMap((client) => [
  { name: `with a client of ${client.dialect}`, client, stream: false },
  { name: `with a streaming client of ${client.dialect}`, client, stream: true },
]);

describe('the golden cases', () => {
  it('cover the letters a to w, y and z of the specification', () => {
    const letters = [...new Set(CASES.map((one) => one.letter))];
    expect(letters.join('')).toBe('abcdefghijklmnopqrstuvwyz');
  });
});

/**
 * The cases that are played in a mode. With `npm test -- --all`, and so with `npm run verify -- golden`, all cases are played in all modes.
 * Otherwise each case is played in one mode, in turn.
 */
function casesOf(mode: Mode): readonly GoldenCase[] {
  return ALL_TESTS ? CASES : CASES.filter((_, index) => MODES[index % MODES.length] === mode);
}

for (const mode of MODES) describe(mode.name, () => play(mode));

function play(mode: Mode): void {
  /**
   * The simulated engines of this capture mode, each with its proxy. The key is the engine's settings. All test cases with the same
   * settings share one engine.
   */
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
  for (const one of casesOf(mode)) describe(`(${one.letter}) ${one.title}`, () => playCase(one, mode, goldenOf));
}

function playCase(one: GoldenCase, mode: Mode, goldenOf: (options?: SimOptions) => Promise<Golden>): void {
  for (const { name, client, stream } of PLAYERS) {
    if (one.plays?.(client, stream) === false) continue;
    it(name, async () => {
      const golden = await goldenOf(one.sim);
      const open: Scene['open'] = ({ retention, ...over } = {}) =>
        golden.open(client, stream, { engine: taskEngineOf(mode, retention), ...over });
      await one.run({ golden, mode, client, stream, open });
    });
  }
}

function startGolden(mode: Mode, options: SimOptions): Promise<Golden> {
  return Golden.start(mode, { scenarios: [...SCENARIOS], ...options });
}
