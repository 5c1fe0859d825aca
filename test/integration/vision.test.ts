import { findEnvironment } from '@floe-rl/agents';
import type { ChatMessage, SessionResult } from '@floe-rl/core/schema';
import { encodeExport, type FormatName, trainingGroups } from '@floe-rl/data/trainers';
import { bundledVocabulary, checkAgainstLedger, parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { playedScenarios } from '#floe/testing/index';
import { startTestStack, type TestStack } from './stack.ts';

const GAME = { environment: findEnvironment('frozen_lake'), config: { observation: 'image' }, seed: 3 };

let stack: TestStack;

beforeAll(async () => {
  const played = await playedScenarios({ ...GAME, mark: 'Game one.' });
  const move = { call: { tool: 'move', arguments: { direction: 'up' } } };
  const bumping = {
    name: 'bumping',
    match: { contains: 'Game two.' },
    rules: [{ when: { assistant_turns: { max: 2 } }, reply: [move] }, { reply: [{ text: 'No way.' }] }],
  };
  stack = await startTestStack({
    scenarios: parseScenarios({ scenarios: [bumping, ...played] }, 'the test'),
    sim: { scaleOut: true },
    node: { default_backend: 'none' },
  });
});
afterAll(() => stack.close());

async function play(mark: string, maxTurns: number): Promise<SessionResult> {
  const [result] = await stack.run({
    instruction: '',
    agent: { harness: 'floe', system_prompt: mark, max_turns: maxTurns, settings: { agent: 'gym' } },
    environment: { type: 'frozen_lake', config: GAME.config, seed: GAME.seed },
    engine: { mode: 'tokens' },
    evaluator: { strategy: 'environment' },
    max_attempts: 1,
  });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

type ImagePlaces = {
  message: number;
  part: number;
  url: string;
  token_start: number | null;
  token_count: number | null;
}[];
type WithPlaces = { readonly image_positions?: ImagePlaces };

/** Returns the places of the images in a record, as the formats floe, slime and verl have them. */
function placesIn(record: WithPlaces & { metadata?: WithPlaces; extra_fields?: WithPlaces }): ImagePlaces {
  return record.image_positions ?? record.extra_fields?.image_positions ?? record.metadata?.image_positions ?? [];
}

/** Returns the URLs of the images in messages, in their order. */
function imagesIn(messages: readonly ChatMessage[]): string[] {
  return messages.flatMap(({ content }) =>
    typeof content === 'object' && content !== null
      ? content.flatMap((part) => (part.type === 'image_url' ? [part.image_url.url] : []))
      : [],
  );
}

describe('an environment that is seen as images', () => {
  it('is played in tokens mode with the prompt ids of the engine, and the audit counts these replies', async () => {
    const result = await play('Game one.', 20);
    expect(result).toMatchObject({ outcome: 'completed', reward: 1 });
    const { audit, traces, images } = result.trajectory ?? { audit: null, traces: [], images: {} };
    const turns = result.agent?.turns ?? 0;
    expect(turns).toBeGreaterThan(3);
    expect(audit).toMatchObject({ rendered_for_images: turns, context_images: turns });
    expect(traces.every(({ metadata }) => metadata.capture_mode === 'chat')).toBe(true);
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
    // Few chat templates have images in results of tools, so they follow in a message of the user.
    const messages = traces.flatMap((trace) => [...trace.prompt_messages, ...trace.response_messages]);
    expect(new Set(messages.filter((message) => imagesIn([message]).length > 0).map(({ role }) => role))).toEqual(
      new Set(['user']),
    );
    // Each board was drawn once, and each message refers to it.
    const last = traces.at(-1);
    const seen = imagesIn([...(last?.prompt_messages ?? []), ...(last?.response_messages ?? [])]);
    expect(seen).toHaveLength(turns);
    expect(Object.keys(images).sort()).toEqual([...new Set(seen)].sort());
    expect(Object.values(images).every((url) => url.startsWith('data:image/png;base64,'))).toBe(true);
  });

  it('keeps an image that is sent in every turn once', async () => {
    // The player starts in the corner, so a move upwards changes nothing.
    const result = await play('Game two.', 4);
    const { traces = [], images = {} } = result.trajectory ?? {};
    const [first] = traces.map((trace) => imagesIn([...trace.prompt_messages, ...trace.response_messages])).reverse();
    expect(first).toHaveLength(4);
    expect(new Set(first).size).toBe(1);
    expect(Object.keys(images)).toEqual([first?.[0]]);
    const completions = (await stack.client.completions(result.session_id)).toString();
    expect(completions.match(/data:image/g)).toHaveLength(1);
  });

  it('is exported with the message, the part and the placeholders of each image', async () => {
    const result = await play('Game one.', 20);
    const vocabulary = bundledVocabulary();
    const groups = trainingGroups([result]);
    const placesOf = (format: FormatName, ids?: string): ImagePlaces[] => {
      const options = ids === undefined ? {} : { image_token_ids: ids };
      const lines = encodeExport(groups, { format, options }, 'jsonl').toString().trim().split('\n');
      return lines.map((line) => placesIn(JSON.parse(line)));
    };
    const traces = result.trajectory?.traces ?? [];
    for (const format of ['floe', 'slime', 'verl'] as const) {
      const records = placesOf(format, vocabulary.encode('<|image_pad|>').join(','));
      expect(records).toHaveLength(traces.length);
      for (const [index, { prompt_ids, response_ids, prompt_messages, response_messages }] of traces.entries()) {
        const messages = [...prompt_messages, ...response_messages];
        const places = records[index] ?? [];
        expect(places.map(({ url }) => url)).toEqual(imagesIn(messages));
        for (const { message, part, url, token_start: start, token_count: count } of places) {
          expect(messages[message]?.content?.[part]).toEqual({ type: 'image_url', image_url: { url } });
          const ids = [...prompt_ids, ...response_ids];
          const before = vocabulary.decode(ids.slice(0, start ?? 0));
          expect(before.endsWith('<|vision_start|>')).toBe(true);
          expect(vocabulary.decode(ids.slice(start ?? 0, (start ?? 0) + (count ?? 0)))).toMatch(/^(<\|image_pad\|>)+$/);
        }
      }
    }
    // Without the id of the placeholder, and with an id that does not occur, only the messages are known.
    for (const ids of [undefined, '5']) {
      expect(placesOf('floe', ids)[0]?.[0]).toMatchObject({
        message: 1,
        part: 1,
        token_start: null,
        token_count: null,
      });
    }
  });
});
